"""The files that every request of an agent carries."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from foveate.engine.counters import offline_counter
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.injecting.sources import SectionSources
from foveate.memory.gate import Gate
from foveate.prompt.bundles import Bundle
from foveate.prompt.workspace import WorkspaceCacheStats, read_bundle
from foveate.tokens.options import CounterOptions

# How long a page waits for files; requests wait longer.
_FILES_TIMEOUT_SECONDS = 1.0
# To count more takes longer than a page may.
_MAX_COUNTED_CHARS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceFile:
    """A file of a workspace: its path from the root, how long it is, and when it was last changed.

    Its tokens are not known where it is too long to be counted for a page, and its time where it is gone.
    """

    name: str
    path: str
    chars: int
    tokens: int | None
    changed_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceListing:
    """A workspace: its files, what is wrong with them, and how often they were at hand."""

    root: str
    scope: str
    files: Sequence[WorkspaceFile]
    troubles: Sequence[str]
    counts: WorkspaceCacheStats

    @property
    def chars(self) -> int:
        """How long all of it is."""
        return sum(file.chars for file in self.files)

    @property
    def tokens(self) -> int | None:
        """How many tokens all of it has; None where that is not known of each."""
        known = [file.tokens for file in self.files if file.tokens is not None]
        return sum(known) if len(known) == len(self.files) else None


async def load_workspace(
    sources: SectionSources, options: SectionOptions, counter: CounterOptions, model: str
) -> WorkspaceListing | None:
    """What requests of an agent would carry of its workspace now; None where it has none.

    Nobody's request is counted for it, and a disk that hangs has no more than one thread wait.
    """
    workspace = options.workspace
    if workspace is None:
        return None
    deadline = asyncio.get_running_loop().time() + _FILES_TIMEOUT_SECONDS
    files: Sequence[WorkspaceFile] = ()
    known, gate = sources.bundle(options), Gate(options.privacy_tags)

    def read() -> tuple[Sequence[WorkspaceFile], Sequence[str]]:
        bundle = read_bundle(workspace, gate, known)
        return _list_files(bundle, counter, model), tuple(map(str, bundle.warnings))

    try:
        key = ("page", workspace, gate.tags, counter, model)
        files, troubles = await sources.load_once(key, lambda: asyncio.to_thread(read), deadline)
    except TimeoutError:
        troubles = (f"{workspace.root}: its files take long to be read",)
    return WorkspaceListing(
        root=workspace.root,
        scope=workspace.scope,
        files=files,
        troubles=troubles,
        counts=sources.workspace_counts().get(workspace.root, WorkspaceCacheStats()),
    )


def _list_files(bundle: Bundle, options: CounterOptions, model: str) -> Sequence[WorkspaceFile]:
    counter = offline_counter(options, model)
    files = [file for file in bundle.files if file.text]
    is_short = sum(len(file.text) for file in files) <= _MAX_COUNTED_CHARS
    return [
        WorkspaceFile(
            name=file.name,
            path=file.path,
            chars=len(file.text),
            tokens=counter.text(file.text).tokens if is_short else None,
            changed_at=_modified_at(bundle.workspace.root, file.path),
        )
        for file in files
    ]


def _modified_at(root: str, path: str) -> float | None:
    try:
        return os.stat(f"{root}/{path}").st_mtime  # noqa: PTH116 - a link on the way stays one
    except (OSError, ValueError):
        return None
