"""Recordings found and read: whole folders, whoever wrote what is in them."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from foveate.errors import UnreadableInput
from foveate.replay.claude_code import read_claude_code
from foveate.replay.codex import read_codex
from foveate.replay.gemini_cli import read_gemini_cli
from foveate.replay.lists import read_lists
from foveate.replay.log_files import LogFile, plain_name
from foveate.replay.opencode import is_opencode_database, read_opencode, read_opencode_database
from foveate.replay.openhands import read_openhands
from foveate.replay.pi import read_pi
from foveate.replay.qwen_code import read_qwen_code
from foveate.replay.recognising import Peek, recognised
from foveate.replay.recordings import Broken, Recording, Source
from foveate.replay.request_logs import read_requests
from foveate.replay.tau_bench import read_tau_bench
from foveate.replay.trajectories import read_trajectories
from foveate.values import Format

SUFFIXES = (".jsonl", ".json", ".traj", ".ndjson", ".jsonl.gz", ".json.gz", ".traj.gz", ".ndjson.gz")
STORE_SUFFIXES = (".sqlite", ".sqlite3", ".db")
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
_ALL_SUFFIXES = (*SUFFIXES, *STORE_SUFFIXES, *ARCHIVE_SUFFIXES)
_FILE_URL = "sqlite:///"
_SQLITE = b"SQLite format 3\0"
# So many lines are looked at for one that tells who wrote the file.
_LOOKED_AT = 40

Reader = Callable[[LogFile, str | None], Iterable[Recording]]
_READERS: dict[Source, Reader] = {
    Source.CLAUDE_CODE: read_claude_code,
    Source.PI: read_pi,
    Source.CODEX: read_codex,
    Source.GEMINI_CLI: read_gemini_cli,
    Source.QWEN_CODE: read_qwen_code,
    Source.OPENCODE: lambda file, model: read_opencode([file], model),
    Source.OPENHANDS: lambda file, model: read_openhands([file], model),
    Source.SWE_AGENT: read_trajectories,
    Source.TAU_BENCH: read_tau_bench,
    Source.MESSAGES: read_lists,
    Source.REQUESTS: read_requests,
}


# A session of theirs is spread over many files.
_JOINT_READERS: dict[Source | None, Callable[[list[LogFile], str | None], list[Recording]]] = {
    Source.OPENHANDS: read_openhands,
    Source.OPENCODE: read_opencode,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Files that may hold recordings, and what of the folders could not be looked into, with the reason.

    `named` are those that somebody has named, and not found in a folder. `skipped` and `refused` are members of
    archives, and `names` replaces the beginnings of paths of those that were unpacked.
    """

    files: tuple[Path, ...]
    named: frozenset[Path] = frozenset()
    passed_over: tuple[tuple[Path, str], ...] = ()
    skipped: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    names: dict[str, str] = field(default_factory=dict)

    def named_to_people(self, text: str) -> str:
        """Replace paths of unpacked files in `text` by the archive and the name in it."""
        for path, name in self.names.items():
            text = text.replace(path, name)
        return text


def found(paths: Iterable[str | Path]) -> Found:
    """The files at `paths`: those named, and of folders all below them that recordings are kept in.

    Raises:
        UnreadableInput: a path leads to nothing, or a folder holds no recording.
    """
    files: dict[Path, None] = {}
    named: set[Path] = set()
    passed_over: list[tuple[Path, str]] = []
    for path in map(_path, paths):
        if not path.is_dir():
            if store_url(path) is None and not path.exists():
                raise UnreadableInput(str(path), "is not there")
            files[path] = None
            named.add(path)
            continue
        below = sorted(_below(path, passed_over))
        if not below:
            names = ", ".join(f"*{suffix}" for suffix in _ALL_SUFFIXES)
            raise UnreadableInput(str(path), f"holds no recordings: no file there is called {names}")
        files.update(dict.fromkeys(below))
    return Found(files=tuple(files), named=frozenset(named), passed_over=tuple(passed_over))


def _path(named: str | Path) -> Path:
    """Where a name leads: `~` is the user's folder, and the URL of a store in a file is that file."""
    return Path(str(named).removeprefix(_FILE_URL)).expanduser()


def store_url(path: Path) -> str | None:
    """The URL of a store on a server, of which a path has one slash less; None where it is no such path."""
    scheme, _, rest = str(path).partition(":/")
    if scheme not in ("postgresql", "postgres") or not rest:
        return None
    has_host = "/" in rest.partition("?")[0]
    return f"{scheme}:{'//' if has_host else '///'}{rest.lstrip('/')}"


def _below(folder: Path, passed_over: list[tuple[Path, str]]) -> Iterator[Path]:
    """Every file below `folder` that recordings are kept in; links to folders are not followed."""

    def note(error: OSError) -> None:
        passed_over.append((Path(error.filename), error.strerror or "cannot be read"))

    for where, folders, names in os.walk(folder, onerror=note):
        for name in [name for name in folders if name.startswith(".")]:
            folders.remove(name)
            passed_over.append((Path(where, name), "is hidden"))
        passed_over += [(Path(where, name), "is a link") for name in folders if Path(where, name).is_symlink()]
        for name in names:
            path = Path(where, name)
            if not name.lower().endswith(_ALL_SUFFIXES):
                continue
            if name.startswith("."):
                passed_over.append((path, "is hidden"))
            elif not path.is_file():
                passed_over.append((path, "is no file, or a link to nothing"))
            else:
                yield path


def read(path: Path, *, source: Source | None = None, model: str | None = None) -> Iterator[Recording]:
    """The recordings in a file, whose writer is recognised unless `source` says who it is.

    `model` is taken where a recording does not say which it was.

    Raises:
        UnreadableInput: the file cannot be opened, or nobody is known who writes such files.
        StoreUnavailable: it is a store, and cannot be read.
    """
    looked = peek(path) if source is None else Peek(source)
    source = looked.source
    if looked.unsupported:
        raise UnreadableInput(str(path), f"is {looked.unsupported}; this format is not supported")
    if source is None:
        raise UnreadableInput(str(path), _unknown(path))
    if source is Source.OPENCODE and _head(path) == _SQLITE:
        yield from read_opencode_database(path, model)
        return
    if source is Source.STORE:
        from foveate.replay.stored import read_store  # brings the database's driver

        yield from read_store(store_url(path) or str(path), model)
        return
    file = LogFile(path)
    told = list(_READERS[source](file, model))
    if not told and file.broken:  # nothing could be read, and that is told
        told = [
            Recording(name=file.name, source=source, format=Format.CHAT, calls=(), broken=tuple(file.broken))
        ]
    yield from told


def peek(path: Path) -> Peek:
    """Who wrote a file, as far as its head tells.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    if store_url(path) is not None:
        return Peek(Source.STORE)
    if _head(path) == _SQLITE:
        from foveate.store.reading import is_store  # brings the database's driver

        if is_store(path):
            return Peek(Source.STORE)
        return Peek(Source.OPENCODE if is_opencode_database(path) else None)
    with closing(LogFile(path).lines()) as lines:
        told = recognised([line for _, line in islice(lines, _LOOKED_AT)])
    if told.source is None:  # documents over many lines each
        documents = LogFile(path).documents()
        told = recognised([document for _, document in islice(documents, _LOOKED_AT)])
    return told


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    except OSError as error:
        raise UnreadableInput(str(path), error.strerror or "cannot be read") from None


def _unknown(path: Path) -> str:
    file = LogFile(path)
    with closing(file.lines()) as lines:
        looked = len(list(islice(lines, _LOOKED_AT)))
    if not looked and not file.broken:
        return "is empty"
    first = file.broken[0] if file.broken else None
    told = f" (line {first.line}: {first.why})" if first is not None else ""
    return (
        f"is not a recording of a known format{told}: neither a session log of a coding agent (Claude Code, "
        "Codex, pi, Gemini CLI, Qwen Code, opencode), nor LLM logs of OpenHands, a trajectory of SWE-agent, a "
        "result file of tau-bench, nor messages or requests as JSON; --format says what it is "
        f"({', '.join(Source)})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Files that belong together: a session's own, and those of the agents that it sent.

    `unsupported` names their format if it is recognised and cannot be replayed.
    """

    files: tuple[Path, ...]
    source: Source | None
    unsupported: str = ""


def sessions(files: Sequence[Path], *, source: Source | None = None) -> tuple[list[Session], list[Broken]]:
    """The files, those of sub-agents put with the session that sent them; and those that cannot be opened.

    Only the head of each is read, so that a folder of any size takes little memory. What is no recording that
    is known has no source.
    """
    own: list[tuple[Path, Peek]] = []
    agents: dict[str, list[Path]] = {}
    broken: list[Broken] = []
    for path in files:
        try:
            looked = peek(path)
        except UnreadableInput as error:
            broken.append(Broken(line=0, why=error.reason, file=str(path)))
            continue
        if looked.is_agent and source in (None, Source.CLAUDE_CODE):
            agents.setdefault(looked.session, []).append(path)
        else:
            own.append((path, looked))
    told = []
    grouped: dict[tuple[Source, str], list[Path]] = {}
    for path, looked in own:
        if (key := _group(path, looked, source)) is not None:
            grouped.setdefault(key, []).append(path)
            continue
        # A session that was resumed begins with lines of the one before; its file has its own name.
        names = (looked.session, plain_name(path)) if looked.source is Source.CLAUDE_CODE else ()
        sent = [one for name in dict.fromkeys(names) if name for one in agents.pop(name, [])]
        named = "" if source is not None else looked.unsupported
        told.append(Session(files=(path, *sent), source=source or looked.source, unsupported=named))
    told += [Session(files=tuple(together), source=key[0]) for key, together in grouped.items()]
    told += [Session(files=tuple(alone), source=Source.CLAUDE_CODE) for alone in agents.values()]
    return told, broken


def _group(path: Path, looked: Peek, source: Source | None) -> tuple[Source, str] | None:
    """Name the group of a file whose session is spread over many files; None if it stands alone."""
    found = source or looked.source
    if found is Source.OPENHANDS:  # one file for each call
        return found, str(path.parent)
    if found is Source.OPENCODE and looked.session and path.suffix == ".json":  # one for each message and part
        return found, looked.session
    return None


def read_session(session: Session, *, model: str | None = None) -> list[Recording]:
    """The recordings of files that belong together, one for each session among them.

    Raises:
        UnreadableInput: a file cannot be opened, or nobody is known who writes such files.
    """
    if len(session.files) > 1 and session.source in _JOINT_READERS:
        return _JOINT_READERS[session.source]([LogFile(path) for path in session.files], model)
    together: dict[str, Recording] = {}
    apart: list[Recording] = []
    for path in session.files:
        for recording in read(path, source=session.source, model=model):
            if recording.source is not Source.CLAUDE_CODE:
                apart.append(recording)
                continue
            known = together.get(recording.name)
            together[recording.name] = recording if known is None else _joined(known, recording)
    return [*together.values(), *apart]


def _joined(one: Recording, other: Recording) -> Recording:
    dollars = [said for said in (one.said_dollars, other.said_dollars) if said is not None]
    known = {call.id for call in one.calls}
    calls = [*one.calls, *(call for call in other.calls if call.id not in known)]
    return replace(
        one,
        calls=tuple(sorted(calls, key=lambda call: call.at)),
        lacks=one.lacks | other.lacks,
        broken=one.broken + other.broken,
        said_dollars=sum(dollars[1:], dollars[0]) if dollars else None,
        size_bytes=one.size_bytes + other.size_bytes,
    )
