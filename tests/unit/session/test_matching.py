"""The session that a request belongs to."""

import threading
from functools import cache

import pytest
from msgspec.structs import replace

from foveate import formats
from foveate.model import Format
from foveate.session.hash_chain import compute_chain
from foveate.session.matching import SessionMatcher, observe_conversation
from tests.support.scenarios.conversations import (
    Message,
    SentRequest,
    Worker,
    model,
    request_body,
    start_workers,
    tool_call,
    tool_result,
    user,
)
from tests.support.stores.memory_session_store import InMemorySessionStore

LONG = "The port is set in src/settings.py, line 12, and it is read again by the server when it starts. " * 2


@pytest.fixture
def worker() -> Worker:
    return Worker(InMemorySessionStore())


async def test_a_growing_conversation_is_one_session(worker: Worker) -> None:
    first = await worker.send_and_answer(user("hello"), answer="Hi.")
    second = await worker.send_and_answer(user("hello"), model("Hi."), user("more"), answer="Sure.")
    third = await worker.send_and_answer(
        user("hello"), model("Hi."), user("more"), model("Sure."), user("thanks")
    )

    assert first.id == second.id == third.id
    assert (first.session_match.is_new, second.session_match.is_new, third.session_match.is_new) == (
        True,
        False,
        False,
    )
    assert (third.session_match.session.messages, third.session_match.known_messages) == (5, 3)


async def test_a_session_that_continues_in_one_process_needs_no_store_queries() -> None:
    store = InMemorySessionStore()
    worker = Worker(store)
    await worker.send_and_answer(user("hello"), answer="Hi.")
    await worker.send_and_answer(user("hello"), model("Hi."), user("more"))

    assert store.query_count == 0


async def test_a_repeated_request_with_history_queries_the_store_once_and_starts_a_new_session() -> None:
    store = InMemorySessionStore()
    worker = Worker(store)
    first = await worker.send_and_answer(user("hello"), model("Hi."), user("more"))
    queries = store.query_count
    second = await worker.send_and_answer(user("hello"), model("Hi."), user("more"))

    assert store.query_count == queries
    assert second.id != first.id
    assert (second.session_match.known_messages, second.session_match.known_from_session_id) == (3, first.id)


@pytest.mark.parametrize(("size_bytes", "is_hashed_here"), [(1_000, True), (2 * 1024 * 1024, False)])
async def test_large_tools_and_prompts_are_hashed_off_the_event_loop(
    size_bytes: int, is_hashed_here: bool
) -> None:
    tool = {"name": "read", "description": "x" * size_bytes, "input_schema": {"type": "object"}}
    request = formats.parse_request(request_body([user("hello")]) | {"tools": [tool]}, Format.ANTHROPIC)
    conversation = observe_conversation(request, compute_chain(request), agent="agent")
    threads: list[threading.Thread] = []

    @cache
    def compute_prompt_digest() -> bytes:
        threads.append(threading.current_thread())
        return conversation.compute_prompt_digest()

    matcher = SessionMatcher(InMemorySessionStore())
    match = await matcher.find(replace(conversation, compute_prompt_digest=compute_prompt_digest), now=1.0)

    assert match.session.prompt_digest == conversation.compute_prompt_digest()
    assert [thread is threading.main_thread() for thread in threads] == [is_hashed_here]


async def test_conversations_with_the_same_first_words_are_different_sessions(worker: Worker) -> None:
    first = await worker.send(request_body([user("hello")]))
    other = await worker.send(request_body([user("hello")]))
    await first.answer("Hi.")
    await other.answer("Good day.")
    other_continued = await worker.send_and_answer(user("hello"), model("Good day."), user("more"))
    first_continued = await worker.send_and_answer(user("hello"), model("Hi."), user("more"))

    assert first.id != other.id
    assert (first_continued.id, other_continued.id) == (first.id, other.id)


async def test_the_same_first_request_after_a_response_starts_another_session(worker: Worker) -> None:
    first = await worker.send_and_answer(user("hello"))
    again = await worker.send_and_answer(user("hello"))

    assert first.id != again.id
    assert again.session_match.session.parent_id is None


RETRY = {"x-stainless-retry-count": "1"}


async def test_a_first_request_that_failed_is_retried_in_the_same_session(worker: Worker) -> None:
    first = await worker.send(request_body([user("hello")]))
    await first.fail()
    other = await worker.send(request_body([user("hello")]))
    again = await worker.send_and_answer(user("hello"), headers=RETRY)

    assert again.id == first.id != other.id


async def test_a_retry_with_other_tools_or_another_prompt_belongs_to_another_session(worker: Worker) -> None:
    first = await worker.send(request_body([user("hello")], system="You are terse.", tools=["read"]))
    await first.fail()

    for body in (
        request_body([user("hello")]),
        request_body([user("hello")], system="You are terse.", tools=["write"]),
    ):
        assert (await worker.send(body, headers=RETRY)).id != first.id


async def test_callers_and_agents_never_share_a_session(worker: Worker) -> None:
    first = await worker.send_and_answer(user("hello"), answer="Hi.")
    for identity in ({"caller": "another key"}, {"agent": "another"}):
        assert (
            await worker.send_and_answer(user("hello"), model("Hi."), user("more"), **identity)
        ).id != first.id
    assert (await worker.send_and_answer(user("hello"), model("Hi."), user("more"))).id == first.id


async def test_a_conversation_whose_tools_and_prompt_change_stays_one_session(worker: Worker) -> None:
    first = await worker.send(request_body([user("hello")], tools=["read"]))
    await first.answer("Hi.")
    messages = [user("hello"), model("Hi."), user("more")]
    second = await worker.send(request_body(messages, tools=["read", "write"], system="It is noon."))

    assert second.id == first.id


async def test_a_response_trimmed_by_the_client_is_recognized(worker: Worker) -> None:
    first = await worker.send_and_answer(user("hello"), answer="  Hi there.\n\n")

    assert (await worker.send_and_answer(user("hello"), model("Hi there."), user("more"))).id == first.id


async def test_a_rewritten_response_matches_if_only_one_session_is_possible(
    worker: Worker,
) -> None:
    first = await worker.send_and_answer(user("hello"), answer="Hi.")
    second = await worker.send_and_answer(user("hello"), model("(an answer)"), user("more"))

    assert second.id == first.id


async def test_an_ambiguous_request_matches_no_session(worker: Worker) -> None:
    first, other = (
        await worker.send_and_answer(user("hello"), answer="a"),
        await worker.send_and_answer(user("hello"), answer="b"),
    )
    third = await worker.send_and_answer(user("hello"), model("(an answer)"), user("more"))

    assert third.id not in (first.id, other.id)
    assert (await worker.send_and_answer(user("hello"), model("a"), user("more"))).id == first.id


async def test_continuing_from_an_earlier_response_forks_a_child_session(worker: Worker) -> None:
    first = await worker.send_and_answer(user("a"), answer="b")
    await worker.send_and_answer(user("a"), model("b"), user("c"), answer="d")
    fork = await worker.send_and_answer(user("a"), model("b"), user("x"), answer="y")
    grown = await worker.send_and_answer(user("a"), model("b"), user("x"), model("y"), user("z"))
    back = await worker.send_and_answer(user("a"), model("b"), user("c"), model("d"), user("e"))

    assert fork.session_match.is_fork
    assert (fork.session_match.session.parent_id, back.id) == (first.id, first.id)
    assert grown.id == fork.id


async def test_concurrent_branches_are_a_session_and_its_children(worker: Worker) -> None:
    first = await worker.send_and_answer(user("a"), answer="b")
    branch = await worker.send(request_body([user("a"), model("b"), user("c")]))
    other_branch = await worker.send(request_body([user("a"), model("b"), user("x")]))
    same = await worker.send(request_body([user("a"), model("b"), user("c")]))

    assert branch.id == first.id
    assert len({branch.id, other_branch.id, same.id}) == 3
    assert {other_branch.session_match.session.parent_id, same.session_match.session.parent_id} == {first.id}


async def test_a_later_request_that_is_repeated_stays_in_its_session(worker: Worker) -> None:
    first = await worker.send_and_answer(user("a"), answer="b")
    for _ in range(2):
        again = await worker.send_and_answer(user("a"), model("b"), user("c"), answer="d")
        assert again.id == first.id


async def test_examples_before_the_first_question_do_not_join_sessions(worker: Worker) -> None:
    examples = [user("2+2"), model("4"), user("3+3"), model("6")]
    requests = [await worker.send_and_answer(*examples, user(question)) for question in ("1+1", "5+5", "1+1")]

    assert len({request.id for request in requests}) == 3
    assert {request.session_match.session.parent_id for request in requests} == {None}


async def test_files_inserted_after_the_history_do_not_split_a_session(worker: Worker) -> None:
    """As the client aider does."""
    files, edited_files = (
        [user("These are the files: main.py ..."), model("Ok.")],
        [user("Files, edited"), model("Ok.")],
    )
    first = await worker.send_and_answer(*files, user("fix the bug"), answer=LONG)
    history = [user("fix the bug"), model(LONG)]
    second = await worker.send_and_answer(
        *history, *edited_files, user("and the tests"), answer=LONG + "Tests too."
    )
    history += [user("and the tests"), model(LONG + "Tests too.")]
    third = await worker.send_and_answer(*history, *files, user("thanks"))

    assert first.id == second.id == third.id


async def test_a_history_that_the_client_compacts_stays_one_session(worker: Worker) -> None:
    call = "toolu_01A09q90qw90lq917835lq9"
    first = await worker.send(request_body([user("look")]))
    await first.answer(calls=[call])
    compacted = [user("Summary: looked at a file."), tool_call(call), tool_result(call, "text")]

    assert (await worker.send_and_answer(*compacted)).id == first.id


async def test_a_resumed_conversation_with_a_changed_first_message_stays_one_session(worker: Worker) -> None:
    """As Qwen Code does, which lists the files of its folder there."""
    call = "call_430645ad9930898bc6c62235"
    first = await worker.send(request_body([user("The folder is empty."), user("look")]))
    await first.answer(calls=[call])
    history = [user("look"), tool_call(call), tool_result(call, "text")]
    await worker.send_and_answer(user("The folder is empty."), *history, answer="Done.")
    resumed = await worker.send_and_answer(
        user("The folder has a file."), *history, model("Done."), user("again")
    )

    assert resumed.id == first.id


async def test_a_short_response_shared_by_two_sessions_matches_neither(worker: Worker) -> None:
    call = "call_430645ad9930898bc6c62235"
    history = [user("look"), tool_call(call), tool_result(call, "text")]
    first = await worker.send(request_body(history[:1]))
    await first.answer(calls=[call])
    await worker.send_and_answer(*history, answer="Done.")
    other = await worker.send_and_answer(*history[:2], tool_result(call, "another text"), answer="Done.")
    resumed = await worker.send_and_answer(
        user("The folder has a file."), *history, model("Done."), user("again")
    )

    assert first.id != other.id
    assert resumed.id not in (first.id, other.id)


async def test_numbered_ids_of_tool_calls_do_not_merge_conversations(worker: Worker) -> None:
    first = await worker.send(request_body([user("look")]))
    await first.answer(calls=["functions.read:0"])
    other = [user("other words"), tool_call("functions.read:0"), tool_result("functions.read:0", "text")]

    assert (await worker.send_and_answer(*other)).id != first.id


async def test_a_session_name_takes_precedence(worker: Worker) -> None:
    unnamed = await worker.send_and_answer(user("hello"), answer="Hi.")
    named = await worker.send_and_answer(user("hello"), model("Hi."), user("more"), name="mine")
    other = await worker.send_and_answer(
        user(
            "quite",
        ),
        name="mine",
    )

    assert named.id == other.id != unnamed.id
    assert named.session_match.session.parent_id is None
    assert (await worker.send_and_answer(user("hello"), model("Hi."), user("on"))).id == unnamed.id


async def test_responses_of_a_named_session_match_no_unnamed_request(worker: Worker) -> None:
    named = await worker.send_and_answer(user("hello"), answer=LONG, name="mine")

    assert (await worker.send_and_answer(user("hello"), model(LONG), user("more"))).id != named.id


async def test_a_named_session_keeps_its_id_after_a_restart_and_in_every_process() -> None:
    store = InMemorySessionStore()
    requests = [await Worker(store).send_and_answer(user(text), name="mine") for text in ("a", "b")]

    assert requests[0].id == requests[1].id
    assert (requests[0].session_match.is_new, requests[1].session_match.is_new) == (True, False)


async def test_a_request_with_another_prompt_and_history_is_a_side_request(worker: Worker) -> None:
    async def send_named(*messages: Message, system: str) -> SentRequest:
        return await worker.send(request_body(messages, system=system), name="mine")

    main = await send_named(user("hello"), system="You write code.")
    title = await send_named(user("hello"), system="You write titles.")
    grown = await send_named(user("hello"), model("Hi."), user("more"), system="You write code.")
    changed = await send_named(
        user("hello"), model("Hi."), user("more"), model("."), user("x"), system="It is noon."
    )

    requests = [main, title, grown, changed]
    assert len({request.id for request in requests}) == 1
    assert [request.session_match.is_side_request for request in requests] == [False, True, False, False]
    assert (title.session_match.session.tip, grown.session_match.known_messages) == (
        main.session_match.session.tip,
        1,
    )


async def test_sub_agents_are_children_of_the_session_that_started_them(worker: Worker) -> None:
    claude = {"x-claude-code-session-id": "s"}
    main = await worker.send_and_answer(user("hello"), headers=claude)
    sub = await worker.send_and_answer(user("look"), headers={**claude, "x-claude-code-agent-id": "a"})
    deeper = await worker.send_and_answer(
        user("look"),
        headers={**claude, "x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"},
    )

    assert (sub.session_match.session.parent_id, deeper.session_match.session.parent_id) == (main.id, sub.id)
    assert not sub.session_match.is_fork


async def test_a_previous_response_id_matches_its_session(worker: Worker) -> None:
    def body(text: str, previous: str = "") -> dict[str, object]:
        more = {"previous_response_id": previous} if previous else {}
        return {"model": "gpt-5.2", "input": text, **more}

    first = await worker.send(body("hello"), api_format=Format.RESPONSES)
    await first.answer("Hi.", response="resp_1")
    second = await worker.send(body("more", "resp_1"), api_format=Format.RESPONSES)
    await second.answer("Sure.", response="resp_2")
    third = await worker.send(body("more", "resp_2"), api_format=Format.RESPONSES, caller="a new key")
    fork = await worker.send(body("other", "resp_1"), api_format=Format.RESPONSES)
    unknown = await worker.send(body("more", "resp_9"), api_format=Format.RESPONSES)

    assert first.id == second.id == third.id
    assert fork.session_match.session.parent_id == first.id
    assert unknown.id not in (first.id, fork.id)


async def test_a_request_without_messages_is_a_session_that_is_not_stored(worker: Worker) -> None:
    first, other = await worker.send_and_answer(), await worker.send_and_answer()

    assert first.id != other.id
    assert not first.session_match.is_changed


async def test_a_session_is_found_by_another_process_once_it_is_stored() -> None:
    store = InMemorySessionStore()
    first = await Worker(store, has_others=True).send_and_answer(user("hello"), answer="Hi.")
    second = await Worker(store, has_others=True).send_and_answer(
        user("hello"), model("Hi."), user("more"), answer="Sure."
    )
    restarted = await Worker(store).send_and_answer(
        user("hello"), model("Hi."), user("more"), model("(an answer)"), user("x")
    )

    assert first.id == second.id == restarted.id


async def test_a_fork_is_found_by_another_process() -> None:
    store = InMemorySessionStore()
    first = await Worker(store).send_and_answer(user("a"), answer="(b)")
    await Worker(store).send_and_answer(user("a"), model("b"), user("c"), answer="(d)")
    fork = await Worker(store).send_and_answer(user("a"), model("b"), user("x"), model("y"), user("z"))

    assert fork.session_match.session.parent_id == first.id


async def test_a_turn_of_another_worker_is_found_before_it_is_stored() -> None:
    store = InMemorySessionStore()
    workers = start_workers(store, count=3)
    messages, ids = [user("hello")], set()
    for number in range(6):
        request = await workers[number % 3].send_and_answer(*messages, answer=f"Answer {number}.")
        ids.add(request.id)
        messages += [model(f"Answer {number}."), user("more")]

    assert len(ids) == 1
    assert not store.sessions


async def test_a_changed_answer_of_another_worker_is_matched_before_it_is_stored() -> None:
    worker_a, worker_b = start_workers(InMemorySessionStore())
    first = await worker_a.send_and_answer(user("hello"), answer="Hi.")
    more = await worker_b.send_and_answer(user("hello"), model("(an answer)"), user("more"))
    last = await worker_a.send_and_answer(
        user("hello"), model("(an answer)"), user("more"), model("?"), user("x")
    )

    assert first.id == more.id == last.id


async def test_a_session_whose_answer_was_changed_is_not_matched_if_a_worker_missed_others() -> None:
    """The client may continue a request that this worker does not know, which got this answer."""
    worker_a, worker_b = start_workers(InMemorySessionStore(), ring_bytes=4096)
    first = await worker_a.send_and_answer(user("hello"), answer="Hi.", now=1.0)
    for number in range(20):
        await worker_b.send_and_answer(user(f"{number}"), now=2.0)
    turns = [[user("hello"), model("(an answer)"), user(text)] for text in ("more", "else")]

    doubtful = await worker_a.send(request_body(turns[0]), now=3.0)
    later = await worker_a.send(request_body(turns[1]), now=100.0)

    assert doubtful.id != first.id
    assert later.id == first.id


async def test_a_clock_that_steps_back_does_not_prolong_the_doubt_about_missed_requests() -> None:
    worker_a, worker_b = start_workers(InMemorySessionStore(), ring_bytes=4096)
    await worker_a.send_and_answer(user("something"), now=100_000.0)
    for number in range(20):
        await worker_b.send_and_answer(user(f"{number}"), now=100_000.0)
    await worker_a.send_and_answer(user("else"), now=100_001.0)  # some were missed
    first = await worker_a.send_and_answer(user("hello"), answer="Hi.", now=1.0)
    later = await worker_a.send(request_body([user("hello"), model("(an answer)"), user("more")]), now=100.0)

    assert later.id == first.id


async def test_a_retry_at_another_worker_continues_the_request_that_failed() -> None:
    worker_a, worker_b = start_workers(InMemorySessionStore())
    running = await worker_a.send(request_body([user("hello")]))
    failed = await worker_a.send(request_body([user("hello")]))
    await failed.fail()

    assert (await worker_b.send(request_body([user("hello")]), headers=RETRY)).id == failed.id
    assert failed.id != running.id


async def test_a_retry_in_flight_at_another_worker_is_not_retried_again() -> None:
    worker_a, worker_b = start_workers(InMemorySessionStore())
    failed = await worker_a.send(request_body([user("hello")]))
    await failed.fail()
    again = await worker_b.send(request_body([user("hello")]), headers=RETRY)
    other = await worker_a.send(request_body([user("hello")]), headers=RETRY)

    assert again.id == failed.id != other.id


async def test_a_request_that_ended_without_a_response_is_known_to_other_workers() -> None:
    worker_a, worker_b = start_workers(InMemorySessionStore())
    id_ = (await worker_a.send(request_body([user("hello")]))).id
    await worker_a.send(request_body([user("something else")]))  # tells others of the first one as well

    assert (await worker_b.send(request_body([user("hello")]), headers=RETRY)).id == id_


async def test_a_conversation_with_changed_responses_stays_one_session_across_workers() -> None:
    store = InMemorySessionStore()
    workers = [Worker(store, has_others=True) for _ in range(2)]
    messages, ids = [user("hello")], set()
    for number in range(6):
        request = await workers[number // 2 % 2].send_and_answer(
            *messages, answer=f"<think>Hm.</think> Answer {number}"
        )
        ids.add(request.id)
        messages += [model(f"Answer {number}"), user("more")]

    assert len(ids) == 1


async def test_an_answer_of_another_worker_is_preferred_to_a_session_with_another_answer() -> None:
    worker_a, worker_b = start_workers(InMemorySessionStore())
    other = await worker_a.send_and_answer(user("hello"), answer="Hi.")
    request = await worker_b.send_and_answer(user("hello"), answer="Good morning.")
    more = await worker_a.send_and_answer(user("hello"), model("Good morning."), user("more"))

    assert other.id != request.id
    assert more.id == request.id


async def test_a_session_continued_by_another_process_is_not_matched_by_its_old_tip() -> None:
    store = InMemorySessionStore()
    worker_a, worker_b = Worker(store, has_others=True), Worker(store, has_others=True)
    first = await worker_a.send_and_answer(user("hello"), answer="Hi.", now=1.0)
    await worker_b.send_and_answer(user("hello"), model("Hi."), user("more"), now=2.0)
    changed = await worker_a.send_and_answer(user("hello"), model("(an answer)"), user("else"), now=3.0)

    assert changed.id != first.id


async def test_of_sessions_with_the_same_response_the_one_with_the_same_prompt_matches(
    worker: Worker,
) -> None:
    requests = {system: await worker.send(request_body([user("hello")], system=system)) for system in "xy"}
    for request in requests.values():
        await request.answer("Done.")
    for _ in range(2):
        again = await worker.send(request_body([user("hello"), model("Done."), user("go on")], system="x"))
        await again.fail()
        assert again.id == requests["x"].id


async def test_a_worker_that_knows_one_of_two_sessions_with_the_same_response_queries_the_store() -> None:
    store = InMemorySessionStore()
    worker_a, worker_b = Worker(store, has_others=True), Worker(store, has_others=True)
    known, better = [
        await worker.send(request_body([user("hello")], system=system))
        for worker, system in ((worker_a, "x"), (worker_b, "y"))
    ]
    for request in (known, better):
        await request.answer("Done.")
    more = [user("hello"), model("Done."), user("go on")]
    await (await worker_a.send(request_body(more, system="x"))).answer("Yes.")

    assert (await worker_a.send(request_body(more, system="y"))).id == better.id


async def test_equal_sessions_of_two_processes_are_not_continued_by_a_guess() -> None:
    store = InMemorySessionStore()
    worker_a, worker_b = Worker(store, has_others=True), Worker(store, has_others=True)
    equal = [await worker.send_and_answer(user("hello"), answer="Done.") for worker in (worker_a, worker_b)]
    more = request_body([user("hello"), model("Done."), user("go on")])

    continued = [await worker.send(more) for worker in (worker_a, worker_b)]

    assert len({request.id for request in (*equal, *continued)}) == 4


async def test_equal_sessions_of_two_processes_continue_on_their_connections() -> None:
    store = InMemorySessionStore()
    workers = [Worker(store, has_others=True) for _ in range(2)]
    equal = [await worker.send_and_answer(user("hello"), answer="Done.", connection=1) for worker in workers]
    more = request_body([user("hello"), model("Done."), user("go on")])

    continued = [await worker.send(more, connection=1) for worker in workers]

    assert [request.id for request in continued] == [request.id for request in equal]


async def test_equal_sessions_of_one_process_continue_on_their_connections() -> None:
    worker = Worker(InMemorySessionStore(), has_others=True)
    equal = [await worker.send_and_answer(user("hello"), answer="Done.", connection=each) for each in (1, 2)]
    more = request_body([user("hello"), model("Done."), user("go on")])

    continued = [await worker.send(more, connection=each) for each in (2, 1)]

    assert [request.id for request in reversed(continued)] == [request.id for request in equal]


async def test_a_request_on_another_connection_is_not_matched_by_a_guess() -> None:
    store = InMemorySessionStore()
    worker_a, worker_b = Worker(store, has_others=True), Worker(store, has_others=True)
    equal = [
        await worker.send_and_answer(user("hello"), answer="Done.", connection=1)
        for worker in (worker_a, worker_b)
    ]
    more = await worker_a.send(request_body([user("hello"), model("Done."), user("go on")]), connection=2)

    assert more.id not in {request.id for request in equal}


async def test_a_session_that_continues_on_its_connection_needs_no_store_queries() -> None:
    store = InMemorySessionStore()
    worker = Worker(store, has_others=True)
    messages = [user("hello")]
    for connection, queries in ((1, 0), (1, 0), (2, 1), (2, 1), (0, 2), (0, 3)):
        request = await worker.send_and_answer(*messages, answer="Done.", connection=connection)
        messages += [model("Done."), user("go on")]

        assert store.query_count == queries
        assert request.session_match.session.messages == len(messages) - 2


async def test_an_unchanged_session_is_stored_at_most_once_a_minute(worker: Worker) -> None:
    await worker.send_and_answer(user("a"), name="mine", now=100.0)

    for now, is_changed in ((101.0, False), (161.0, True), (162.0, False)):
        assert (
            await worker.send_and_answer(user("a"), name="mine", now=now)
        ).session_match.is_changed is is_changed
