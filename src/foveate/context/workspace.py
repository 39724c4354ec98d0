"""Workspaces, and bundles of their files as immutable values."""

import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from blake3 import blake3

from foveate.budget.sections import Priority, Section, Stability
from foveate.errors import BadOption
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


def find_role(name: str) -> str | None:
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
        set_field(self, "extras", tuple(sorted(name for name in extra_names if not find_role(name))))

    @property
    def file_names(self) -> tuple[str, ...]:
        return ROLE_FILES + self.extras


def _is_encodable(text: str) -> bool:
    try:
        return bool(os.fsencode(text))
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _relative_path(given_path: str, root: str, path: tuple[str | int, ...]) -> str:
    """Return the path normalized and relative to the root."""
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
