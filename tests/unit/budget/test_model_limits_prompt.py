"""Resolution of the prompt limit. An agent cannot raise its own limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget.budget import Budget
from foveate.budget.model_limits import PromptLimit, resolve_prompt_limit
from foveate.budget.prompt import LimitSource
from foveate.errors import BadOption

TOKENS_BY_SOURCE = {
    LimitSource.CALL: 1_001,
    LimitSource.ENVIRONMENT: 1_002,
    LimitSource.AGENT: 1_003,
    LimitSource.CONFIGURATION: 1_004,
    LimitSource.WINDOW: 1_005,
    LimitSource.DEFAULT: 16_384,
}
ORDER = list(TOKENS_BY_SOURCE)

budgets = st.builds(
    Budget, total_tokens=st.none() | st.integers(0, 9_000), output_reserve=st.just(0) | st.integers(0, 5_000)
)
environments = st.none() | st.integers(1, 9_000).map(str)
some_tokens = st.none() | st.integers(1, 9_000)


def resolve_limit(
    call: Budget | None = None,
    *,
    environment: str | None = None,
    agent: Budget | None = None,
    configuration: Budget | None = None,
    window_tokens: int | None = None,
    request_max_tokens: int | None = None,
) -> PromptLimit:
    return resolve_prompt_limit(
        call or Budget(),
        environment=environment,
        agent=agent,
        configuration=configuration,
        window_tokens=window_tokens,
        request_max_tokens=request_max_tokens,
    )


@pytest.mark.parametrize("first", ORDER)
def test_the_first_source_with_a_limit_applies(first: LimitSource) -> None:
    unset = set(ORDER[: ORDER.index(first)])

    def tokens_from(source: LimitSource) -> int | None:
        return None if source in unset else TOKENS_BY_SOURCE[source]

    environment = tokens_from(LimitSource.ENVIRONMENT)
    limit = resolve_limit(
        Budget(total_tokens=tokens_from(LimitSource.CALL)),
        environment=None if environment is None else str(environment),
        agent=Budget(total_tokens=tokens_from(LimitSource.AGENT)),
        configuration=Budget(total_tokens=tokens_from(LimitSource.CONFIGURATION)),
        window_tokens=tokens_from(LimitSource.WINDOW),
    )

    assert (limit.source, limit.total_tokens) == (first, TOKENS_BY_SOURCE[first])


def test_the_default_limit_is_16384_tokens() -> None:
    assert resolve_limit() == PromptLimit(total_tokens=16_384, output_reserve=0, source=LimitSource.DEFAULT)


@pytest.mark.parametrize("text", ["16384", "16_384", " 16384\n", '"16384"', "' 16_384 '"])
def test_the_variable_may_have_spaces_quotes_and_underscores(text: str) -> None:
    assert resolve_limit(environment=text).total_tokens == 16_384


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_variable_counts_as_unset(text: str) -> None:
    assert resolve_limit(environment=text) == resolve_limit(environment=None)


@pytest.mark.parametrize("text", ["0", "-5", "4k", "16,384", "1e4", "12.5", "1__0", "9" * 5_000, "∞"])
def test_an_invalid_variable_is_named_in_the_error(text: str) -> None:
    with pytest.raises(
        BadOption, match="CONTEXT_MAX_TOKENS must be a whole number of tokens, 1 or more"
    ) as caught:
        resolve_limit(environment=text)

    assert len(str(caught.value)) < 200


def test_an_invalid_variable_is_an_error_even_if_the_call_overrides_it() -> None:
    with pytest.raises(BadOption, match="CONTEXT_MAX_TOKENS"):
        resolve_limit(Budget(total_tokens=500), environment="many")


def test_an_agent_gets_at_most_the_limit_of_the_configuration() -> None:
    limit = resolve_limit(agent=Budget(total_tokens=9_000), configuration=Budget(total_tokens=4_000))

    assert (limit.total_tokens, limit.source) == (4_000, LimitSource.CONFIGURATION)


def test_an_agent_may_lower_the_limit() -> None:
    limit = resolve_limit(agent=Budget(total_tokens=900), configuration=Budget(total_tokens=4_000))

    assert (limit.total_tokens, limit.source) == (900, LimitSource.AGENT)


def test_an_agent_gets_at_most_the_context_window() -> None:
    agent_budget = Budget(total_tokens=10**7)

    assert resolve_limit(agent=agent_budget, window_tokens=8_192).source is LimitSource.WINDOW
    assert (
        resolve_limit(agent=agent_budget, configuration=Budget(output_reserve=10), window_tokens=8_192).tokens
        == 8_182
    )
    assert (
        resolve_limit(agent=agent_budget, configuration=Budget(), window_tokens=None).source
        is LimitSource.DEFAULT
    )
    assert (
        resolve_limit(agent=agent_budget, window_tokens=None).source is LimitSource.AGENT
    )  # no other source has a limit


@pytest.mark.parametrize(
    ("call", "agent", "configuration", "request_max", "reserve"),
    [
        (0, 0, 0, None, 0),
        (0, 0, 0, 700, 700),
        (0, 0, 600, 700, 600),
        (0, 800, 600, 700, 800),
        (0, 500, 600, 700, 600),  # an agent can only reserve more than is reserved without it
        (0, 500, 0, 700, 700),
        (0, 500, 0, None, 500),
        (50, 800, 600, 700, 50),
    ],
)
def test_the_output_reserve_is_resolved_in_the_same_order(
    call: int, agent: int, configuration: int, request_max: int | None, reserve: int
) -> None:
    limit = resolve_limit(
        Budget(total_tokens=4_000, output_reserve=call),
        agent=Budget(output_reserve=agent),
        configuration=Budget(output_reserve=configuration),
        request_max_tokens=request_max,
    )

    assert (limit.output_reserve, limit.tokens) == (reserve, 4_000 - reserve)


def test_a_reserve_that_leaves_no_room_is_rejected_with_the_numbers() -> None:
    with pytest.raises(
        BadOption, match="the model's window is 8192 tokens, of which the response reserves 8192"
    ):
        resolve_limit(window_tokens=8_192, request_max_tokens=8_192)

    assert resolve_limit(window_tokens=8_192, request_max_tokens=8_191).tokens == 1


@given(
    environment=environments,
    agent=budgets,
    configuration=budgets,
    window_tokens=some_tokens,
    request_max_tokens=some_tokens,
)
def test_an_agent_never_exceeds_what_the_configuration_allows(
    environment: str | None,
    agent: Budget,
    configuration: Budget,
    window_tokens: int | None,
    request_max_tokens: int | None,
) -> None:
    def tokens(agent: Budget | None) -> int:
        try:
            return resolve_limit(
                environment=environment,
                agent=agent,
                configuration=configuration,
                window_tokens=window_tokens,
                request_max_tokens=request_max_tokens,
            ).tokens
        except BadOption:
            return 0

    assert tokens(agent) <= tokens(None)


@given(
    call=budgets,
    environment=environments,
    agent=st.none() | budgets,
    configuration=st.none() | budgets,
    window_tokens=some_tokens,
    request_max_tokens=some_tokens,
)
def test_a_resolved_limit_has_room_or_is_an_error(
    call: Budget,
    environment: str | None,
    agent: Budget | None,
    configuration: Budget | None,
    window_tokens: int | None,
    request_max_tokens: int | None,
) -> None:
    try:
        limit = resolve_prompt_limit(
            call,
            environment=environment,
            agent=agent,
            configuration=configuration,
            window_tokens=window_tokens,
            request_max_tokens=request_max_tokens,
        )
    except BadOption:
        return
    assert limit.tokens >= 1
    assert limit.tokens + limit.output_reserve == limit.total_tokens
