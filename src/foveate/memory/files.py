"""The files of a memory: which there are in the folders and files that were named.

Files read whole, as they are at one moment.
"""

import errno
import io
import os
import stat
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePath

from foveate.errors import UnreadableInput

NOTE_SUFFIXES = (".org", ".org_archive", ".md", ".markdown")
"""What a file in a folder is read for, in any case; a file that is named itself is read whatever its name."""

_SKIPPED_FOLDERS = frozenset({"node_modules"})
_LINK_LEAVES_FOLDER = (
    "is a link that leads out of the folder, and is not followed (`follow_symlinks` allows it)"
)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read, or not as it was meant; never with any text of a private node."""

    path: str
    reason: str

    def __str__(self) -> str:
        """A line for a log."""
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FileState:
    """What the system says of a file. Whoever writes to it can set back all of this but `changed_ns`."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def from_stat(cls, status: os.stat_result) -> "FileState":
        """What matters of the system's answer."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class LibraryRoot:
    """A path that was named. The keys of a folder's files begin with `prefix`; a file's is its key."""

    path: str
    prefix: str


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to read. Its key is the same wherever the folder lies."""

    path: str
    key: str
    state: FileState


@dataclass(frozen=True, slots=True)
class WalkResult:
    """What there is to read, what is wrong, and which of the named paths are not there."""

    files: list[FoundFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)


def make_roots(paths: Iterable[str]) -> tuple[LibraryRoot, ...]:
    """The paths with what tells their files apart, which is taken from names and not from where they lie.

    A single folder needs nothing. Several go by their names, and files by theirs, with that of their folder
    where two are called the same. What is still the same is numbered.
    """
    absolute_paths = list(dict.fromkeys(str(Path(path).absolute()) for path in paths))
    names = [_base_name(path) for path in absolute_paths]
    name_counts = Counter(names)
    prefixes = []
    for path, name in zip(absolute_paths, names, strict=True):
        if _is_folder(path):
            prefixes.append(f"{name}/" if len(absolute_paths) > 1 else "")
        else:
            prefixes.append(f"{_base_name(f'{path}/..')}/{name}" if name_counts[name] > 1 else name)
    return tuple(map(LibraryRoot, absolute_paths, _make_unique(prefixes)))


def find_files(roots: Sequence[LibraryRoot], *, follow_symlinks: bool = False) -> WalkResult:
    """Every file once, however many ways lead to it, and always by the same one.

    Hidden files and folders are left out, and with them what editors leave behind. Links that lead out of the
    roots are followed only with `follow_symlinks`.
    """
    walker = _Walker(None if follow_symlinks else [Path(root.path).resolve() for root in roots])
    for root in roots:
        walker.visit_root(root)
    walker.follow_links()
    return walker.result


def to_printable(name: str) -> str:
    """A name as it can be shown: without line breaks, and without bytes that are no UTF-8."""
    if name.isprintable():
        return name
    return "".join(each if each.isprintable() else _REPLACEMENT for each in name)


class _Walker:
    def __init__(self, allowed_folders: "Sequence[Path] | None") -> None:
        """Links lead nowhere else than `inside` these; None: anywhere."""
        self.result = WalkResult()
        self._allowed_folders = allowed_folders
        self._seen: set[tuple[int, int]] = set()
        self._keys: set[str] = set()
        # Links come last, so that what they lead to goes by its own place where it has one here.
        self._links: deque[tuple[str, str]] = deque()

    def visit_root(self, root: LibraryRoot) -> None:
        try:
            status = Path(root.path).stat()
        except OSError as error:
            is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            problems = self.result.missing if is_missing else self.result.problems
            problems.append(_os_problem(root.path, error))
        except ValueError as error:  # half of a surrogate pair in the name
            self.result.missing.append(Problem(to_printable(root.path), str(error)))
        else:
            if stat.S_ISDIR(status.st_mode):
                if self._is_first_visit(status):
                    self._visit_folder(root.path, root.prefix)
            else:
                self._add_file(root.path, root.prefix, status)

    def follow_links(self) -> None:
        while self._links:
            path, key = self._links.popleft()
            try:
                status = Path(path).stat()
            except FileNotFoundError:
                # Of a link to nothing the name alone says what it may have been: notes, or a folder of them.
                if _is_note(path) or not PurePath(path).suffix:
                    self.result.problems.append(Problem(to_printable(path), "links to nothing"))
            except OSError as error:
                self.result.problems.append(_os_problem(path, error))
            else:
                is_folder = stat.S_ISDIR(status.st_mode)
                if not self._may_follow(path):
                    if is_folder or _is_note(path):
                        self.result.problems.append(Problem(to_printable(path), _LINK_LEAVES_FOLDER))
                elif is_folder:
                    self._visit_linked_folder(path, key, status)
                elif _is_note(path):
                    self._add_file(path, key, status)

    def _may_follow(self, path: str) -> bool:
        target = Path(path).resolve()
        return self._allowed_folders is None or any(
            target.is_relative_to(folder) for folder in self._allowed_folders
        )

    def _visit_linked_folder(self, path: str, key: str, status: os.stat_result) -> None:
        if PurePath(path).name in _SKIPPED_FOLDERS:
            return
        if self._is_first_visit(status):
            self._visit_folder(path, f"{key}/")
        elif Path(path).parent.resolve().is_relative_to(Path(path).resolve()):
            self.result.problems.append(Problem(to_printable(path), "links back to a folder that it stands in"))

    def _visit_folder(self, path: str, prefix: str) -> None:
        """Everything in a folder and below. Not by recursion, since folders can be deeper than it goes."""
        pending = [(path, prefix)]
        while pending:
            path, prefix = pending.pop()
            below = []
            for entry in self._list_entries(path):
                key = f"{prefix}{to_printable(entry.name)}"
                try:
                    if entry.is_symlink():
                        self._links.append((entry.path, key))
                    elif entry.is_dir(follow_symlinks=False):
                        wanted = entry.name not in _SKIPPED_FOLDERS
                        if wanted and self._is_first_visit(entry.stat(follow_symlinks=False)):
                            below.append((entry.path, f"{key}/"))
                    elif _is_note(entry.name):
                        self._add_file(entry.path, key, entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # removed in the meantime
                except OSError as error:
                    self.result.problems.append(_os_problem(entry.path, error))
            pending += reversed(below)

    def _list_entries(self, path: str) -> "list[os.DirEntry[str]]":
        try:
            with os.scandir(path) as entries:
                return sorted((each for each in entries if each.name[0] != "."), key=lambda each: each.name)
        except OSError as error:
            self.result.problems.append(_os_problem(path, error))
            return []

    def _add_file(self, path: str, key: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            self.result.problems.append(Problem(to_printable(path), "is neither a file nor a folder"))
        elif self._is_first_visit(status):
            if key in self._keys:
                key = next(free for free in _numbered_names(key) if free not in self._keys)
            self._keys.add(key)
            self.result.files.append(FoundFile(path, key, FileState.from_stat(status)))

    def _is_first_visit(self, status: os.stat_result) -> bool:
        """Whether nothing has led here before."""
        identity = status.st_dev, status.st_ino
        if identity in self._seen:
            return False
        self._seen.add(identity)
        return True


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _is_note(path: str) -> bool:
    return path.lower().endswith(NOTE_SUFFIXES)


def _base_name(path: str) -> str:
    """What a path is called, also where it ends in `..`; the top of everything has no name."""
    return to_printable(PurePath(os.path.normpath(path)).name)


def _make_unique(names: Iterable[str]) -> Iterator[str]:
    """The names, all different: those that were there before get a number."""
    used: set[str] = set()
    for name in names:
        free = next(each for each in _numbered_names(name) if each not in used)
        used.add(free)
        yield free


def _numbered_names(name: str) -> Iterator[str]:
    """A name, and the name with 2, 3, … before its suffix or its slash."""
    yield name
    end = "/" if name.endswith("/") else PurePath(name).suffix
    for number in count(2):
        yield f"{name.removesuffix(end)}-{number}{end}"


def _os_problem(path: str, error: OSError) -> Problem:
    return Problem(to_printable(path), error.strerror or "cannot be read")


MAX_FILE_BYTES = 1_000_000_000
"""The most that is read of one file."""

_MAX_READ_ATTEMPTS = 3
_COARSE_TICK_NS = 2_000_000_000
_FINE_TICK_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class InvalidUtf8:
    """Bytes that are not UTF-8, from `at_byte` on; at the end of a file that can be one half of a character."""

    at_byte: int
    is_truncated: bool


def read_stable(path: str) -> tuple[bytes, FileState] | None:
    """All bytes of a file, and the state that it had before and after; None where it is still being written.

    Raises:
        UnreadableInput: it is gone, no file, too large, or not ours to read.
    """
    try:
        for _ in range(_MAX_READ_ATTEMPTS):
            # Without waiting, since a file can have become a pipe by now.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                before = os.fstat(descriptor)
                if reason := _unreadable_reason(before):
                    raise UnreadableInput(to_printable(path), reason)
                data = io.FileIO(descriptor, closefd=False).readall()
                state = FileState.from_stat(os.fstat(descriptor))
            finally:
                os.close(descriptor)
            if state == FileState.from_stat(before):
                return data, state
    except OSError as error:
        raise UnreadableInput(to_printable(path), error.strerror or "cannot be read") from None
    return None


def _unreadable_reason(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if status.st_size > MAX_FILE_BYTES:
        return f"is larger than {MAX_FILE_BYTES:,} bytes, the most that is read"
    return ""


def decode_text(data: bytes) -> str | InvalidUtf8:
    """The text that the bytes are in UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        # Told by a value, since an error would hold on to the bytes, and what is private in them is not known.
        return InvalidUtf8(error.start, error.end == len(data) and error.reason == "unexpected end of data")


def is_settled(state: FileState, read_ns: int) -> bool:
    """Whether any later change of a file would show in its state, when it was read at this time.

    Clocks of file systems stand still for some milliseconds, on old ones for two seconds: what is written again
    within one tick has the same times.
    """
    tick_ns = _FINE_TICK_NS if state.changed_ns % 1_000_000_000 else _COARSE_TICK_NS
    return read_ns - state.changed_ns > tick_ns
