"""Sessions that were stored before callers were told apart."""

import pytest
from msgspec.structs import replace

from foveate.session.turns import Move
from tests.support.conversations import Worker, body_of, model, user
from tests.unit.session.in_memory import InMemory


@pytest.mark.parametrize("has_others", [False, True])
async def test_a_session_that_was_stored_without_a_caller_gets_one_when_it_goes_on(has_others: bool) -> None:
    old = (await Worker(InMemory()).say(user("a"))).found
    store = InMemory()
    await store.keep([Move(session=replace(old.session, caller=None, setting=None), turns=old.turns)])
    worker = Worker(store, has_others=has_others)
    messages = [user("a")]
    for number in range(3):
        messages += [model(f"{number}"), user("more")]
        sent = await worker.say(*messages, answer=f"{number + 1}")
        assert (sent.id, sent.found.is_new) == (old.session.id, False)
        worker.waited = 0 if number == 0 else worker.waited

    assert worker.waited == 0
    assert store.answers
    assert (await worker.ask(body_of(messages), caller="another")).id != old.session.id


async def test_a_named_session_that_was_stored_without_a_caller_is_found_by_its_name_alone() -> None:
    store = InMemory()
    old = (await Worker(store).say(user("a"), name="mine")).found.session
    store.sessions[old.id] = replace(old, caller=None)
    await Worker(store).say(user("a"), name="mine")

    assert store.sessions[old.id].caller == ""
