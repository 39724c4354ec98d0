"""Where the files of a workspace lie, and what has to change for them to lie, or be, otherwise."""

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import time_ns
from typing import Self

from foveate.prompt.bundles import Trouble, Workspace, role_of
from foveate.prompt.watching import Change

LIMIT_BYTES = 4_000_000
"""As much as fills the largest windows; a longer file is no file for every prompt."""

# As many as Linux follows.
_MOST_LINKS = 40
# Longer than any file system takes to tell two changes apart by their time; FAT's is 2 seconds.
_YOUNG_NS = 2_500_000_000
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})

Step = tuple[str, str]
"""A folder, and the name that is looked for in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file that was found: `real` is where it lies, without links; `stamp` is another after a change."""

    name: str
    path: str
    real: str
    stamp: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen of a workspace without reading a file. Two that are equal show the same files unchanged."""

    root: str | None
    """Where it lies, without links; None where there is no such folder."""
    sources: tuple[Source, ...]
    troubles: tuple[Trouble, ...]
    passed: frozenset[Step]
    """The folders and links that lead to its files."""
    named: frozenset[Step]
    """Its files."""
    listed: frozenset[str]
    """The folders that were searched for files."""
    is_young: bool = field(compare=False)
    """Whether a file was changed a moment ago: if it is changed again now, its time may stay the same."""
    folders: frozenset[str] = field(init=False, compare=False)
    """Every folder in which something could change what is seen."""

    def __post_init__(self) -> None:
        """Gather the folders once, since they are asked for often."""
        folders = frozenset(folder for folder, _ in self.passed | self.named) | self.listed
        object.__setattr__(self, "folders", folders)

    @property
    def own_folders(self) -> frozenset[str]:
        """Those in the workspace itself; where it is not there, those that lead to it."""
        root = self.root
        own = frozenset(each for each in self.folders if root is not None and _is_inside(each, root))
        return own or self.folders

    def is_touched(self, happened: "Happened") -> bool:
        """Whether something else may be seen after that."""
        return not (
            self.named.isdisjoint(happened.steps)
            and self.passed.isdisjoint(happened.moves)
            and self.listed.isdisjoint(happened.notes)
        )


@dataclass(frozen=True, slots=True)
class Happened:
    """What happened in folders, as it concerns workspaces."""

    steps: frozenset[Step]
    """All that came, went or was edited."""
    moves: frozenset[Step]
    """What came or went: an edit leaves a folder or a link where it is."""
    notes: frozenset[str]
    """Where a Markdown file was among it that is not hidden, as what editors leave beside a file is."""

    @classmethod
    def of(cls, changes: Iterable[Change]) -> Self:
        """What `changes` come to."""
        told = [(os.path.split(change.path), change.is_edit) for change in changes]
        return cls(
            frozenset(step for step, _ in told),
            frozenset(step for step, is_edit in told if not is_edit),
            frozenset(folder for (folder, name), _ in told if _is_note(name)),
        )


def _is_note(name: str) -> bool:
    return name.casefold().endswith(".md") and not name.startswith(".")


@dataclass(slots=True)
class _Looking:
    """What has been seen so far."""

    sources: list[Source] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    passed: set[Step] = field(default_factory=set)
    named: set[Step] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)


def look(workspace: Workspace) -> Sight:
    """Where the files of a workspace are now, and what is wrong with them."""
    seen = _Looking()
    root, steps, reason = walk("/", workspace.root)
    seen.passed.update(steps)
    if root is not None and not os.path.isdir(root):  # noqa: PTH112
        root, reason = None, "is not a folder"
    if root is None:
        seen.troubles.append(Trouble(workspace.root, reason))
    else:
        found = _roles(workspace, root, seen)
        for name, path in [*found.items(), *((extra, extra) for extra in workspace.extras)]:
            _find(name, path, root, seen)
    return Sight(
        root=root,
        sources=tuple(seen.sources),
        troubles=tuple(seen.troubles),
        passed=frozenset(seen.passed),
        named=frozenset(seen.named),
        listed=frozenset(seen.listed),
        is_young=any(source.stamp[-1] > time_ns() - _YOUNG_NS for source in seen.sources),
    )


def walk(at: str, path: str) -> tuple[str | None, list[Step], str]:
    """Where `path` leads from the folder `at`, each step on the way, and why it leads nowhere, if so.

    Links are followed one by one, so that a change of any of them can be told from other changes.
    """
    steps: list[Step] = []
    ahead = path.split("/")[::-1]
    links = 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)  # noqa: PTH120
            continue
        steps.append((at, name))
        here = os.path.join(at, name)  # noqa: PTH118
        try:
            target = os.readlink(here)  # noqa: PTH115
        except OSError as error:
            if error.errno != errno.EINVAL:
                return None, steps, because(error)
            at = here  # it is there, and no link
            continue
        links += 1
        if links > _MOST_LINKS:
            return None, steps, "is a link that leads in a circle"
        at = "/" if target.startswith("/") else at
        ahead.extend(target.split("/")[::-1])
    return at, steps, ""


def _roles(workspace: Workspace, root: str, seen: _Looking) -> dict[str, str]:
    """The path of each role's file from the root; what stands deeper in the scope holds."""
    found = _listed(root, "", seen)
    path, folder = "", root
    for part in workspace.scope.split("/") if workspace.scope else ():
        path += part + "/"
        there, reason = _followed(folder, part, root, seen, is_file=False)
        if there is None or not os.path.isdir(there):  # noqa: PTH112
            seen.troubles.append(Trouble(path, reason or "is not a folder"))
            break
        folder = there
        found |= _listed(folder, path, seen)
    return found


def _listed(folder: str, path: str, seen: _Looking) -> dict[str, str]:
    seen.listed.add(folder)
    found: dict[str, str] = {}
    try:
        names = sorted(filter(role_of, os.listdir(folder)))  # noqa: PTH208
    except OSError as error:
        seen.troubles.append(Trouble(path or ".", because(error)))
        return found
    for name in names:
        role = role_of(name) or name
        if role in found:
            # Capitals sort before small letters, so the name as it should be is the first.
            reason = f"is not used: there is {found[role]} too"
            seen.troubles.append(Trouble(path + name, reason, is_lasting=True))
        else:
            found[role] = path + name
    return found


def _find(name: str, path: str, root: str, seen: _Looking) -> None:
    """Add a file to what is seen, or why it cannot be."""
    real, wrong = _followed(root, path, root, seen, is_file=True)
    if real is not None:
        try:
            state = os.stat(real)  # noqa: PTH116
            wrong = unfit(state)
        except OSError as error:
            wrong = because(error)
    if real is None or wrong:
        seen.troubles.append(Trouble(path, wrong, name))
    elif all(real != source.real for source in seen.sources):
        seen.sources.append(Source(name=name, path=path, real=real, stamp=stamp(state)))


def _followed(folder: str, path: str, root: str, seen: _Looking, *, is_file: bool) -> tuple[str | None, str]:
    """Where a path in a folder leads, which is never out of the root; or why it leads nowhere."""
    real, steps, wrong = walk(folder, path)
    if real is not None and not _is_inside(real, root):
        real, wrong = None, "is a link out of the workspace, which is not followed"
    inside = [step for step in steps if _is_inside(step[0], root)]
    seen.passed.update(inside)
    if is_file:
        seen.named.update(inside[-1:])
        seen.listed.update(step[0] for step in inside[-1:])
    return real, wrong


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def stamp(state: os.stat_result) -> tuple[int, ...]:
    """What is another one after a change of a file."""
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def unfit(state: os.stat_result) -> str:
    """Why something is no file that can be read, if so."""
    if stat.S_ISDIR(state.st_mode):
        return "is a folder"
    if not stat.S_ISREG(state.st_mode):
        return "is not a file"
    return f"is larger than {LIMIT_BYTES:,} bytes, the most that is read" if state.st_size > LIMIT_BYTES else ""


def because(error: OSError) -> str:
    """What the system says, in words."""
    return "is not there" if error.errno in _NOT_THERE else error.strerror or "cannot be read"
