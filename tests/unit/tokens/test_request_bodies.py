"""COUNT-5: a conversation counted turn by turn counts like the whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate import formats
from foveate.errors import MalformedRequest
from foveate.tokens.counter import RequestCounter
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.request_bodies import Conversation, with_model
from tests.support.strategies.agent_requests import MODELS, anthropic_bodies, chat_bodies

COUNT, APPEND = "count", "append"

steps = st.lists(
    st.tuples(st.just(COUNT), st.sampled_from((None, *MODELS))) | st.tuples(st.just(APPEND), st.integers(1, 3)),
    max_size=14,
)


@pytest.mark.slow
@given(
    body=chat_bodies | anthropic_bodies,
    start=st.integers(0, 8),
    steps=steps,
    model=st.sampled_from(MODELS),
)
def test_a_growing_conversation_counts_like_a_full_recount(
    body: dict[str, Any], start: int, steps: list[tuple[str, Any]], model: str
) -> None:
    """For any order of turns, counts and model switches."""
    remaining = body["messages"][start:]
    current_body = {**body, "model": model, "messages": body["messages"][:start]}
    session = Conversation(current_body)
    for step, argument in (*steps, (COUNT, None)):
        if step == APPEND:
            more, remaining = remaining[:argument], remaining[argument:]
            session.append(*more)
            current_body = {**current_body, "messages": current_body["messages"] + more}
        else:
            requested_model = argument or model
            assert session.count(argument) == count_from_scratch(current_body, requested_model)


def count_from_scratch(body: dict[str, Any], model: str) -> foveate.TokenCount:
    """Count with empty caches."""
    cached_counter = counter_for(model)
    new_counter = RequestCounter(
        model=model,
        backend=cached_counter.backend,
        tokenizer=cached_counter._tokenizer,
        rules=cached_counter._rules,
    )
    request = foveate.count_request(body, model=model)
    from_scratch = new_counter.count_request(with_model(formats.parse_request(body), model))
    assert request == from_scratch
    return from_scratch.total


def test_switching_models_and_back_returns_no_stale_count() -> None:
    session = Conversation({"model": "gpt-4o", "messages": [{"role": "user", "content": "Grüße aus Köln"}]})
    first = session.count()
    session.append({"role": "assistant", "content": "Grüße zurück!"})
    other = session.count("gpt-4")
    session.append({"role": "user", "content": "Wie geht's?"})

    assert first.tokens < session.count().tokens
    assert session.count("gpt-4").tokens > other.tokens
    assert session.count("gpt-4") != session.count("gpt-4o")


def test_an_empty_conversation_is_counted_correctly_after_a_system_message() -> None:
    """OpenAI renders tools into the first message if that is a system message."""
    body = {"model": "gpt-4o", "messages": [], "tools": [{"type": "function", "function": {"name": "f"}}]}
    session = Conversation(body)
    session.count()
    messages = [{"role": "system", "content": "Be brief"}]
    session.append(*messages)

    assert session.count() == foveate.count_request({**body, "messages": messages}).total


def test_counting_twice_gives_the_same_count() -> None:
    session = Conversation({"model": "gpt-4o", "messages": []})
    session.append({"role": "user", "content": "Hello!"})

    assert session.count() == session.count() == session.count("gpt-4o")


def test_an_invalid_message_is_not_added() -> None:
    session = Conversation({"model": "gpt-4o", "messages": []})
    before = session.count()

    with pytest.raises(MalformedRequest):
        session.append({"role": "user", "content": "Hello!"}, b"{")
    assert session.count() == before


def test_a_conversation_without_a_model_counts_like_its_request() -> None:
    body = {"messages": [{"role": "user", "content": "Hello!"}]}

    assert Conversation(body).count() == foveate.count_request(body).total


def test_an_invalid_request_is_rejected() -> None:
    with pytest.raises(MalformedRequest):
        Conversation("[]")
