"""Writing a configuration: a backup, and nothing lost."""

import stat
from pathlib import Path

import pytest

from foveate.advice.edit_config import write_config
from foveate.errors import UnwritableFile


def test_the_previous_content_is_saved_with_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_bytes(b"old")
    file.chmod(0o640)

    backup = write_config(file, b"old", b"new")

    assert backup is not None
    assert backup.parent == tmp_path
    assert backup.name.startswith("foveate.yaml.bak-")
    assert (file.read_bytes(), backup.read_bytes()) == (b"new", b"old")
    assert stat.S_IMODE(backup.stat().st_mode) == stat.S_IMODE(file.stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 2


def test_two_changes_within_a_second_have_two_backups(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_bytes(b"0")

    backups = {write_config(file, str(number).encode(), str(number + 1).encode()) for number in range(4)}

    assert len(backups) == 4


def test_a_new_file_gets_its_folder_and_no_backup(tmp_path: Path) -> None:
    file = tmp_path / "data" / "foveate.yaml"

    assert write_config(file, b"", b"new") is None
    assert file.read_bytes() == b"new"


def test_a_file_that_changed_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_bytes(b"edited by hand")

    with pytest.raises(UnwritableFile, match="changed meanwhile"):
        write_config(file, b"old", b"new")

    assert file.read_bytes() == b"edited by hand"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.yaml", tmp_path / "foveate.yaml"
    target.write_bytes(b"old")
    link.symlink_to(target)

    write_config(link, b"old", b"new")

    assert link.is_symlink()
    assert target.read_bytes() == b"new"
