"""Limits of models by name, and the limit of a prompt.

Context windows and output limits are found in dated tables (`windows.toml`, `answers.toml`).
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
from foveate.tokens.model_names import normalize_model_name, tokenizer_name_candidates

MAX_TOKENS_VARIABLE = "CONTEXT_MAX_TOKENS"
DEFAULT_TOKENS = 16_384
_SOURCE_NAMES = {
    LimitSource.CALL: "total_tokens",
    LimitSource.ENVIRONMENT: MAX_TOKENS_VARIABLE,
    LimitSource.AGENT: "total_tokens in the agent's file",
    LimitSource.CONFIGURATION: "total_tokens in the configuration",
    LimitSource.WINDOW: "the model's window",
    LimitSource.DEFAULT: "the default for models with an unknown window",
}
_WINDOW_TABLE = Path(__file__).with_name("windows.toml")
_OUTPUT_TABLE = Path(__file__).with_name("answers.toml")
# Bounded, like the output limits.
_MAX_CACHED_WINDOWS = 256
# Bounded, since a long-lived process can see any number of model names.
_MAX_CACHED_OUTPUT_LIMITS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """Maximum tokens of prompt and response together, or of the prompt alone if the provider limits that.

    `source` and `as_of` tell who says so and when. `inherited`: this model is unknown, and the number is that
    of a related one.
    """

    tokens: int
    source: str
    as_of: str
    inherited: bool


@lru_cache(_MAX_CACHED_WINDOWS)
def find_context_window(model: str) -> ContextWindow | None:
    """None if neither the model nor its family is known."""
    name = normalize_model_name(model)
    table = _load_windows()
    if not table.other_kinds.isdisjoint(name.split("-")):
        return None
    family = next((family for family in table.families if re.search(family.match, name)), None)
    return None if family is None else _window_in_family(family, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowFamily:
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
    exact_names, related_names = tokenizer_name_candidates(name)
    tokens = _matching_tokens(family, exact_names)
    inherited = tokens is None
    if tokens is None:
        tokens = _matching_tokens(family, related_names) or family.newer_tokens
    if tokens is None:
        return None
    return ContextWindow(tokens=tokens, source=family.source, as_of=family.as_of, inherited=inherited)


def _matching_tokens(family: _WindowFamily, candidates: list[str]) -> int | None:
    # `re` compiles and caches patterns on first use; those of most families are never used.
    for pattern, tokens in family.windows.items():
        if any(re.fullmatch(pattern, candidate) for candidate in candidates):
            return tokens
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimit:
    """Maximum tokens of a response, thinking included, with its source and date."""

    tokens: int
    source: str
    as_of: str


@lru_cache(_MAX_CACHED_OUTPUT_LIMITS)
def find_output_limit(model: str) -> OutputLimit | None:
    """None unless exactly this model is known."""
    name = normalize_model_name(model)
    family = next((family for family in _load_output_limits() if re.search(family.match, name)), None)
    if family is None:
        return None
    exact_names, _related_names = tokenizer_name_candidates(name)
    for pattern, tokens in family.answers.items():
        if any(re.fullmatch(pattern, candidate) for candidate in exact_names):
            return OutputLimit(tokens=tokens, source=family.source, as_of=family.as_of)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputLimitFamily:
    match: str
    as_of: str
    source: str
    answers: Mapping[str, int]


@cache
def _load_output_limits() -> tuple[_OutputLimitFamily, ...]:
    table = tomllib.loads(_OUTPUT_TABLE.read_text(encoding="utf-8"))
    return tuple(_OutputLimitFamily(**family) for family in table["family"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimit:
    total_tokens: int
    output_reserve: int
    source: LimitSource

    @property
    def tokens(self) -> int:
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
    """Return the limit that applies. `environment` is the value of `CONTEXT_MAX_TOKENS`.

    An agent's file can only lower the limit: it gets at most what applies without it, and reserves at least as
    much. If there is neither a configuration nor a known context window, the agent's limit applies.

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
        raise _no_room_error(limit, "the agent's file" if is_agent_reserve else "the response")
    return limit


def _no_room_error(limit: PromptLimit, reserver: str) -> BadOption:
    total_text = f"{_SOURCE_NAMES[limit.source]} is {limit.total_tokens} tokens"
    if not limit.output_reserve:
        return BadOption(
            f"{total_text}: nothing is left for the prompt; set at least 1", path=("total_tokens",)
        )
    return BadOption(
        f"{total_text}, of which {reserver} reserves {limit.output_reserve}: nothing is left for the prompt; "
        "raise total_tokens, or lower output_reserve or max_tokens",
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
    """Return the agent's total, or None if a lower limit applies."""
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
    if text is None or not text.strip():  # `NAME=` in a file of variables
        return None
    try:
        tokens = int(text.strip().strip("\"'"))
    except ValueError:  # also if it has thousands of digits
        tokens = 0
    if tokens < 1:
        raise BadOption(
            f"{MAX_TOKENS_VARIABLE} must be a whole number of tokens, 1 or more, not {text!r:.40}; or unset it"
        )
    return tokens
