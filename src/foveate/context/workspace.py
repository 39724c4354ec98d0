"""Workspaces: where their files are, which changes affect them, and bundles of their public text as values."""

import codecs
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import time_ns
from typing import Self

from blake3 import blake3

from foveate.budget.sections import Priority, Section, Stability
from foveate.context.file_watcher import FileChange
from foveate.errors import BadOption, UnreadableInput
from foveate.memory.parsing import parse_notes
from foveate.memory.privacy import Gate
from foveate.paths import StrPath

ROLE_FILES = ("IDENTITY.md", "SOUL.md", "USER.md", "AGENTS.md", "MEMORY.md")
"""Files that every workspace may have, in the order in which they appear in a prompt."""

_PRIORITIES = {
    "IDENTITY.md": Priority.REQUIRED,
    "SOUL.md": Priority.HIGH,
    "USER.md": Priority.HIGH,
    "AGENTS.md": Priority.HIGH,
}
_ROLE_BY_NAME = {role.casefold(): role for role in ROLE_FILES}


def _find_role(name: str) -> str | None:
    return _ROLE_BY_NAME.get(name.casefold())


@dataclass(frozen=True, slots=True, init=False)
class Workspace:
    """A folder, a scope inside it, and extra files.

    A scope is a folder below the root, such as `support` or `support/night`; a file in it overrides the one of
    the same name above it. Extras are files below the root, in any order.
    """

    root: str
    scope: str
    extras: tuple[str, ...]

    def __init__(self, root: StrPath, scope: str = "", extras: Iterable[str] = ()) -> None:
        """Validate and normalize the paths, so that the same files are always the same workspace.

        Raises:
            BadOption: a path outside the root, or not a path.
        """
        set_field = object.__setattr__
        path = os.fspath(root)
        if not path or "\0" in path or not _is_encodable(path):
            raise BadOption(f"root must be a folder, not {root!r}", path=("root",))
        set_field(self, "root", os.path.abspath(path))  # noqa: PTH100  # links must not be resolved
        set_field(self, "scope", _relative_path(scope, self.root, ("scope",)) if scope else "")
        if isinstance(extras, str):
            raise BadOption(f"extras must be a list, even for a single file: [{extras!r}]", path=("extras",))
        extra_names = {
            _relative_path(extra, self.root, ("extras", number)) for number, extra in enumerate(extras)
        }
        # Roles at the root are included anyway.
        set_field(self, "extras", tuple(sorted(name for name in extra_names if not _find_role(name))))

    @property
    def file_names(self) -> tuple[str, ...]:
        return ROLE_FILES + self.extras


def _is_encodable(text: str) -> bool:
    try:
        return bool(os.fsencode(text))
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _relative_path(given_path: str, root: str, path: tuple[str | int, ...]) -> str:
    subject = f"{'.'.join(map(str, path))}: {given_path!r:.200}"
    if not given_path.isprintable() or not given_path.strip():
        raise BadOption(f"{subject} is not a path on one line", path=path)
    relative = given_path.removeprefix(root.rstrip("/") + "/") if given_path.startswith("/") else given_path
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if relative.startswith("/") or ".." in parts or not parts:
        raise BadOption(f"{subject} is outside the workspace {root}", path=path)
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class BundleFile:
    """The public part of a file. `name` is its role or the path of an extra; `path` is relative to the root."""

    name: str
    path: str
    text: str = field(repr=False)  # it can be megabytes
    is_blank: bool = False
    """The whole file is blank, private parts included."""

    @property
    def depth(self) -> int:
        return self.path.count("/")


@dataclass(frozen=True, slots=True)
class WorkspaceWarning:
    path: str
    reason: str
    name: str = ""
    """The file of the bundle that is unavailable, if any."""
    is_permanent: bool = False
    """Only an edit can fix it, so that reading again is pointless."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceReading:
    files: tuple[BundleFile, ...]
    warnings: tuple[WorkspaceWarning, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The files of a workspace that are not empty, in a fixed order, and warnings about others.

    The same texts always give the same sections, the same text and the same `version`, wherever the files are.
    """

    workspace: Workspace
    files: tuple[BundleFile, ...]
    warnings: tuple[WorkspaceWarning, ...]
    version: str = field(init=False)
    sections: tuple[Section, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute once what every prompt needs: the version and the sections."""
        nonempty = [file for file in self.files if file.text]
        digest = blake3()
        for file in nonempty:
            name, text = file.name.encode(), file.text.encode()
            digest.update(b"%d %d\n%b%b" % (len(name), len(text), name, text))
        object.__setattr__(self, "version", digest.hexdigest(length=16))
        object.__setattr__(self, "sections", tuple(map(_build_section, nonempty)))

    @property
    def text(self) -> str:
        return "\n\n".join(section.text for section in self.sections)


def _build_section(file: BundleFile) -> Section:
    return Section(
        f"workspace/{file.name}",
        file.text,
        priority=_PRIORITIES.get(file.name, Priority.MEDIUM),
        stability=Stability.STATIC,
    )


def merge_reading(
    workspace: Workspace, reading: WorkspaceReading, last: Bundle | None, blank_files: Set[str]
) -> Bundle:
    """Return the bundle after `reading`, given the previous one.

    A file that was available before and is not now keeps its previous text, with a warning. So does a file that
    has become empty, unless it is in `blank_files`: editors empty a file before they write it. A file that was
    never available is left out, with a warning.
    """
    new_files = {file.name: file for file in reading.files}
    old_files = {file.name: file for file in last.files if file.text} if last else {}
    warnings_by_file = {warning.name: warning for warning in reading.warnings if warning.name}
    files: list[BundleFile] = []
    warnings = [warning for warning in reading.warnings if not warning.name]
    for name in workspace.file_names:
        previous = _previous_file(name, new_files, old_files, blank_files)
        if previous is not None:
            reason = (
                warnings_by_file[name].reason
                if name in warnings_by_file
                else _missing_reason(new_files.get(name), previous)
            )
            files.append(previous)
            warnings.append(
                WorkspaceWarning(previous.path, f"{reason}; its previous content is still used", name)
            )
            continue
        if name in warnings_by_file:
            warnings.append(warnings_by_file[name])
        if name in new_files:
            files.append(new_files[name])
    return Bundle(workspace=workspace, files=tuple(files), warnings=tuple(warnings))


def _previous_file(
    name: str, new_files: Mapping[str, BundleFile], old_files: Mapping[str, BundleFile], blank_files: Set[str]
) -> BundleFile | None:
    old_file, new_file = old_files.get(name), new_files.get(name)
    if old_file is None:
        return None
    # The file of the same name higher up in the scope is another file, which this one overrode.
    has_vanished = new_file is None or new_file.depth < old_file.depth
    return (
        old_file
        if has_vanished or (new_file is not None and new_file.is_blank and name not in blank_files)
        else None
    )


def _missing_reason(new_file: BundleFile | None, old_file: BundleFile) -> str:
    if new_file is not None and new_file.depth >= old_file.depth:
        return "is suddenly empty"
    return "is missing: restore it, or create it empty to remove its content"


def blank_file_names(reading: WorkspaceReading) -> frozenset[str]:
    return frozenset(file.name for file in reading.files if file.is_blank)


MAX_FILE_BYTES = 4_000_000
"""Fills the largest context windows. A larger file cannot be part of every prompt."""
# The limit of Linux.
_MAX_LINKS = 40
# Longer than the resolution of timestamps on any file system; FAT's is 2 seconds.
_RECENT_NS = 2_500_000_000
_MISSING_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR})
# Attempts to read a file that changes while it is read.
_MAX_READ_ATTEMPTS = 3
_READ_CHUNK_BYTES = 1_000_000
PathStep = tuple[str, str]
"""A folder, and the name that is looked up in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """`real_path` has no links; `stamp` differs after a change."""

    name: str
    path: str
    real_path: str
    stamp: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceScan:
    """State of a workspace without reading files. Equal scans mean that no file has changed."""

    root: str | None
    """The real path, without links. None if there is no such folder."""
    sources: tuple[SourceFile, ...]
    warnings: tuple[WorkspaceWarning, ...]
    path_steps: frozenset[PathStep]
    """Folders and links on the way to its files."""
    file_steps: frozenset[PathStep]
    """The files themselves."""
    listed_folders: frozenset[str]
    """Folders whose entries were listed."""
    is_recent: bool = field(compare=False)
    """A file changed a moment ago, so that another change may leave its timestamp the same."""
    folders: frozenset[str] = field(init=False, compare=False)
    """All folders in which a change could change the scan."""

    def __post_init__(self) -> None:
        """Collect the folders once, since they are needed often."""
        folders = frozenset(folder for folder, _ in self.path_steps | self.file_steps) | self.listed_folders
        object.__setattr__(self, "folders", folders)

    @property
    def own_folders(self) -> frozenset[str]:
        """Folders inside the workspace; if it does not exist, those that lead to it."""
        root = self.root
        inside = frozenset(folder for folder in self.folders if root is not None and _is_inside(folder, root))
        return inside or self.folders

    def is_affected(self, changes: "FolderChanges") -> bool:
        """False only if a scan after these changes cannot differ."""
        return not (
            self.file_steps.isdisjoint(changes.steps)
            and self.path_steps.isdisjoint(changes.moves)
            and self.listed_folders.isdisjoint(changes.markdown_folders)
        )


@dataclass(frozen=True, slots=True)
class FolderChanges:
    steps: frozenset[PathStep]
    """Everything that was created, deleted or edited."""
    moves: frozenset[PathStep]
    """Created or deleted: an edit does not move a folder or link."""
    markdown_folders: frozenset[str]
    """Folders with a change of a visible Markdown file. Temporary files of editors are hidden."""

    @classmethod
    def from_changes(cls, changes: Iterable[FileChange]) -> Self:
        steps = [(os.path.split(change.path), change.is_edit) for change in changes]
        return cls(
            frozenset(step for step, _ in steps),
            frozenset(step for step, is_edit in steps if not is_edit),
            frozenset(folder for (folder, name), _ in steps if _is_visible_markdown(name)),
        )


def _is_visible_markdown(name: str) -> bool:
    return name.casefold().endswith(".md") and not name.startswith(".")


@dataclass(slots=True)
class _ScanBuilder:
    sources: list[SourceFile] = field(default_factory=list)
    warnings: list[WorkspaceWarning] = field(default_factory=list)
    path_steps: set[PathStep] = field(default_factory=set)
    file_steps: set[PathStep] = field(default_factory=set)
    listed_folders: set[str] = field(default_factory=set)


def scan_workspace(workspace: Workspace) -> WorkspaceScan:
    builder = _ScanBuilder()
    root, steps, reason = resolve_path("/", workspace.root)
    builder.path_steps.update(steps)
    if root is not None and not os.path.isdir(root):  # noqa: PTH112
        root, reason = None, "is not a folder"
    if root is None:
        builder.warnings.append(WorkspaceWarning(workspace.root, reason))
    else:
        roles = _find_roles(workspace, root, builder)
        for name, path in [*roles.items(), *((extra, extra) for extra in workspace.extras)]:
            _add_file(name, path, root, builder)
    return WorkspaceScan(
        root=root,
        sources=tuple(builder.sources),
        warnings=tuple(builder.warnings),
        path_steps=frozenset(builder.path_steps),
        file_steps=frozenset(builder.file_steps),
        listed_folders=frozenset(builder.listed_folders),
        is_recent=any(source.stamp[-1] > time_ns() - _RECENT_NS for source in builder.sources),
    )


def resolve_path(folder: str, path: str) -> tuple[str | None, list[PathStep], str]:
    """Resolve `path` from `folder`. Returns the real path, each step on the way, and why it failed.

    Links are followed one by one, so that changes of each can be detected.
    """
    steps: list[PathStep] = []
    pending = path.split("/")[::-1]
    links = 0
    while pending:
        name = pending.pop()
        if name in ("", "."):
            continue
        if name == "..":
            folder = os.path.dirname(folder)  # noqa: PTH120
            continue
        steps.append((folder, name))
        current = os.path.join(folder, name)  # noqa: PTH118
        try:
            target = os.readlink(current)  # noqa: PTH115
        except OSError as error:
            if error.errno != errno.EINVAL:
                return None, steps, os_error_reason(error)
            folder = current  # exists, and is not a link
            continue
        links += 1
        if links > _MAX_LINKS:
            return None, steps, "is a circular link"
        folder = "/" if target.startswith("/") else folder
        pending.extend(target.split("/")[::-1])
    return folder, steps, ""


def _find_roles(workspace: Workspace, root: str, builder: _ScanBuilder) -> dict[str, str]:
    roles = _list_roles(root, "", builder)
    path, folder = "", root
    for part in workspace.scope.split("/") if workspace.scope else ():
        path += part + "/"
        subfolder, reason = _resolve_inside(folder, part, root, builder, is_file=False)
        if subfolder is None or not os.path.isdir(subfolder):  # noqa: PTH112
            builder.warnings.append(WorkspaceWarning(path, reason or "is not a folder"))
            break
        folder = subfolder
        roles |= _list_roles(folder, path, builder)
    return roles


def _list_roles(folder: str, path: str, builder: _ScanBuilder) -> dict[str, str]:
    builder.listed_folders.add(folder)
    roles: dict[str, str] = {}
    try:
        names = sorted(filter(_find_role, os.listdir(folder)))  # noqa: PTH208
    except OSError as error:
        builder.warnings.append(WorkspaceWarning(path or ".", os_error_reason(error)))
        return roles
    for name in names:
        role = _find_role(name) or name
        if role in roles:
            # Capitals sort before lower-case letters, so the canonical name comes first.
            reason = f"is ignored because {roles[role]} exists too"
            builder.warnings.append(WorkspaceWarning(path + name, reason, is_permanent=True))
        else:
            roles[role] = path + name
    return roles


def _add_file(name: str, path: str, root: str, builder: _ScanBuilder) -> None:
    real_path, reason = _resolve_inside(root, path, root, builder, is_file=True)
    state = None
    if real_path is not None:
        try:
            state = os.stat(real_path)  # noqa: PTH116
            reason = unreadable_reason(state)
        except OSError as error:
            reason = os_error_reason(error)
    if real_path is None or state is None or reason:
        builder.warnings.append(WorkspaceWarning(path, reason, name))
    elif all(real_path != source.real_path for source in builder.sources):
        builder.sources.append(SourceFile(name=name, path=path, real_path=real_path, stamp=file_stamp(state)))


def _resolve_inside(
    folder: str, path: str, root: str, builder: _ScanBuilder, *, is_file: bool
) -> tuple[str | None, str]:
    """Resolve a path that must not lead out of the root. Returns the real path, or None and the reason."""
    real_path, steps, reason = resolve_path(folder, path)
    if real_path is not None and not _is_inside(real_path, root):
        real_path, reason = None, "is a link that leads out of the workspace and is not followed"
    inside = [step for step in steps if _is_inside(step[0], root)]
    builder.path_steps.update(inside)
    if is_file:
        builder.file_steps.update(inside[-1:])
        builder.listed_folders.update(step[0] for step in inside[-1:])
    return real_path, reason


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def file_stamp(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def unreadable_reason(state: os.stat_result) -> str:
    """Empty if it is a file that can be read."""
    if stat.S_ISDIR(state.st_mode):
        return "is a folder"
    if not stat.S_ISREG(state.st_mode):
        return "is not a file"
    return (
        f"is larger than {MAX_FILE_BYTES:,} bytes, the maximum size" if state.st_size > MAX_FILE_BYTES else ""
    )


def os_error_reason(error: OSError) -> str:
    return "does not exist" if error.errno in _MISSING_ERRNOS else error.strerror or "cannot be read"


def read_files(scan: WorkspaceScan, gate: Gate) -> WorkspaceReading:
    files: list[BundleFile] = []
    warnings = list(scan.warnings)
    for source in scan.sources:
        data = b""
        try:
            data = _read_bytes(scan.root or "/", source)
            text = _decode_text(data, source.path)
        except UnreadableInput as error:
            warnings.append(WorkspaceWarning(source.path, error.reason, source.name))
            if _contains_private(data, gate, source.path):
                # It may have become private since it was readable, so its previous text must not be shown
                # either.
                files.append(BundleFile(source.name, source.path, "", is_blank=False))
            continue
        outline = gate.redact(parse_notes(text, path=source.path))
        public = outline.text.strip("\r\n").rstrip()
        files.append(BundleFile(source.name, source.path, public, is_blank=not text or text.isspace()))
        warnings.extend(
            WorkspaceWarning(source.path, problem, is_permanent=True) for problem in outline.problems
        )
    return WorkspaceReading(files=tuple(files), warnings=tuple(warnings))


def _contains_private(data: bytes, gate: Gate, path: str) -> bool:
    """For data that is not valid text, as far as it can be read."""
    text = data.decode("utf-8-sig", "replace")
    return gate.redact(parse_notes(text, path=path)).text != text


def _read_bytes(root: str, source: SourceFile) -> bytes:
    """Read a whole file in one consistent state.

    Raises:
        UnreadableInput: it is missing, is being written, or is not a readable file.
    """
    try:
        for _ in range(_MAX_READ_ATTEMPTS):
            with _open_without_links(root, source.real_path) as file:
                before = os.fstat(file)
                if reason := unreadable_reason(before):
                    raise UnreadableInput(source.path, reason)
                data = _read_limited(file)
                if file_stamp(before) == file_stamp(os.fstat(file)) and len(data) == before.st_size:
                    return data
    except OSError as error:
        raise UnreadableInput(source.path, os_error_reason(error)) from None
    raise UnreadableInput(source.path, "is being written")


@contextmanager
def _open_without_links(root: str, real_path: str) -> Iterator[int]:
    """Open a file whose path must contain no links, even if some were created in the meantime."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(root, flags | os.O_DIRECTORY)
    *folders, name = os.path.relpath(real_path, root).split("/")
    for part, kind in [*((folder, os.O_DIRECTORY) for folder in folders), (name, os.O_NONBLOCK | os.O_NOCTTY)]:
        try:
            next_file = os.open(part, flags | kind, dir_fd=file)
        finally:
            os.close(file)
        file = next_file
    try:
        yield file
    finally:
        os.close(file)


def _read_limited(file: int) -> bytes:
    pieces: list[bytes] = []
    remaining_bytes = MAX_FILE_BYTES + 1
    while remaining_bytes > 0 and (piece := os.read(file, min(remaining_bytes, _READ_CHUNK_BYTES))):
        pieces.append(piece)
        remaining_bytes -= len(piece)
    return b"".join(pieces)


def _decode_text(data: bytes, path: str) -> str:
    """Decode UTF-8, without a byte order mark.

    Raises:
        UnreadableInput: it is not UTF-8.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableInput(path, "is UTF-16: save it as UTF-8")
    if b"\0" in data:
        raise UnreadableInput(path, "is binary, not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise UnreadableInput(path, "ends in the middle of a character") from None
        raise UnreadableInput(path, f"is not UTF-8 (byte {error.start})") from None
