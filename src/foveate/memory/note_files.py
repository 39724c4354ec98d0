"""Find the note files below the given paths, and read them consistently."""

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
"""Suffixes of files that are read from a folder, in any case. A file given by its path may have any name."""

_SKIPPED_FOLDERS = frozenset({"node_modules"})
_LINK_LEAVES_FOLDER = (
    "is a link that points outside the folder, and is not followed (`follow_symlinks` allows it)"
)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A file or folder that could not be read as intended. Never contains text of a private node."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FileState:
    """The identity, size and times of a file. Programs can reset all of these except `changed_ns`."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def from_stat(cls, status: os.stat_result) -> "FileState":
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class LibraryRoot:
    """`prefix` starts the keys of a folder's files; for a file it is the key."""

    path: str
    prefix: str


@dataclass(frozen=True, slots=True)
class FoundFile:
    """The key does not depend on where the folder is."""

    path: str
    key: str
    state: FileState


@dataclass(frozen=True, slots=True)
class WalkResult:
    files: list[FoundFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)


def make_roots(paths: Iterable[str]) -> tuple[LibraryRoot, ...]:
    """Give each path a prefix that tells its files apart, derived from names only.

    A single folder needs no prefix. Several folders get their names, files theirs, with the parent folder if
    two have the same name. Remaining duplicates are numbered.
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
    """Find every file once, always by the same path, however many links lead to it.

    Hidden files and folders are skipped. Links that leave the roots are followed only with `follow_symlinks`.
    """
    walker = _Walker(None if follow_symlinks else [Path(root.path).resolve() for root in roots])
    for root in roots:
        walker.visit_root(root)
    walker.follow_links()
    return walker.result


def to_printable(name: str) -> str:
    """Replace line breaks and bytes that are not UTF-8."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else _REPLACEMENT for char in name)


class _Walker:
    def __init__(self, allowed_folders: "Sequence[Path] | None") -> None:
        """`allowed_folders` limits where links may lead; None means anywhere."""
        self.result = WalkResult()
        self._allowed_folders = allowed_folders
        self._seen: set[tuple[int, int]] = set()
        self._keys: set[str] = set()
        # Links are followed last, so that a file is preferably found by its own path.
        self._links: deque[tuple[str, str]] = deque()

    def visit_root(self, root: LibraryRoot) -> None:
        try:
            status = Path(root.path).stat()
        except OSError as error:
            is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            problems = self.result.missing if is_missing else self.result.problems
            problems.append(_os_problem(root.path, error))
        except ValueError as error:  # an unpaired surrogate in the name
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
                # Only the name of a broken link tells whether it was for notes or a folder.
                if _is_note(path) or not PurePath(path).suffix:
                    self.result.problems.append(Problem(to_printable(path), "is a broken link"))
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
            self.result.problems.append(Problem(to_printable(path), "is a link to a folder that contains it"))

    def _visit_folder(self, path: str, prefix: str) -> None:
        """Visit a folder and everything below. Not recursive, because folders can be nested too deeply."""
        pending = [(path, prefix)]
        while pending:
            path, prefix = pending.pop()
            subfolders = []
            for entry in self._list_entries(path):
                key = f"{prefix}{to_printable(entry.name)}"
                try:
                    if entry.is_symlink():
                        self._links.append((entry.path, key))
                    elif entry.is_dir(follow_symlinks=False):
                        is_included = entry.name not in _SKIPPED_FOLDERS
                        if is_included and self._is_first_visit(entry.stat(follow_symlinks=False)):
                            subfolders.append((entry.path, f"{key}/"))
                    elif _is_note(entry.name):
                        self._add_file(entry.path, key, entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # removed in the meantime
                except OSError as error:
                    self.result.problems.append(_os_problem(entry.path, error))
            pending += reversed(subfolders)

    def _list_entries(self, path: str) -> "list[os.DirEntry[str]]":
        try:
            with os.scandir(path) as entries:
                return sorted(
                    (entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name
                )
        except OSError as error:
            self.result.problems.append(_os_problem(path, error))
            return []

    def _add_file(self, path: str, key: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            self.result.problems.append(Problem(to_printable(path), "is neither a file nor a folder"))
        elif self._is_first_visit(status):
            if key in self._keys:
                key = next(candidate for candidate in _numbered_names(key) if candidate not in self._keys)
            self._keys.add(key)
            self.result.files.append(FoundFile(path, key, FileState.from_stat(status)))

    def _is_first_visit(self, status: os.stat_result) -> bool:
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
    """The last component of a path, also if it ends in `..`; empty for the root."""
    return to_printable(PurePath(os.path.normpath(path)).name)


def _make_unique(names: Iterable[str]) -> Iterator[str]:
    used: set[str] = set()
    for name in names:
        unique_name = next(candidate for candidate in _numbered_names(name) if candidate not in used)
        used.add(unique_name)
        yield unique_name


def _numbered_names(name: str) -> Iterator[str]:
    yield name
    end = "/" if name.endswith("/") else PurePath(name).suffix
    for number in count(2):
        yield f"{name.removesuffix(end)}-{number}{end}"


def _os_problem(path: str, error: OSError) -> Problem:
    return Problem(to_printable(path), error.strerror or "cannot be read")


MAX_FILE_BYTES = 1_000_000_000

_MAX_READ_ATTEMPTS = 3
_COARSE_TICK_NS = 2_000_000_000
_FINE_TICK_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class InvalidUtf8:
    """Invalid UTF-8 from `at_byte` on. `is_truncated`: only the last character is incomplete."""

    at_byte: int
    is_truncated: bool


def read_stable(path: str) -> tuple[bytes, FileState] | None:
    """Read a file that does not change meanwhile, with its state; None if it is still being written.

    Raises:
        UnreadableInput: the file is gone, not a regular file, too large, or not readable.
    """
    try:
        for _ in range(_MAX_READ_ATTEMPTS):
            # Non-blocking, because the file may have become a pipe.
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
        return f"is larger than {MAX_FILE_BYTES:,} bytes, the limit for notes"
    return ""


def decode_text(data: bytes) -> str | InvalidUtf8:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        # Not an exception: that would keep the bytes, of which it is not known whether they are private.
        return InvalidUtf8(error.start, error.end == len(data) and error.reason == "unexpected end of data")


def is_settled(state: FileState, read_ns: int) -> bool:
    """Return whether any later change of a file would be visible in its state, if it was read at `read_ns`.

    File system clocks advance in steps of some milliseconds, on old systems of two seconds. Two writes within
    one step have the same times.
    """
    tick_ns = _FINE_TICK_NS if state.changed_ns % 1_000_000_000 else _COARSE_TICK_NS
    return read_ns - state.changed_ns > tick_ns
