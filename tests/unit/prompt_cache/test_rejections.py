"""Rejections of breakpoints are recognized in the errors of each provider, and remembered for a while."""

import json
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt_cache.rejections import (
    REMEMBERED_SECONDS,
    KnownRejections,
    Rejection,
    classify_rejection,
    find_rejected_parameters,
)

DAY = 86_400.0


def anthropic_error(message: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": message},
        "request_id": "req_1",
    }


def classify(body: object, status: int = 400) -> Rejection | None:
    return classify_rejection(status, body.encode() if isinstance(body, str) else json.dumps(body).encode())


@pytest.mark.parametrize(
    "body",
    [
        # Anthropic, and Vertex, which accepts no breakpoint for the whole request
        anthropic_error("cache_control: Extra inputs are not permitted"),
        anthropic_error("system.2.cache_control.ephemeral.scope: Extra inputs are not permitted"),
        # OpenRouter: the provider's own error is a string in it
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {
                    "raw": json.dumps(anthropic_error("messages.0.content.0.cache_control: Extra inputs …")),
                    "provider_name": "Google",
                },
            },
            "user_id": "user_1",
        },
        # Bedrock
        {"message": "#/messages/6/content/0: extraneous key [cachePoint] is not permitted, please reformat"},
        {"Message": "You invoked an unsupported model or your request did not allow prompt caching."},
        # OpenAI and compatible servers
        {"error": {"message": "Unknown parameter: 'messages[0].content[0].prompt_cache_breakpoint'."}},
        {
            "error": {
                "message": "Unsupported value",
                "param": "prompt_cache_options",
                "code": "invalid_parameter",
            }
        },
        {"detail": "Unsupported parameter(s): `prompt_cache_key`"},
        # Google
        [
            {
                "error": {
                    "code": 400,
                    "message": "Invalid JSON payload received. Unknown name \"cache_control\" at 'contents[0]'",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        # pydantic as JSON (Mistral) and as a Python repr (vLLM)
        {
            "detail": [
                {
                    "type": "extra_forbidden",
                    "loc": ["body", "messages", 0, "user", "content", 0, "text", "cache_control"],
                    "msg": "Extra inputs are not permitted",
                    "input": {"type": "ephemeral"},
                }
            ]
        },
        {
            "object": "error",
            "message": "[{'type': 'missing', 'loc': ('body', 'model'), 'msg': 'x', 'input': {'a': 'b c'}}, "
            "{'type': 'extra_forbidden', 'loc': ('body', 'cache_control'), 'msg': 'Extra inputs'}]",
        },
        # a proxy that puts the error into a sentence, into quotes, or not into JSON at all
        {
            "error": {
                "message": "BadRequestError: "
                f"{json.dumps(anthropic_error('x.cache_control: Extra inputs'))}. Group=a"
            }
        },
        {"error": {"message": 'Provider said: "cache_control: Extra inputs are not permitted"'}},
        "cache_control is not supported",
    ],
)
def test_an_error_that_names_the_breakpoint_rejects_it(body: object) -> None:
    assert classify(body) is Rejection.BREAKPOINTS


@pytest.mark.parametrize("status", [400, 403, 422])
def test_providers_reject_with_several_statuses(status: int) -> None:
    assert classify(anthropic_error("cache_control: no"), status) is Rejection.BREAKPOINTS


@pytest.mark.parametrize("status", [200, 401, 404, 429, 500, 529])
def test_other_statuses_are_not_rejections_of_breakpoints(status: int) -> None:
    assert classify(anthropic_error("cache_control: no"), status) is None


@pytest.mark.parametrize(
    "message",
    [
        "tools.20.custom.cache_control.ephemeral.ttl: Extra inputs are not permitted",
        "#/system/1/cachePoint: extraneous key [ttl] is not permitted",
    ],
)
def test_breakpoints_may_be_accepted_without_a_ttl(message: str) -> None:
    assert (
        classify({"error": {"message": json.dumps({"message": message}) + ". Received Model Group=x"}})
        is Rejection.TTL
    )


@pytest.mark.parametrize(
    "message",
    [
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        "system.1.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' one",
        "messages.3.content.0.text: cache_control cannot be set for empty text blocks",
        "messages.13.content.0.thinking.cache_control: Extra inputs are not permitted",
        "Cache point cannot be inserted after reasoning block. Please remove the invalid cache point.",
    ],
)
def test_breakpoints_may_be_accepted_but_not_at_this_position(message: str) -> None:
    assert classify(anthropic_error(message)) is Rejection.PLACEMENT


def test_the_reason_may_be_in_another_field_than_the_parameter_name() -> None:
    body = {"error": {"message": "At most 4 are allowed", "param": "messages[3].prompt_cache_breakpoint"}}

    assert classify(body) is Rejection.PLACEMENT


@pytest.mark.parametrize(
    "body",
    [
        anthropic_error("messages.0.role: Input should be 'user' or 'assistant'"),
        anthropic_error("prompt is too long: 210000 tokens > 200000 maximum"),
        {"error": {"message": "Invalid value: 'please explain cache_control to me'. Supported values are …"}},
        {"error": {"message": "Invalid value", "input": "cache_control"}},
        {"detail": [{"loc": ["body", "messages"], "msg": "Field required", "input": {"cache_control": {}}}]},
        {"message": "role\n  Input should be 'user' [type=enum, input_value={'cache_control': 1}]"},
        {"message": "[{'type': 'x', 'loc': ('body', 'model'), 'msg': 'no', 'input': {'cache_control': {}}}]"},
        {"error": {"message": 'cannot parse {"messages": [{"content": "cache_control"}]}'}},
        {"error": {"message": "bad", "metadata": {"raw": json.dumps({"request": {"cache_control": {}}})}}},
        {},
        [],
        "",
        "<html>Bad Request</html>",
    ],
)
def test_an_error_that_only_quotes_the_request_rejects_no_breakpoint(body: object) -> None:
    assert classify(body) is None


json_bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "detail", "loc", "msg", "raw"]), children, max_size=3
        )
    ),
    max_leaves=10,
)


@given(body=st.binary() | json_bodies.map(lambda value: json.dumps(value).encode()))
def test_any_error_body_is_parsed(body: bytes) -> None:
    classify_rejection(400, body)


@pytest.mark.parametrize(
    "text", ["'a " * 100_000, "{" * 100_000, '{"error":' * 50_000, "input_value=" * 50_000]
)
def test_unusual_error_bodies_are_parsed_quickly(text: str) -> None:
    start_seconds = thread_time()

    assert classify_rejection(400, text.encode()) is None
    assert thread_time() - start_seconds < 5


def known_rejection(kind: Rejection, at: float = 0.0) -> KnownRejections:
    return KnownRejections().with_rejection(kind, "vertex", "claude", session="s", at=at)


def check_accepted(
    rejections: KnownRejections, at: float, *, model: str = "claude", session: str = "s"
) -> tuple[bool, bool]:
    are_breakpoints_accepted = rejections.accepts_breakpoints("vertex", model, session=session, at=at)
    return are_breakpoints_accepted, rejections.accepts_ttl("vertex", model, at=at)


def test_nothing_is_rejected_at_first() -> None:
    assert check_accepted(KnownRejections(), 0.0) == (True, True)


def test_an_upstream_that_rejects_breakpoints_gets_none_for_a_day_in_any_session() -> None:
    rejections = known_rejection(Rejection.BREAKPOINTS)

    assert check_accepted(rejections, DAY - 1, session="other")[0] is False
    assert check_accepted(rejections, DAY)[0] is True
    assert check_accepted(rejections, 1, model="other") == (True, True)
    assert rejections.accepts_breakpoints("anthropic", "claude", session="s", at=1)


def test_an_upstream_that_rejects_ttls_still_gets_breakpoints() -> None:
    rejections = known_rejection(Rejection.TTL)

    assert check_accepted(rejections, DAY - 1) == (True, False)
    assert check_accepted(rejections, DAY) == (True, True)
    assert (
        check_accepted(
            rejections.with_rejection(Rejection.BREAKPOINTS, "vertex", "claude", session="s", at=1), 2
        )[0]
        is False
    )


def test_misplaced_breakpoints_are_disabled_only_in_their_own_session() -> None:
    rejections = known_rejection(Rejection.PLACEMENT)

    assert check_accepted(rejections, 599) == (False, True)
    assert check_accepted(rejections, 599, session="other") == (True, True)
    assert check_accepted(rejections, 600) == (True, True)


def test_a_clock_that_is_set_back_does_not_prolong_a_rejection() -> None:
    rejections = known_rejection(Rejection.BREAKPOINTS, at=10 * DAY)

    assert check_accepted(rejections, 10 * DAY - 60)[0] is False
    assert check_accepted(rejections, 8 * DAY)[0] is True


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Unknown parameter: 'prompt_cache_key'.", "param": "prompt_cache_key"}},
        {"error": {"message": "Unrecognized request argument supplied: prompt_cache_key"}},
        {"detail": "Unsupported parameter(s): `prompt_cache_key`"},
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "prompt_cache_key"], "msg": "Extra", "input": "k"}
            ]
        },
        {"error": {"message": "json: unknown field `prompt_cache_key`, expected one of `model`, `messages`"}},
        "prompt_cache_key is not supported",
    ],
)
def test_an_error_that_names_a_parameter_rejects_it(body: object) -> None:
    error_body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    names = {"prompt_cache_key", "stream_options"}

    assert find_rejected_parameters(400, error_body, names) == {"prompt_cache_key"}
    assert find_rejected_parameters(422, error_body, {"stream_options"}) == frozenset()
    assert find_rejected_parameters(500, error_body, names) == frozenset()


@pytest.mark.parametrize(
    "message",
    [
        "my_prompt_cache_keys: no",
        'messages.0: "what does prompt_cache_key do?" is not a list',
        "max_tokens: too large",
    ],
)
def test_an_error_that_only_quotes_a_parameter_rejects_none(message: str) -> None:
    assert (
        find_rejected_parameters(400, json.dumps(anthropic_error(message)).encode(), {"prompt_cache_key"})
        == frozenset()
    )


def test_an_upstream_that_rejects_a_parameter_does_not_get_it_for_a_day() -> None:
    rejections = KnownRejections().with_rejected_parameter("prompt_cache_key", "vllm", "qwen", at=0.0)

    assert not rejections.accepts_parameter("vllm", "qwen", "prompt_cache_key", at=DAY - 1)
    assert rejections.accepts_parameter("vllm", "qwen", "prompt_cache_key", at=DAY)
    assert rejections.accepts_parameter("vllm", "qwen", "stream_options", at=1)
    assert rejections.accepts_parameter("vllm", "other", "prompt_cache_key", at=1)
    assert rejections.accepts_parameter("other", "qwen", "prompt_cache_key", at=1)
    assert check_accepted(rejections, 1) == (True, True)


def test_a_bounded_number_of_rejected_parameters_is_remembered() -> None:
    rejections = KnownRejections(limit=2)
    for number in range(5):
        rejections = rejections.with_rejected_parameter("p", "up", str(number), at=0.0)

    assert list(rejections.parameters) == [("up", "3", "p"), ("up", "4", "p")]


events = st.tuples(st.sampled_from(Rejection), st.integers(0, 6), st.integers(0, 2), st.integers(0, 200_000))


@given(rejection_events=st.lists(events, max_size=20), limit=st.integers(1, 4))
def test_memory_of_rejections_is_bounded_and_includes_the_latest(
    rejection_events: list[tuple[Rejection, int, int, int]], limit: int
) -> None:
    rejections = KnownRejections(limit=limit)
    for kind, model, session, now in rejection_events:
        rejections = rejections.with_rejection(kind, "up", str(model), session=str(session), at=now)

        assert len(rejections.remembered) <= limit
        if kind is Rejection.TTL:
            assert not rejections.accepts_ttl("up", str(model), at=now)
        else:
            assert not rejections.accepts_breakpoints("up", str(model), session=str(session), at=now)
        assert rejections.accepts_breakpoints(
            "up", str(model), session=str(session), at=now + max(REMEMBERED_SECONDS.values()) + 200_000
        )
