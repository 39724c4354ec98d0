"""How many tokens a prompt may have: whose number counts, and what is left of it beside the answer.

The context windows of models, found by name in a dated table (`budget/windows.toml`).

How long a model's answer can be, found by its name in a dated table (`budget/answers.toml`).
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from foveate.budget.budget import Budget
from foveate.budget.prompt import LimitSource
from foveate.errors import BadOption
from foveate.tokens.families import candidate_names, normalize_model_name

_OUTPUT_TABLE = Path(__file__).with_name("answers.toml")
# Models that come and go in a long-lived process are forgotten again.
_MAX_CACHED_OUTPUT_LIMITS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimit:
    """How many tokens an answer can have, thoughts included. `source` says who says so and `as_of` when."""

    tokens: int
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputLimitFamily:
    """Some maker's models: patterns of names, and their longest answers."""

    match: str
    as_of: str
    source: str
    answers: Mapping[str, int]


@lru_cache(_MAX_CACHED_OUTPUT_LIMITS)
def find_output_limit(model: str) -> OutputLimit | None:
    """The longest answer of a model; None where this very model is not known."""
    name = normalize_model_name(model)
    family = next((family for family in _load_output_limits() if re.search(family.match, name)), None)
    if family is None:
        return None
    exact_names, _related_names = candidate_names(name)
    for pattern, tokens in family.answers.items():
        if any(re.fullmatch(pattern, candidate) for candidate in exact_names):
            return OutputLimit(tokens=tokens, source=family.source, as_of=family.as_of)
    return None


@cache
def _load_output_limits() -> tuple[_OutputLimitFamily, ...]:
    table = tomllib.loads(_OUTPUT_TABLE.read_text(encoding="utf-8"))
    return tuple(_OutputLimitFamily(**family) for family in table["family"])


_WINDOW_TABLE = Path(__file__).with_name("windows.toml")
# Models that come and go in a long-lived process are forgotten again.
_MAX_CACHED_WINDOWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """How many tokens prompt and answer may have together; the prompt alone, where its provider bounds that.

    `source` says who says so and `as_of` when. `inherited`: nothing is known of this very model, and the number
    is that of its kin.
    """

    tokens: int
    source: str
    as_of: str
    inherited: bool


@lru_cache(_MAX_CACHED_WINDOWS)
def find_context_window(model: str) -> ContextWindow | None:
    """The context window of a model, or None where neither it nor its family is known."""
    name = normalize_model_name(model)
    table = _load_windows()
    if not table.other_kinds.isdisjoint(name.split("-")):
        return None
    family = next((family for family in table.families if re.search(family.match, name)), None)
    return None if family is None else _window_in_family(family, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowFamily:
    """Some maker's models: patterns of names and their windows, and what a model that fits none has."""

    match: str
    as_of: str
    source: str
    windows: Mapping[str, int]
    newer_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _WindowTable:
    other_kinds: frozenset[str]
    families: tuple[_WindowFamily, ...]


@cache
def _load_windows() -> _WindowTable:
    table = tomllib.loads(_WINDOW_TABLE.read_text(encoding="utf-8"))
    return _WindowTable(
        frozenset(table["other_kinds"]), tuple(_WindowFamily(**family) for family in table["family"])
    )


def _window_in_family(family: _WindowFamily, name: str) -> ContextWindow | None:
    exact_names, related_names = candidate_names(name)
    tokens = _matching_tokens(family, exact_names)
    inherited = tokens is None
    if tokens is None:
        tokens = _matching_tokens(family, related_names) or family.newer_tokens
    if tokens is None:
        return None
    return ContextWindow(tokens=tokens, source=family.source, as_of=family.as_of, inherited=inherited)


def _matching_tokens(family: _WindowFamily, candidates: list[str]) -> int | None:
    """The window of the first row that is one of `stretches`."""
    # `re` compiles a pattern when it is first used and keeps it; most families never are.
    for pattern, tokens in family.windows.items():
        if any(re.fullmatch(pattern, candidate) for candidate in candidates):
            return tokens
    return None


VARIABLE = "CONTEXT_MAX_TOKENS"
DEFAULT_TOKENS = 16_384


_SOURCE_NAMES = {
    LimitSource.CALL: "total_tokens",
    LimitSource.ENVIRONMENT: VARIABLE,
    LimitSource.AGENT: "total_tokens in the agent's file",
    LimitSource.CONFIGURATION: "total_tokens in the configuration",
    LimitSource.WINDOW: "the model's window",
    LimitSource.DEFAULT: "the default for a model whose window is not known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimit:
    """How many tokens there are, how many of them are for the answer, and who said so."""

    total_tokens: int
    output_reserve: int
    source: LimitSource

    @property
    def tokens(self) -> int:
        """How many tokens the prompt may have."""
        return self.total_tokens - self.output_reserve


def resolve_prompt_limit(
    call: Budget,
    *,
    environment: str | None,
    agent: Budget | None,
    configuration: Budget | None,
    window_tokens: int | None,
    request_max_tokens: int | None = None,
) -> PromptLimit:
    """The limit that holds among all that may set one; `environment` is what `CONTEXT_MAX_TOKENS` says.

    An agent's own file can only take away: it has at most what holds without it, and reserves at least as much.
    With neither a configuration nor a window that is known, nobody says less than the agent.

    Raises:
        BadOption: `CONTEXT_MAX_TOKENS` is not a number of tokens, or nothing is left for the prompt.
    """
    source, total_tokens = _first_total(
        {
            LimitSource.CALL: call.total_tokens,
            LimitSource.ENVIRONMENT: _parse_environment(environment),
            LimitSource.AGENT: _allowed_agent_total(agent, configuration, window_tokens),
            LimitSource.CONFIGURATION: configuration.total_tokens if configuration else None,
            LimitSource.WINDOW: window_tokens,
        }
    )
    limit = PromptLimit(
        total_tokens=total_tokens,
        output_reserve=_output_reserve(call, agent, configuration, request_max_tokens),
        source=source,
    )
    if limit.tokens < 1:
        is_agent_reserve = (
            agent is not None and 0 < agent.output_reserve == limit.output_reserve != call.output_reserve
        )
        raise _no_room_error(limit, "the agent's file" if is_agent_reserve else "the answer")
    return limit


def _no_room_error(limit: PromptLimit, reserver: str) -> BadOption:
    total_text = f"{_SOURCE_NAMES[limit.source]} is {limit.total_tokens} tokens"
    if not limit.output_reserve:
        return BadOption(
            f"{total_text}: nothing is left for the prompt; give at least 1", path=("total_tokens",)
        )
    return BadOption(
        f"{total_text}, of which {reserver} reserves {limit.output_reserve}: nothing is left for the prompt; "
        "give more total_tokens, or lower output_reserve or max_tokens",
        path=("output_reserve",),
    )


def _first_total(totals: dict[LimitSource, int | None]) -> tuple[LimitSource, int]:
    for source, tokens in totals.items():
        if tokens is not None:
            return source, tokens
    return LimitSource.DEFAULT, DEFAULT_TOKENS


def _allowed_agent_total(
    agent: Budget | None, configuration: Budget | None, window_tokens: int | None
) -> int | None:
    """The agent's total, or None where less is allowed and holds instead."""
    if agent is None or agent.total_tokens is None:
        return None
    allowed_tokens = configuration.total_tokens if configuration else None
    if allowed_tokens is None:
        allowed_tokens = window_tokens
    if allowed_tokens is None and configuration:
        allowed_tokens = DEFAULT_TOKENS
    return agent.total_tokens if allowed_tokens is None or agent.total_tokens <= allowed_tokens else None


def _output_reserve(
    call: Budget, agent: Budget | None, configuration: Budget | None, request_max_tokens: int | None
) -> int:
    if call.output_reserve:
        return call.output_reserve
    without_agent = (configuration.output_reserve if configuration else 0) or request_max_tokens or 0
    return max(without_agent, agent.output_reserve if agent else 0)


def _parse_environment(text: str | None) -> int | None:
    if text is None or not text.strip():  # as `NAME=` in a file of variables leaves it
        return None
    try:
        tokens = int(text.strip().strip("\"'"))
    except ValueError:  # also for one of thousands of digits
        tokens = 0
    if tokens < 1:
        raise BadOption(f"{VARIABLE} is a whole number of tokens, 1 or more, not {text!r:.40}; or unset it")
    return tokens
