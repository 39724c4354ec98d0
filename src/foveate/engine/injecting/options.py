"""What is injected into the requests of an agent, and what a request says that some of it depends on."""

from dataclasses import dataclass, field
from datetime import tzinfo

from foveate.budget.budgets import Budget
from foveate.memory.gate import DEFAULT_PRIVACY_TAGS
from foveate.memory.logs import DEFAULT_LINES
from foveate.memory.view import DEFAULT_LIMIT_TOKENS
from foveate.prompt.bundles import Workspace
from foveate.prompt.time import TimeOptions
from foveate.prompt.workspace import WorkspaceCacheOptions

DEFAULT_SECTION_TOKENS = 16_384
"""How many tokens all sections of a request have together, unless somebody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """A server that makes vectors of notes, in the place of the model that comes with Foveate."""

    url: str
    model: str
    key: str = field(default="", repr=False)
    dimensions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """A memory in files and folders, and how much of it is shown."""

    paths: tuple[str, ...]
    limit_tokens: int = DEFAULT_LIMIT_TOKENS
    format: str = "org"
    embeddings: EmbeddingOptions | None = None
    follow_symlinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingOptions:
    """Whom an agent is bound to: its peers, what holds in each channel, the language it speaks."""

    peers: tuple[str, ...] = ()
    channels: tuple[tuple[str, str], ...] = ()
    language: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionOptions:
    """The sections of an agent; what is None or off is not injected.

    `logs` are files of which the newest `log_lines` are shown. `limits` are the budget of all of them:
    `total_tokens`, the ladder, and rules by the names of sections. What has one of `privacy_tags` is never read
    into a section. `workspace_cache` says how bundles are kept.
    """

    workspace: Workspace | None = None
    skills: str | None = None
    binding: BindingOptions | None = None
    memory: MemoryOptions | None = None
    logs: tuple[str, ...] = ()
    log_lines: int = DEFAULT_LINES
    time: TimeOptions | None = None
    zone: tzinfo | None = None
    channel: bool = False
    budget: bool = False
    privacy_tags: frozenset[str] = DEFAULT_PRIVACY_TAGS
    limits: Budget = field(default_factory=Budget)
    workspace_cache: WorkspaceCacheOptions = field(default_factory=WorkspaceCacheOptions)
    limits_key: int = field(init=False, repr=False, compare=False, default=0)
    """Tells `limits` from others in the keys of caches; to hash them anew for each request takes its time."""

    def __post_init__(self) -> None:
        """Make once what each request asks for."""
        object.__setattr__(self, "limits_key", hash(self.limits))

    @property
    def total_tokens(self) -> int:
        """How many tokens all of them may have together."""
        total = self.limits.total_tokens
        return (DEFAULT_SECTION_TOKENS if total is None else total) - self.limits.output_reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionInputs:
    """What a client says of a request in headers: what it looks at, and where it comes from.

    `metadata` is all else that is known of its channel, by name.
    """

    focus: str | None = None
    scope: str | None = None
    channel: str = ""
    sender: str = ""
    metadata: tuple[tuple[str, str], ...] = ()


NO_SECTION_INPUTS = SectionInputs()
