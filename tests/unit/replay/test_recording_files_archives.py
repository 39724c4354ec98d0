"""Archives of recordings: files that may be recordings are read, and nothing is written outside the folder."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from foveate.errors import UnreadableInput
from foveate.replay.recording_files import (
    ArchiveLimits,
    find_files,
    group_sessions,
    read_session,
    unpack,
    unpack_archives,
)
from tests.support.scenarios.agent_logs import CODEX, OPENHANDS

Member = tuple[str, bytes]
LOG = b"\n".join(json.dumps(line).encode() for line in CODEX)


def write_tar(path: Path, members: Iterable[Member], *, links: Iterable[tuple[str, str]] = ()) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in links:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return path


def write_zip(path: Path, members: Iterable[Member]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


WRITERS = {"a.tar": write_tar, "a.tar.gz": write_tar, "a.tgz": write_tar, "a.zip": write_zip}
each_archive_format = pytest.mark.parametrize(("name", "write_archive"), WRITERS.items(), ids=list(WRITERS))
WriteArchive = Callable[[Path, Iterable[Member]], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "unpacked"
    folder.mkdir()
    return folder


@each_archive_format
def test_recordings_in_an_archive_are_read_and_other_files_are_listed(
    tmp_path: Path, name: str, write_archive: WriteArchive
) -> None:
    logs = [(f"runs/llm-logs/{number}.json", json.dumps(log).encode()) for number, log in enumerate(OPENHANDS)]
    archive = write_archive(
        tmp_path / name, [(".codex/sessions/rollout-1.jsonl", LOG), ("README.md", b"x"), *logs]
    )

    with unpack_archives(find_files([archive])) as unpacked:
        recordings = [
            recording for session in group_sessions(unpacked.files)[0] for recording in read_session(session)
        ]

    assert sorted((recording.source, len(recording.calls)) for recording in recordings) == [
        ("codex", 2),
        ("openhands", 2),
    ]
    assert unpacked.skipped == (f"{archive}:README.md",)
    assert not any(path.exists() for path in unpacked.files)


@each_archive_format
@pytest.mark.parametrize(
    "bad_name", ["../x.jsonl", "/x.jsonl", "a/../../x.jsonl", "..\\x.jsonl", "C:\\x.jsonl"]
)
def test_a_member_outside_the_archive_is_rejected(
    tmp_path: Path, folder: Path, name: str, write_archive: WriteArchive, bad_name: str
) -> None:
    unpacked = unpack(write_archive(tmp_path / name, [(bad_name, LOG), ("good.jsonl", LOG)]), folder)

    assert [path.name for path in unpacked.files] == ["good.jsonl"]
    assert [reason for _, reason in unpacked.rejected] == ["points outside the archive"]
    assert sorted(path.name for path in tmp_path.rglob("*.jsonl")) == ["good.jsonl"]
    assert not Path("/x.jsonl").exists()


def test_links_are_rejected(tmp_path: Path, folder: Path) -> None:
    archive = write_tar(tmp_path / "a.tar", [("good.jsonl", LOG)], links=[("link.jsonl", "/etc/passwd")])
    link_info = zipfile.ZipInfo("link.jsonl")
    link_info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zip_file:
        zip_file.writestr(link_info, "/etc/passwd")

    assert unpack(archive, folder).rejected == (("link.jsonl", "is a link"),)
    assert unpack(tmp_path / "a.zip", folder).rejected == (("link.jsonl", "is a link"),)
    assert [path.name for path in folder.iterdir()] == ["good.jsonl"]


@each_archive_format
def test_an_archive_that_unpacks_to_too_much_is_rejected(
    tmp_path: Path, folder: Path, name: str, write_archive: WriteArchive
) -> None:
    archive = write_archive(tmp_path / name, [("a.jsonl", bytes(400_000)), ("b.md", bytes(400_000))])

    with pytest.raises(UnreadableInput, match="unpacks to more than 300,000 bytes"):
        unpack(archive, folder, ArchiveLimits(max_bytes=300_000))


def test_a_compression_bomb_is_rejected_by_its_ratio(tmp_path: Path, folder: Path) -> None:
    limits = ArchiveLimits(min_ratio_bytes=100_000)

    for name, write_archive in WRITERS.items():
        if name != "a.tar":
            with pytest.raises(UnreadableInput, match="unpacks to more than"):
                unpack(write_archive(tmp_path / name, [("a.jsonl", bytes(5_000_000))]), folder, limits)


@each_archive_format
def test_an_archive_of_too_many_members_is_rejected(
    tmp_path: Path, folder: Path, name: str, write_archive: WriteArchive
) -> None:
    archive = write_archive(tmp_path / name, [(f"{number}.md", b"") for number in range(6)])

    with pytest.raises(UnreadableInput, match="more than 5 members"):
        unpack(archive, folder, ArchiveLimits(max_members=5))


@each_archive_format
def test_of_two_members_with_the_same_name_the_last_is_read(
    tmp_path: Path, folder: Path, name: str, write_archive: WriteArchive
) -> None:
    if write_archive is write_zip:
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive = write_archive(tmp_path / name, [("a.jsonl", b"first"), ("a.jsonl", b"last")])
    else:
        archive = write_archive(tmp_path / name, [("a.jsonl", b"first"), ("a.jsonl", b"last")])

    (path,) = unpack(archive, folder).files
    assert path.read_bytes() == b"last"


@each_archive_format
def test_a_file_in_place_of_a_folder_is_rejected(
    tmp_path: Path, folder: Path, name: str, write_archive: WriteArchive
) -> None:
    unpacked = unpack(write_archive(tmp_path / name, [("a.json", b"1"), ("a.json/b.json", b"2")]), folder)

    assert [member for member, _ in unpacked.rejected] == ["a.json/b.json"]


@each_archive_format
def test_an_empty_or_damaged_archive_is_reported(
    tmp_path: Path, folder: Path, name: str, write_archive: WriteArchive
) -> None:
    assert unpack(write_archive(tmp_path / name, []), folder).files == ()
    archive_bytes = write_archive(tmp_path / name, [("a.jsonl", LOG * 50)]).read_bytes()
    for content in (
        b"",
        b"not an archive" * 100,
        archive_bytes[: len(archive_bytes) // 2],
        gzip.compress(b"no tar"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableInput, match="cannot be read as an archive"):
            unpack(tmp_path / name, folder)
