"""The command in this process, which is quicker, and a file to count."""

from pathlib import Path
from typing import Any

import pytest

from foveate.cli import main
from tests.e2e.command import Outcome


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in this process."""

    def call(*arguments: str | Path) -> Outcome:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        code = exit_.value.code
        return Outcome(code if isinstance(code, int) else 0, shown.out, shown.err)

    return call


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("How many tokens is this?", encoding="utf-8")
    return path
