"""What is injected into the requests of an agent, and what a request says that some of it depends on.

What an agent's requests are subject to: which mechanisms are on, and their numbers.

Keys left out of what is shown: by how they begin, and by what they are handed over as.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import tzinfo

from foveate.budget.budget import Budget
from foveate.compaction.overflow import OnOverflow, OverflowOptions
from foveate.compaction.plan import CompactionOptions
from foveate.compaction.tool_results import TOOL_RESULT_MAX_PCT
from foveate.context.time_section import TimeOptions
from foveate.context.workspace import Workspace
from foveate.context.workspace_cache import WorkspaceCacheOptions
from foveate.cost.caps import DEFAULT_MIN_OUTPUT_TOKENS, Cap
from foveate.cost.pricing.price_book import PriceBook
from foveate.memory.log_tail import DEFAULT_LINES
from foveate.memory.privacy import DEFAULT_PRIVACY_TAGS
from foveate.memory.views.view import DEFAULT_LIMIT_TOKENS
from foveate.prompt_cache.keepalive import DEFAULT_MAX_KEEPALIVES
from foveate.prompt_cache.placement.breakpoints import PlacementOptions
from foveate.tokens.options import CounterOptions

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


_KEYS = re.compile(
    r"(?i)\b(?:sk|fov|nvapi|gsk|xai)-[\w.-]{6,}|\bAIza[\w-]{10,}|(?<=bearer )[\w.~+/-]{8,}=*"
    r"|(?<=[?&]key=)[^&\s]+|(?<=api_key=)[^&\s]+|(?<=://)[^/@\s:]*:[^/@\s]+(?=@)"
)


def redact_keys(text: str) -> str:
    """A text with all that looks like a key left out."""
    return _KEYS.sub("[key]", text)


LONG_TTL_PROVIDERS = frozenset(("anthropic", "vertex"))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAliveOptions:
    """Whether pings keep what the provider has cached, how many in a row, and in how many sessions."""

    enabled: bool = False
    max_in_a_row: int = DEFAULT_MAX_KEEPALIVES
    max_sessions: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The switches of one agent, and the numbers that all agents share.

    `replace_breakpoints`: the client's own are removed. `window_tokens` takes the place of what is known of the
    model's own window. Turns beyond `max_turns` are left out. Without `token_counter` nothing is counted: the
    window is left to the provider, and caps refuse.
    """

    prompt_cache: bool = True
    compaction: bool = False
    token_counter: bool = True
    counter: CounterOptions = field(default_factory=CounterOptions)
    replace_breakpoints: bool = False
    layout: PlacementOptions = field(default_factory=PlacementOptions)
    long_ttl_providers: frozenset[str] = LONG_TTL_PROVIDERS
    keep_alive: KeepAliveOptions = field(default_factory=KeepAliveOptions)
    compaction_options: CompactionOptions = field(default_factory=CompactionOptions)
    tool_result_max_pct: float = TOOL_RESULT_MAX_PCT
    summarizer_model: str = ""
    on_overflow: OnOverflow | None = None
    window_tokens: int | None = None
    max_turns: int | None = None
    sections: SectionOptions | None = None

    @property
    def overflow(self) -> OverflowOptions:
        """What is done with a request that does not fit."""
        return OverflowOptions(compaction=self.compaction, on_overflow=self.on_overflow)

    @property
    def truncates_tool_results(self) -> bool:
        """Whether tool results that are too long are cut."""
        return self.compaction and self.token_counter

    @property
    def compacts(self) -> bool:
        """Whether histories are replaced by a summary, which needs counts."""
        return self.compaction and self.token_counter

    @property
    def sends_keep_alive(self) -> bool:
        """Whether reads keep what the provider has cached."""
        return self.prompt_cache and self.keep_alive.enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingOptions:
    """The caps that hold, and the prices.

    A request without an output limit is never limited to fewer than `min_output_tokens`. `allow_fields` are
    globs of features (fields, tools, models) that calls under a cap may have though their cost is not known.
    """

    caps: Sequence[Cap]
    prices: PriceBook
    min_output_tokens: int = DEFAULT_MIN_OUTPUT_TOKENS
    allow_fields: Sequence[str] = ()
