"""What an agent's requests are subject to: which mechanisms are on, and their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foveate.cache.layout import PlacementOptions
from foveate.cache.pings import DEFAULT_MAX_KEEPALIVES
from foveate.cost.caps import DEFAULT_MIN_OUTPUT_TOKENS, Cap
from foveate.cost.price_book import PriceBook
from foveate.engine.injecting.options import SectionOptions
from foveate.fold.clearing import TOOL_RESULT_MAX_PCT
from foveate.fold.cuts import CompactionOptions
from foveate.fold.overflow import OnOverflow, OverflowOptions
from foveate.tokens.options import CounterOptions

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
