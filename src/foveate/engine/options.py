"""The options of an agent, of its injected sections, and of spending."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from enum import StrEnum

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
from foveate.tokens.offline_counters import CounterOptions

DEFAULT_SECTION_TOKENS = 16_384
"""Default limit of all sections of a request together."""
LONG_TTL_PROVIDERS = frozenset(("anthropic", "vertex"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    url: str
    model: str
    key: str = field(default="", repr=False)
    dimensions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    paths: tuple[str, ...]
    limit_tokens: int = DEFAULT_LIMIT_TOKENS
    format: str = "auto"
    embeddings: EmbeddingOptions | None = None
    follow_symlinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingOptions:
    peers: tuple[str, ...] = ()
    channels: tuple[tuple[str, str], ...] = ()
    language: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionOptions:
    """The sections of an agent; what is None or False is not injected.

    The newest `log_lines` of `logs` are shown. `limits` is the budget of all sections: `total_tokens`, the
    ladder, and rules by section. Text with one of the `privacy_tags` is never read into a section.
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
    """Identifies `limits` in cache keys: hashing them for each request would take too long."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits_key", hash(self.limits))

    @property
    def total_tokens(self) -> int:
        total = self.limits.total_tokens
        return (DEFAULT_SECTION_TOKENS if total is None else total) - self.limits.output_reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionInputs:
    """`metadata` are further facts about the channel."""

    focus: str | None = None
    scope: str | None = None
    channel: str = ""
    sender: str = ""
    metadata: tuple[tuple[str, str], ...] = ()


NO_SECTION_INPUTS = SectionInputs()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAliveOptions:
    enabled: bool = False
    max_in_a_row: int = DEFAULT_MAX_KEEPALIVES
    max_sessions: int = 64


class CompactionTrigger(StrEnum):
    WINDOW = "window"
    COST = "cost"


class Clearing(StrEnum):
    OFF = "off"
    COLD = "cold"
    COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of one agent, and limits that all agents share.

    `replace_breakpoints`: the client's own breakpoints are removed. `window_tokens` overrides the model's
    window. Turns beyond `max_turns` are dropped. Without `token_counter` nothing is counted: the provider
    enforces the window, and caps reject calls.
    """

    prompt_cache: bool = True
    compaction: bool = False
    token_counter: bool = True
    counter: CounterOptions = field(default_factory=CounterOptions)
    replace_breakpoints: bool = False
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    long_ttl_providers: frozenset[str] = LONG_TTL_PROVIDERS
    keep_alive: KeepAliveOptions = field(default_factory=KeepAliveOptions)
    compaction_options: CompactionOptions = field(default_factory=CompactionOptions)
    trigger: CompactionTrigger = CompactionTrigger.WINDOW
    clearing: Clearing = Clearing.OFF
    tool_result_max_pct: float = TOOL_RESULT_MAX_PCT
    summarizer_model: str = ""
    on_overflow: OnOverflow | None = None
    window_tokens: int | None = None
    max_turns: int | None = None
    sections: SectionOptions | None = None

    @property
    def overflow_options(self) -> OverflowOptions:
        return OverflowOptions(compaction=self.compaction, on_overflow=self.on_overflow)

    @property
    def compacts(self) -> bool:
        """Compaction, and truncation of tool results with it, needs counts."""
        return self.compaction and self.token_counter

    @property
    def compacts_by_cost(self) -> bool:
        return self.compacts and self.trigger is CompactionTrigger.COST

    @property
    def clears(self) -> bool:
        return self.token_counter and self.clearing is not Clearing.OFF

    @property
    def edits_history(self) -> bool:
        """Return whether histories may be sent edited. Edits that were stored before need no counts."""
        return self.compaction or self.clearing is not Clearing.OFF

    @property
    def sends_keep_alive(self) -> bool:
        return self.prompt_cache and self.keep_alive.enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingOptions:
    caps: Sequence[Cap]
    prices: PriceBook
    min_output_tokens: int = DEFAULT_MIN_OUTPUT_TOKENS
    allow_fields: Sequence[str] = ()
