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
from foveate.replay.archives import ArchiveLimits, unpack, unpack_archives
from foveate.replay.recording_files import find_files, group_sessions, read_session
from tests.support.scenarios.agent_logs import CODEX, OPENHANDS

Member = tuple[str, bytes]
LOG = b"\n".join(json.dumps(line).encode() for line in CODEX)


def tar(path: Path, members: Iterable[Member], *, links: Iterable[tuple[str, str]] = ()) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        for name, target in links:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            made.addfile(link)
    return path


def zipped(path: Path, members: Iterable[Member]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members:
            made.writestr(name, content)
    return path


MAKERS = {"a.tar": tar, "a.tar.gz": tar, "a.tgz": tar, "a.zip": zipped}
every_kind = pytest.mark.parametrize(("name", "make"), MAKERS.items(), ids=list(MAKERS))
Make = Callable[[Path, Iterable[Member]], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "unpacked"
    made.mkdir()
    return made


@every_kind
def test_recordings_in_an_archive_are_read_and_other_files_are_listed(
    tmp_path: Path, name: str, make: Make
) -> None:
    logs = [(f"runs/llm-logs/{number}.json", json.dumps(log).encode()) for number, log in enumerate(OPENHANDS)]
    archive = make(tmp_path / name, [(".codex/sessions/rollout-1.jsonl", LOG), ("README.md", b"x"), *logs])

    with unpack_archives(find_files([archive])) as there:
        read = [recording for session in group_sessions(there.files)[0] for recording in read_session(session)]

    assert sorted((recording.source, len(recording.calls)) for recording in read) == [
        ("codex", 2),
        ("openhands", 2),
    ]
    assert there.skipped == (f"{archive}:README.md",)
    assert not any(path.exists() for path in there.files)


@every_kind
@pytest.mark.parametrize("bad", ["../x.jsonl", "/x.jsonl", "a/../../x.jsonl", "..\\x.jsonl", "C:\\x.jsonl"])
def test_a_member_outside_the_archive_is_rejected(
    tmp_path: Path, folder: Path, name: str, make: Make, bad: str
) -> None:
    unpacked = unpack(make(tmp_path / name, [(bad, LOG), ("good.jsonl", LOG)]), folder)

    assert [path.name for path in unpacked.files] == ["good.jsonl"]
    assert [why for _, why in unpacked.rejected] == ["leads out of the archive"]
    assert sorted(path.name for path in tmp_path.rglob("*.jsonl")) == ["good.jsonl"]
    assert not Path("/x.jsonl").exists()


def test_links_are_rejected(tmp_path: Path, folder: Path) -> None:
    archive = tar(tmp_path / "a.tar", [("good.jsonl", LOG)], links=[("link.jsonl", "/etc/passwd")])
    linked = zipfile.ZipInfo("link.jsonl")
    linked.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        made.writestr(linked, "/etc/passwd")

    assert unpack(archive, folder).rejected == (("link.jsonl", "is a link"),)
    assert unpack(tmp_path / "a.zip", folder).rejected == (("link.jsonl", "is a link"),)
    assert [path.name for path in folder.iterdir()] == ["good.jsonl"]


@every_kind
def test_an_archive_that_unpacks_to_too_much_is_rejected(
    tmp_path: Path, folder: Path, name: str, make: Make
) -> None:
    archive = make(tmp_path / name, [("a.jsonl", bytes(400_000)), ("b.md", bytes(400_000))])

    with pytest.raises(UnreadableInput, match="unpacks to more than 300,000 bytes"):
        unpack(archive, folder, ArchiveLimits(max_bytes=300_000))


def test_a_compression_bomb_is_rejected_by_its_ratio(tmp_path: Path, folder: Path) -> None:
    limits = ArchiveLimits(min_ratio_bytes=100_000)

    for name, make in MAKERS.items():
        if name != "a.tar":
            with pytest.raises(UnreadableInput, match="unpacks to more than"):
                unpack(make(tmp_path / name, [("a.jsonl", bytes(5_000_000))]), folder, limits)


@every_kind
def test_an_archive_of_too_many_members_is_rejected(
    tmp_path: Path, folder: Path, name: str, make: Make
) -> None:
    archive = make(tmp_path / name, [(f"{number}.md", b"") for number in range(6)])

    with pytest.raises(UnreadableInput, match="more than 5 members"):
        unpack(archive, folder, ArchiveLimits(max_members=5))


@every_kind
def test_of_two_members_with_the_same_name_the_last_is_read(
    tmp_path: Path, folder: Path, name: str, make: Make
) -> None:
    if make is zipped:
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive = make(tmp_path / name, [("a.jsonl", b"first"), ("a.jsonl", b"last")])
    else:
        archive = make(tmp_path / name, [("a.jsonl", b"first"), ("a.jsonl", b"last")])

    (path,) = unpack(archive, folder).files
    assert path.read_bytes() == b"last"


@every_kind
def test_a_file_in_place_of_a_folder_is_rejected(tmp_path: Path, folder: Path, name: str, make: Make) -> None:
    unpacked = unpack(make(tmp_path / name, [("a.json", b"1"), ("a.json/b.json", b"2")]), folder)

    assert [member for member, _ in unpacked.rejected] == ["a.json/b.json"]


@every_kind
def test_an_empty_or_damaged_archive_is_reported(tmp_path: Path, folder: Path, name: str, make: Make) -> None:
    assert unpack(make(tmp_path / name, []), folder).files == ()
    whole = make(tmp_path / name, [("a.jsonl", LOG * 50)]).read_bytes()
    for content in (b"", b"not an archive" * 100, whole[: len(whole) // 2], gzip.compress(b"no tar")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableInput, match="cannot be read as an archive"):
            unpack(tmp_path / name, folder)
