"""Live configuration: changes apply at once, and invalid files are ignored."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from foveate.config.live_settings import LiveSettings
from foveate.config.load import Configuration
from foveate.errors import BadOption, BadSetting, UnreadableInput


def read_port(configuration: Configuration) -> int:
    if configuration.settings.server.port == 1:
        raise BadOption("no such port here", path=("server", "port"))
    return configuration.settings.server.port


def write(path: Path, text: str) -> None:
    """Replace the file, as editors do."""
    new_file = path.with_suffix(".new")
    new_file.write_text(text)
    new_file.replace(path)


def test_without_a_file_all_settings_have_their_defaults() -> None:
    assert LiveSettings(None, read_port).current().value == 8090


def test_a_changed_file_applies_from_the_next_check_on(tmp_path: Path) -> None:
    path = tmp_path / "foveate.yaml"
    path.write_text("server: {port: 2}")
    live = LiveSettings(path, read_port, check_interval_seconds=0)

    assert live.current().value == 2
    write(path, "server: {port: 3}")
    assert (live.current().value, live.current().changes) == (3, 1)
    path.write_text("server: {port: 44}")
    assert live.current().value == 44


def test_the_activation_time_comes_from_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "foveate.yaml"
    path.write_text("server: {port: 2}")
    times = iter((100.0, 200.0))
    live = LiveSettings(path, read_port, check_interval_seconds=0, clock=lambda: next(times))

    assert live.current().since == 100.0
    write(path, "server: {port: 1}")
    assert live.current().since == 100.0
    write(path, "server: {port: 3}")
    assert live.current().since == 200.0


def test_check_next_time_finds_a_change_however_recent_the_last_check_was(tmp_path: Path) -> None:
    path = tmp_path / "foveate.yaml"
    path.write_text("server: {port: 2}")
    live = LiveSettings(path, read_port, check_interval_seconds=60)

    live.current()
    write(path, "server: {port: 3}")
    assert live.current().value == 2
    live.check_next_time()
    assert live.current().value == 3


def test_a_change_with_equal_size_and_time_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "foveate.yaml"
    path.write_text("server: {port: 2}")
    before = path.stat()
    live = LiveSettings(path, read_port, check_interval_seconds=0)
    write(path, "server: {port: 3}")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert live.current().value == 3


def test_a_file_that_becomes_readable_applies(tmp_path: Path) -> None:
    """Regression: a file of root with mode 600 was not read after its mode was corrected."""
    path = tmp_path / "foveate.yaml"
    path.write_text("server: {port: 2}")
    live = LiveSettings(path, read_port_unless_private(path), check_interval_seconds=0)
    write(path, "server: {port: 3}")
    path.chmod(0o600)
    first = live.current()

    path.chmod(0o644)

    assert (first.value, str(first.problem)) == (2, "the file: cannot be read")
    assert (live.current().value, live.current().problem) == (3, None)


def read_port_unless_private(path: Path) -> Callable[[Configuration], int]:
    """Read the port. Fails if the file is private, which the tests may read if they run as root."""

    def read(configuration: Configuration) -> int:
        if path.stat().st_mode & 0o777 == 0o600:
            raise UnreadableInput("the file", "cannot be read")
        return read_port(configuration)

    return read


@pytest.mark.parametrize("text", ["server: {prot: 3}", "server: [", "", None, "server: {port: 1}"])
def test_an_invalid_file_changes_nothing_and_is_logged(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "foveate.yaml"
    path.write_text("server: {port: 2}")
    live = LiveSettings(path, read_port, check_interval_seconds=0)
    if text is None:
        path.unlink()
    else:
        write(path, text)

    current = live.current()
    assert current.value == 2
    assert current.problem is not None

    write(path, "server: {port: 5}")
    assert (live.current().value, live.current().problem) == (5, None)


def test_an_invalid_file_at_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    with pytest.raises(UnreadableInput):
        LiveSettings(path, read_port, check_interval_seconds=0)
    for text, message in (
        ("a: 1", "unknown setting 'a'"),
        ("server:\n  port: 1", "f.yaml:2: no such port here"),
    ):
        path.write_text(text)
        with pytest.raises(BadSetting, match=message):
            LiveSettings(path, read_port, check_interval_seconds=0)


def test_the_last_valid_content_replaces_an_invalid_file_at_start(tmp_path: Path) -> None:
    """Regression: a process that was started while the file was invalid had no configuration."""
    path = tmp_path / "f.yaml"
    path.write_text("server: {port: 2}")
    before = LiveSettings(path, read_port, check_interval_seconds=0)
    write(path, "server: {port: 33}")
    before.current()
    write(path, "server: [")
    before.current()

    live = LiveSettings(path, read_port, last_valid=before.text, check_interval_seconds=0)
    assert live.current().value == 33
    assert isinstance(live.current().problem, BadSetting)

    write(path, "server: {port: 5}")
    assert (live.current().value, live.current().problem) == (5, None)


def test_a_file_that_appears_at_a_default_path_applies_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: a file that was created while the gateway ran without one was never read."""
    caplog.set_level("INFO", "foveate")
    folder_file, home = tmp_path / "here.yaml", tmp_path / "home.yaml"
    live = LiveSettings(None, read_port, default_paths=(folder_file, home), check_interval_seconds=0)
    assert (live.current().value, live.path) == (8090, None)

    write(home, "server: {prot: 2}")
    assert live.current().value == 8090
    assert isinstance(live.current().problem, BadSetting)
    restarted = LiveSettings(
        None, read_port, default_paths=(folder_file, home), last_valid=live.text, check_interval_seconds=0
    )
    assert (restarted.current().value, restarted.current().problem is None) == (8090, False)

    write(home, "server: {port: 2}")
    assert (live.current().value, live.path) == (2, home)
    write(folder_file, "server: {port: 3}")
    assert (live.current().value, live.path) == (3, folder_file)
    assert f"{folder_file} was created, the new settings are in effect" in caplog.text

    folder_file.unlink()  # as some editors do temporarily
    assert live.current().value == 3
    assert live.current().problem is not None


def test_settings_that_need_a_restart_are_listed_until_they_are_reverted(tmp_path: Path) -> None:
    path = tmp_path / "foveate.yaml"
    path.write_text("server: {port: 9001}")
    live = LiveSettings(
        path, read_port, read_fixed=lambda value: {"server.port": value}, check_interval_seconds=0
    )
    assert not live.needs_restart

    write(path, "server: {port: 9002}")
    live.current()
    assert live.needs_restart == {"server.port": 9001}

    write(path, "server: {port: 9001}")
    live.current()
    assert not live.needs_restart


def test_settings_that_need_a_restart_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: a changed port was logged as taking effect."""
    caplog.set_level("INFO", "foveate")
    path = tmp_path / "f.yaml"
    path.write_text("server: {port: 2}")
    live = LiveSettings(
        path, read_port, read_fixed=lambda value: {"server.port": value}, check_interval_seconds=0
    )

    write(path, "server: {port: 33}")
    live.current()
    assert "the new settings are in effect, except server.port: restart the gateway to apply" in caplog.text
    write(path, "server: {port: 2}  # again")
    live.current()
    assert caplog.messages[-1].endswith("the new settings are in effect")
