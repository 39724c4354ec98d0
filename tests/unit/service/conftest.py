from pathlib import Path

import pytest

from tests.support.processes.service_managers import RecordedPrograms, record_programs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedPrograms:
    """`systemctl`, `loginctl` and `launchctl` that only record their calls, and a home folder of their own."""
    recorded = record_programs(tmp_path / "programs", "systemctl", "loginctl", "launchctl")
    monkeypatch.setenv("PATH", recorded.path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return recorded
