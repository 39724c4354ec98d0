"""Finds and reads recordings in files, folders and archives, whatever program wrote them.

Archives (`.tar`, `.tar.gz`, `.tgz`, `.zip`) are unpacked into a temporary folder, within limits. Only regular
files that may be recordings are written. Links and members outside the folder are rejected; an archive that
unpacks to more than the limits is rejected as a whole.
"""

import gzip
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, cast

from foveate.errors import UnreadableInput
from foveate.model import Format
from foveate.replay.readers.claude_code import read_claude_code
from foveate.replay.readers.codex import read_codex
from foveate.replay.readers.format_detection import DetectedFormat, detect_recording_format
from foveate.replay.readers.gemini_cli import read_gemini_cli
from foveate.replay.readers.log_file import LogFile, strip_suffixes
from foveate.replay.readers.message_lists import read_message_lists
from foveate.replay.readers.opencode import is_opencode_database, read_opencode, read_opencode_database
from foveate.replay.readers.openhands import read_openhands
from foveate.replay.readers.pi import read_pi
from foveate.replay.readers.qwen_code import read_qwen_code
from foveate.replay.readers.request_logs import read_request_logs
from foveate.replay.readers.swe_agent import read_trajectories
from foveate.replay.readers.tau_bench import read_tau_bench
from foveate.replay.recording import Recording, RecordingSource, UnreadableLine

SUFFIXES = (".jsonl", ".json", ".traj", ".ndjson", ".jsonl.gz", ".json.gz", ".traj.gz", ".ndjson.gz")
STORE_SUFFIXES = (".sqlite", ".sqlite3", ".db")
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
_RECORDING_SUFFIXES = (*SUFFIXES, *STORE_SUFFIXES, *ARCHIVE_SUFFIXES)
_FILE_URL = "sqlite:///"
_SQLITE_HEADER = b"SQLite format 3\0"
# Number of lines searched for one that identifies the format.
_MAX_PEEKED_LINES = 40

ReadRecordings = Callable[[LogFile, str | None], Iterable[Recording]]
_READERS: dict[RecordingSource, ReadRecordings] = {
    RecordingSource.CLAUDE_CODE: read_claude_code,
    RecordingSource.PI: read_pi,
    RecordingSource.CODEX: read_codex,
    RecordingSource.GEMINI_CLI: read_gemini_cli,
    RecordingSource.QWEN_CODE: read_qwen_code,
    RecordingSource.OPENCODE: lambda file, model: read_opencode([file], model),
    RecordingSource.OPENHANDS: lambda file, model: read_openhands([file], model),
    RecordingSource.SWE_AGENT: read_trajectories,
    RecordingSource.TAU_BENCH: read_tau_bench,
    RecordingSource.MESSAGES: read_message_lists,
    RecordingSource.REQUESTS: read_request_logs,
}


# Readers of formats that spread a session over many files.
_JOINT_READERS: dict[RecordingSource | None, Callable[[list[LogFile], str | None], list[Recording]]] = {
    RecordingSource.OPENHANDS: read_openhands,
    RecordingSource.OPENCODE: read_opencode,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """Files that may contain recordings, and what was ignored in folders, with the reason.

    `explicit` are files that were named, not found in a folder. `skipped` and `rejected` are members of
    archives. `display_names` maps path prefixes of unpacked files to names to show.
    """

    files: tuple[Path, ...]
    explicit: frozenset[Path] = frozenset()
    ignored: tuple[tuple[Path, str], ...] = ()
    skipped: tuple[str, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    display_names: dict[str, str] = field(default_factory=dict)

    def replace_paths(self, text: str) -> str:
        """Replace paths of unpacked files in `text` by the archive and the member's name."""
        for path, name in self.display_names.items():
            text = text.replace(path, name)
        return text


def find_files(paths: Iterable[str | Path]) -> FoundFiles:
    """The files at `paths`: those named, and all files in folders that may contain recordings.

    Raises:
        UnreadableInput: a path does not exist, or a folder contains no recording.
    """
    files: dict[Path, None] = {}
    explicit: set[Path] = set()
    ignored: list[tuple[Path, str]] = []
    for path in map(_parse_path, paths):
        if not path.is_dir():
            if parse_store_url(path) is None and not path.exists():
                raise UnreadableInput(str(path), "does not exist")
            files[path] = None
            explicit.add(path)
            continue
        in_folder = sorted(_walk_folder(path, ignored))
        if not in_folder:
            names = ", ".join(f"*{suffix}" for suffix in _RECORDING_SUFFIXES)
            raise UnreadableInput(str(path), f"contains no recordings: no file is named {names}")
        files.update(dict.fromkeys(in_folder))
    return FoundFiles(files=tuple(files), explicit=frozenset(explicit), ignored=tuple(ignored))


def _parse_path(path: str | Path) -> Path:
    """Expand `~`, and convert the URL of a SQLite store to its path."""
    return Path(str(path).removeprefix(_FILE_URL)).expanduser()


def parse_store_url(path: Path) -> str | None:
    """The URL of a store on a server, of which `Path` has removed a slash; None if it is not such a path."""
    scheme, _, rest = str(path).partition(":/")
    if scheme not in ("postgresql", "postgres") or not rest:
        return None
    has_host = "/" in rest.partition("?")[0]
    return f"{scheme}:{'//' if has_host else '///'}{rest.lstrip('/')}"


def _walk_folder(folder: Path, ignored: list[tuple[Path, str]]) -> Iterator[Path]:
    """All files below `folder` that may contain recordings. Links to folders are not followed."""

    def note(error: OSError) -> None:
        ignored.append((Path(error.filename), error.strerror or "cannot be read"))

    for parent, folders, names in os.walk(folder, onerror=note):
        for name in [name for name in folders if name.startswith(".")]:
            folders.remove(name)
            ignored.append((Path(parent, name), "is hidden"))
        ignored += [(Path(parent, name), "is a link") for name in folders if Path(parent, name).is_symlink()]
        for name in names:
            path = Path(parent, name)
            if not name.lower().endswith(_RECORDING_SUFFIXES):
                continue
            if name.startswith("."):
                ignored.append((path, "is hidden"))
            elif not path.is_file():
                ignored.append((path, "is not a file, or is a broken link"))
            else:
                yield path


def read_recordings(
    path: Path, *, source: RecordingSource | None = None, model: str | None = None
) -> Iterator[Recording]:
    """Read the recordings in a file. The format is detected unless `source` is given.

    `model` is used if a recording does not name its model.

    Raises:
        UnreadableInput: the file cannot be opened, or its format is unknown.
        StoreUnavailable: it is a store, and cannot be read.
    """
    detected = peek_file(path) if source is None else DetectedFormat(source)
    source = detected.source
    if detected.unsupported:
        raise UnreadableInput(str(path), f"is {detected.unsupported}; this format is not supported")
    if source is None:
        raise UnreadableInput(str(path), _describe_unknown_file(path))
    if source is RecordingSource.OPENCODE and _read_header(path) == _SQLITE_HEADER:
        yield from read_opencode_database(path, model)
        return
    if source is RecordingSource.STORE:
        from foveate.replay.readers.foveate_store import read_store  # imports the database driver

        yield from read_store(parse_store_url(path) or str(path), model)
        return
    file = LogFile(path)
    recordings = list(_READERS[source](file, model))
    if not recordings and file.unreadable:  # reports that nothing could be read
        recordings = [
            Recording(
                name=file.name, source=source, format=Format.CHAT, calls=(), unreadable=tuple(file.unreadable)
            )
        ]
    yield from recordings


def peek_file(path: Path) -> DetectedFormat:
    """Detect the format of a file from its first lines.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    if parse_store_url(path) is not None:
        return DetectedFormat(RecordingSource.STORE)
    if _read_header(path) == _SQLITE_HEADER:
        from foveate.store.store import is_store_file  # imports the database driver

        if is_store_file(path):
            return DetectedFormat(RecordingSource.STORE)
        return DetectedFormat(RecordingSource.OPENCODE if is_opencode_database(path) else None)
    with closing(LogFile(path).lines()) as lines:
        detected = detect_recording_format([line for _, line in islice(lines, _MAX_PEEKED_LINES)])
    if detected.source is None:  # documents that span many lines
        documents = LogFile(path).documents()
        detected = detect_recording_format([document for _, document in islice(documents, _MAX_PEEKED_LINES)])
    return detected


def _read_header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_HEADER))
    except OSError as error:
        raise UnreadableInput(str(path), error.strerror or "cannot be read") from None


def _describe_unknown_file(path: Path) -> str:
    file = LogFile(path)
    with closing(file.lines()) as lines:
        line_count = len(list(islice(lines, _MAX_PEEKED_LINES)))
    if not line_count and not file.unreadable:
        return "is empty"
    first = file.unreadable[0] if file.unreadable else None
    detail = f" (line {first.line}: {first.reason})" if first is not None else ""
    return (
        f"is not a recording of a known format{detail}: neither a session log of a coding agent (Claude Code, "
        "Codex, pi, Gemini CLI, Qwen Code, opencode), nor LLM logs of OpenHands, a trajectory of SWE-agent, a "
        "result file of tau-bench, nor messages or requests as JSON; if it is one of these, set the format "
        f"with --format ({', '.join(RecordingSource)})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFiles:
    """Files that belong together: those of a session and of its sub-agents.

    `unsupported` names their format if it is recognized but cannot be replayed.
    """

    files: tuple[Path, ...]
    source: RecordingSource | None
    unsupported: str = ""


def group_sessions(
    files: Sequence[Path], *, source: RecordingSource | None = None
) -> tuple[list[SessionFiles], list[UnreadableLine]]:
    """Group files by session, those of sub-agents with their parent; also return files that cannot be opened.

    Only the first lines of each file are read, so a folder of any size takes little memory. Files of unknown
    format have no source.
    """
    main_files: list[tuple[Path, DetectedFormat]] = []
    agents: dict[str, list[Path]] = {}
    unreadable: list[UnreadableLine] = []
    for path in files:
        try:
            detected = peek_file(path)
        except UnreadableInput as error:
            unreadable.append(UnreadableLine(line=0, reason=error.reason, file=str(path)))
            continue
        if detected.is_agent and source in (None, RecordingSource.CLAUDE_CODE):
            agents.setdefault(detected.session, []).append(path)
        else:
            main_files.append((path, detected))
    sessions = []
    grouped: dict[tuple[RecordingSource, str], list[Path]] = {}
    for path, detected in main_files:
        if (key := _group_key(path, detected, source)) is not None:
            grouped.setdefault(key, []).append(path)
            continue
        # A resumed session begins with lines of the previous one, but its file has its own name.
        names = (
            (detected.session, strip_suffixes(path)) if detected.source is RecordingSource.CLAUDE_CODE else ()
        )
        agent_files = [
            agent_file for name in dict.fromkeys(names) if name for agent_file in agents.pop(name, [])
        ]
        unsupported = "" if source is not None else detected.unsupported
        sessions.append(
            SessionFiles(files=(path, *agent_files), source=source or detected.source, unsupported=unsupported)
        )
    sessions += [SessionFiles(files=tuple(paths), source=key[0]) for key, paths in grouped.items()]
    sessions += [
        SessionFiles(files=tuple(paths), source=RecordingSource.CLAUDE_CODE) for paths in agents.values()
    ]
    return sessions, unreadable


def _group_key(
    path: Path, detected: DetectedFormat, source: RecordingSource | None
) -> tuple[RecordingSource, str] | None:
    """The group of a file whose session is spread over many files; None if it stands alone."""
    file_source = source or detected.source
    if file_source is RecordingSource.OPENHANDS:  # one file per call
        return file_source, str(path.parent)
    if (
        file_source is RecordingSource.OPENCODE and detected.session and path.suffix == ".json"
    ):  # one file per message and part
        return file_source, detected.session
    return None


def read_session(session: SessionFiles, *, model: str | None = None) -> list[Recording]:
    """Read the recordings of files that belong together.

    Raises:
        UnreadableInput: a file cannot be opened, or its format is unknown.
    """
    if len(session.files) > 1 and session.source in _JOINT_READERS:
        return _JOINT_READERS[session.source]([LogFile(path) for path in session.files], model)
    by_name: dict[str, Recording] = {}
    others: list[Recording] = []
    for path in session.files:
        for recording in read_recordings(path, source=session.source, model=model):
            if recording.source is not RecordingSource.CLAUDE_CODE:
                others.append(recording)
                continue
            known = by_name.get(recording.name)
            by_name[recording.name] = recording if known is None else _merge_recordings(known, recording)
    return [*by_name.values(), *others]


def _merge_recordings(first: Recording, second: Recording) -> Recording:
    dollars = [amount for amount in (first.reported_dollars, second.reported_dollars) if amount is not None]
    known = {call.id for call in first.calls}
    calls = [*first.calls, *(call for call in second.calls if call.id not in known)]
    return replace(
        first,
        calls=tuple(sorted(calls, key=lambda call: call.at)),
        missing=first.missing | second.missing,
        unreadable=first.unreadable + second.unreadable,
        reported_dollars=sum(dollars[1:], dollars[0]) if dollars else None,
        size_bytes=first.size_bytes + second.size_bytes,
    )


_DRIVE = re.compile(r"[A-Za-z]:")
_CHUNK_BYTES = 1024 * 1024
_ENCRYPTED = 0x1
_ARCHIVE_ERRORS = (
    OSError,
    EOFError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """`max_ratio` applies only beyond `min_ratio_bytes`."""

    max_bytes: int = 8 * 1024**3
    max_members: int = 200_000
    max_ratio: int = 200
    min_ratio_bytes: int = 64 * 1024**2


DEFAULT_LIMITS = ArchiveLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedArchive:
    files: tuple[Path, ...]
    skipped: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...]


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


@contextmanager
def unpack_archives(found_files: FoundFiles, limits: ArchiveLimits = DEFAULT_LIMITS) -> Iterator[FoundFiles]:
    """Replace the archives in `found_files` by their files, which are deleted on exit.

    `FoundFiles.display_names` maps their paths to names to show.
    """
    archives = [path for path in found_files.files if is_archive(path)]
    if not archives:
        yield found_files
        return
    with tempfile.TemporaryDirectory(prefix="foveate-") as temporary:
        files = [path for path in found_files.files if path not in archives]
        skipped, rejected, names = [], [], {}
        for number, archive in enumerate(archives):
            folder = Path(temporary, str(number))
            folder.mkdir()
            names[f"{folder}/"] = f"{archive}:"
            try:
                unpacked = unpack(archive, folder, limits)
            except UnreadableInput as error:
                rejected.append((str(archive), error.reason))
                continue
            files += unpacked.files
            skipped += [f"{archive}:{name}" for name in unpacked.skipped]
            rejected += [(f"{archive}:{name}", reason) for name, reason in unpacked.rejected]
        yield replace(
            found_files,
            files=tuple(files),
            skipped=tuple(skipped),
            rejected=tuple(rejected),
            display_names=names,
        )


def unpack(archive: Path, folder: Path, limits: ArchiveLimits = DEFAULT_LIMITS) -> UnpackedArchive:
    """Write the files of an archive that may be recordings to `folder`.

    Raises:
        UnreadableInput: it is damaged, is not an archive, or unpacks to more than the limits.
    """
    writer = _MemberWriter(archive, folder, limits)
    try:
        if archive.name.lower().endswith(".zip"):
            _unpack_zip(archive, writer)
        else:
            _unpack_tar(archive, writer)
    except _ARCHIVE_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise UnreadableInput(str(archive), f"cannot be read as an archive: {reason}") from None
    return writer.result()


class _MemberWriter:
    def __init__(self, archive: Path, folder: Path, limits: ArchiveLimits) -> None:
        self.max_bytes = min(
            limits.max_bytes, max(limits.max_ratio * archive.stat().st_size, limits.min_ratio_bytes)
        )
        self._archive = archive
        self._folder = folder
        self._limits = limits
        self._members = 0
        self._bytes = 0
        self._files: dict[Path, None] = {}
        self._skipped: list[str] = []
        self._rejected: list[tuple[str, str]] = []

    def result(self) -> UnpackedArchive:
        return UnpackedArchive(
            files=tuple(sorted(self._files)), skipped=tuple(self._skipped), rejected=tuple(self._rejected)
        )

    def count_member(self) -> None:
        self._members += 1
        if self._members > self._limits.max_members:
            raise UnreadableInput(
                str(self._archive), f"is rejected: it has more than {self._limits.max_members:,} members"
            )

    def count_bytes(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self.max_bytes:
            raise UnreadableInput(
                str(self._archive),
                f"is rejected: it unpacks to more than {self.max_bytes:,} bytes; unpack it if you trust it",
            )

    def reject(self, name: str, reason: str) -> None:
        self._rejected.append((name, reason))

    def skip(self, name: str) -> None:
        self._skipped.append(name)

    def target_path(self, name: str) -> Path | None:
        plain = name.replace("\\", "/")
        parts = PurePosixPath(plain).parts
        if plain.startswith("/") or _DRIVE.match(plain) or ".." in parts or "\0" in plain:
            self.reject(name, "points outside the archive")
            return None
        if not plain.lower().endswith((*SUFFIXES, *STORE_SUFFIXES)):
            self.skip(name)
            return None
        return self._folder.joinpath(*parts)

    def write(self, name: str, path: Path, source: IO[bytes], *, is_counted: bool = False) -> None:
        """Write a member. Of two with the same name, the last one stays."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            target = path.open("wb")
        except (OSError, ValueError) as error:
            self.reject(name, f"cannot be written: {getattr(error, 'strerror', None) or error}")
            return
        with target:
            if is_counted:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            while not is_counted and (chunk := source.read(_CHUNK_BYTES)):
                self.count_bytes(len(chunk))
                target.write(chunk)
        self._files[path] = None


class _CountedStream:
    """The unpacked bytes of a tar archive, counted as they are read, including headers and skipped members."""

    def __init__(self, source: IO[bytes], writer: _MemberWriter) -> None:
        self._source = source
        self._writer = writer

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(_CHUNK_BYTES if size < 0 else min(size, _CHUNK_BYTES))
        self._writer.count_bytes(len(data))
        return data


def _unpack_tar(archive: Path, writer: _MemberWriter) -> None:
    with archive.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_gzip else raw
        stream = cast("IO[bytes]", _CountedStream(source, writer))
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                writer.count_member()
                if member.isdir():
                    continue
                if member.issym() or member.islnk():
                    writer.reject(member.name, "is a link")
                elif not member.isreg() or member.issparse():
                    writer.reject(member.name, "is not a regular file")
                elif (path := writer.target_path(member.name)) is not None:
                    content = members.extractfile(member)
                    if content is not None:
                        writer.write(member.name, path, content, is_counted=True)


def _unpack_zip(archive: Path, writer: _MemberWriter) -> None:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            writer.count_member()
            name, mode = member.filename, member.external_attr >> 16
            if member.is_dir():
                continue
            if stat.S_ISLNK(mode):
                writer.reject(name, "is a link")
            elif member.flag_bits & _ENCRYPTED:
                writer.reject(name, "is encrypted")
            elif (path := writer.target_path(name)) is not None:
                with members.open(member) as content:
                    writer.write(name, path, content)
