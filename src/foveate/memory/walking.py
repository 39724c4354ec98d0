"""The files of a memory: which there are in the folders and files that were named."""

import errno
import os
import stat
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePath

SUFFIXES = (".org", ".org_archive", ".md", ".markdown")
"""What a file in a folder is read for, in any case; a file that is named itself is read whatever its name."""

_SKIPPED_FOLDERS = frozenset({"node_modules"})
_LEADS_OUT = "is a link that leads out of the folder, and is not followed (`follow_symlinks` allows it)"
_UNSHOWN = "\N{REPLACEMENT CHARACTER}"


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
    def of(cls, answer: os.stat_result) -> "FileState":
        """What matters of the system's answer."""
        return cls(answer.st_dev, answer.st_ino, answer.st_size, answer.st_mtime_ns, answer.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class Root:
    """A path that was named. The keys of a folder's files begin with `prefix`; a file's is its key."""

    path: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Found:
    """A file to read. Its key is the same wherever the folder lies."""

    path: str
    key: str
    state: FileState


@dataclass(frozen=True, slots=True)
class Walk:
    """What there is to read, what is wrong, and which of the named paths are not there."""

    files: list[Found] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)


def rooted(paths: Iterable[str]) -> tuple[Root, ...]:
    """The paths with what tells their files apart, which is taken from names and not from where they lie.

    A single folder needs nothing. Several go by their names, and files by theirs, with that of their folder
    where two are called the same. What is still the same is numbered.
    """
    whole = list(dict.fromkeys(str(Path(path).absolute()) for path in paths))
    names = [_name(path) for path in whole]
    often = Counter(names)
    wanted = []
    for path, name in zip(whole, names, strict=True):
        if _is_folder(path):
            wanted.append(f"{name}/" if len(whole) > 1 else "")
        else:
            wanted.append(f"{_name(f'{path}/..')}/{name}" if often[name] > 1 else name)
    return tuple(map(Root, whole, _numbered(wanted)))


def walk(roots: Sequence[Root], *, follow_symlinks: bool = False) -> Walk:
    """Every file once, however many ways lead to it, and always by the same one.

    Hidden files and folders are left out, and with them what editors leave behind. Links that lead out of the
    roots are followed only with `follow_symlinks`.
    """
    walker = _Walker(None if follow_symlinks else [Path(root.path).resolve() for root in roots])
    for root in roots:
        walker.go_in(root)
    walker.follow_links()
    return walker.walk


def shown(name: str) -> str:
    """A name as it can be shown: without line breaks, and without bytes that are no UTF-8."""
    if name.isprintable():
        return name
    return "".join(each if each.isprintable() else _UNSHOWN for each in name)


class _Walker:
    def __init__(self, inside: "Sequence[Path] | None") -> None:
        """Links lead nowhere else than `inside` these; None: anywhere."""
        self.walk = Walk()
        self._inside = inside
        self._seen: set[tuple[int, int]] = set()
        self._keys: set[str] = set()
        # Links come last, so that what they lead to goes by its own place where it has one here.
        self._links: deque[tuple[str, str]] = deque()

    def go_in(self, root: Root) -> None:
        try:
            answer = Path(root.path).stat()
        except OSError as error:
            is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            told = self.walk.missing if is_missing else self.walk.problems
            told.append(_problem(root.path, error))
        except ValueError as error:  # half of a surrogate pair in the name
            self.walk.missing.append(Problem(shown(root.path), str(error)))
        else:
            if stat.S_ISDIR(answer.st_mode):
                if self._is_new(answer):
                    self._folders(root.path, root.prefix)
            else:
                self._file(root.path, root.prefix, answer)

    def follow_links(self) -> None:
        while self._links:
            path, key = self._links.popleft()
            try:
                answer = Path(path).stat()
            except FileNotFoundError:
                # Of a link to nothing the name alone says what it may have been: notes, or a folder of them.
                if _is_note(path) or not PurePath(path).suffix:
                    self.walk.problems.append(Problem(shown(path), "links to nothing"))
            except OSError as error:
                self.walk.problems.append(_problem(path, error))
            else:
                is_folder = stat.S_ISDIR(answer.st_mode)
                if not self._may_follow(path):
                    if is_folder or _is_note(path):
                        self.walk.problems.append(Problem(shown(path), _LEADS_OUT))
                elif is_folder:
                    self._linked_folder(path, key, answer)
                elif _is_note(path):
                    self._file(path, key, answer)

    def _may_follow(self, path: str) -> bool:
        target = Path(path).resolve()
        return self._inside is None or any(target.is_relative_to(folder) for folder in self._inside)

    def _linked_folder(self, path: str, key: str, answer: os.stat_result) -> None:
        if PurePath(path).name in _SKIPPED_FOLDERS:
            return
        if self._is_new(answer):
            self._folders(path, f"{key}/")
        elif Path(path).parent.resolve().is_relative_to(Path(path).resolve()):
            self.walk.problems.append(Problem(shown(path), "links back to a folder that it stands in"))

    def _folders(self, path: str, prefix: str) -> None:
        """Everything in a folder and below. Not by recursion, since folders can be deeper than it goes."""
        pending = [(path, prefix)]
        while pending:
            path, prefix = pending.pop()
            below = []
            for entry in self._entries(path):
                key = f"{prefix}{shown(entry.name)}"
                try:
                    if entry.is_symlink():
                        self._links.append((entry.path, key))
                    elif entry.is_dir(follow_symlinks=False):
                        wanted = entry.name not in _SKIPPED_FOLDERS
                        if wanted and self._is_new(entry.stat(follow_symlinks=False)):
                            below.append((entry.path, f"{key}/"))
                    elif _is_note(entry.name):
                        self._file(entry.path, key, entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # removed in the meantime
                except OSError as error:
                    self.walk.problems.append(_problem(entry.path, error))
            pending += reversed(below)

    def _entries(self, path: str) -> "list[os.DirEntry[str]]":
        try:
            with os.scandir(path) as entries:
                return sorted((each for each in entries if each.name[0] != "."), key=lambda each: each.name)
        except OSError as error:
            self.walk.problems.append(_problem(path, error))
            return []

    def _file(self, path: str, key: str, answer: os.stat_result) -> None:
        if not stat.S_ISREG(answer.st_mode):
            self.walk.problems.append(Problem(shown(path), "is neither a file nor a folder"))
        elif self._is_new(answer):
            if key in self._keys:
                key = next(free for free in _numbers(key) if free not in self._keys)
            self._keys.add(key)
            self.walk.files.append(Found(path, key, FileState.of(answer)))

    def _is_new(self, answer: os.stat_result) -> bool:
        """Whether nothing has led here before."""
        identity = answer.st_dev, answer.st_ino
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
    return path.lower().endswith(SUFFIXES)


def _name(path: str) -> str:
    """What a path is called, also where it ends in `..`; the top of everything has no name."""
    return shown(PurePath(os.path.normpath(path)).name)


def _numbered(names: Iterable[str]) -> Iterator[str]:
    """The names, all different: those that were there before get a number."""
    used: set[str] = set()
    for name in names:
        free = next(each for each in _numbers(name) if each not in used)
        used.add(free)
        yield free


def _numbers(name: str) -> Iterator[str]:
    """A name, and the name with 2, 3, … before its suffix or its slash."""
    yield name
    end = "/" if name.endswith("/") else PurePath(name).suffix
    for number in count(2):
        yield f"{name.removesuffix(end)}-{number}{end}"


def _problem(path: str, error: OSError) -> Problem:
    return Problem(shown(path), error.strerror or "cannot be read")
