"""How many tokens a prompt may have: whose number counts, and what is left of it beside the answer."""

from dataclasses import dataclass

from foveate.budget.budgets import Budget
from foveate.budget.prompt import LimitSource
from foveate.errors import BadOption

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
