"""Sessions that were stored before callers were recorded."""

import pytest
from msgspec.structs import replace

from foveate.session.store import SessionUpdate
from tests.support.scenarios.conversations import Worker, model, request_body, user
from tests.support.stores.memory_session_store import InMemorySessionStore


@pytest.mark.parametrize("has_others", [False, True])
async def test_a_session_stored_without_a_caller_gets_one_when_it_continues(has_others: bool) -> None:
    old = (await Worker(InMemorySessionStore()).send_and_answer(user("a"))).session_match
    store = InMemorySessionStore()
    await store.save(
        [SessionUpdate(session=replace(old.session, caller=None, prompt_digest=None), turns=old.turns)]
    )
    worker = Worker(store, has_others=has_others)
    messages = [user("a")]
    for number in range(3):
        messages += [model(f"{number}"), user("more")]
        request = await worker.send_and_answer(*messages, answer=f"{number + 1}")
        assert (request.id, request.session_match.is_new) == (old.session.id, False)

    assert store.answers
    assert (await worker.send(request_body(messages), caller="another")).id != old.session.id


async def test_a_named_session_stored_without_a_caller_is_found_by_its_name() -> None:
    store = InMemorySessionStore()
    old = (await Worker(store).send_and_answer(user("a"), name="mine")).session_match.session
    store.sessions[old.id] = replace(old, caller=None)
    await Worker(store).send_and_answer(user("a"), name="mine")

    assert store.sessions[old.id].caller == ""
