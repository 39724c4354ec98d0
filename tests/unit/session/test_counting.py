"""COUNT-5: stored counts of turns add up to a recount, and nothing is counted twice."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.caching import hash_bytes
from foveate.model import Format, Request, TokenCount
from foveate.session.counting import COUNTING_RULES_VERSION, TurnCounter, count_in_thread, get_counter_name
from foveate.session.hash_chain import compute_chain
from foveate.tokens import RequestCount, RequestCounter, counter_for, drop_caches
from foveate.tokens.counter import Tally
from foveate.tokens.rendering.rendering import MeasuredRendering
from foveate.tokens.request_bodies import with_model
from foveate.tokens.tokenizers.tokenizer import TextLength, Tokenizer
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.memory_session_store import InMemorySessionStore
from tests.support.strategies.agent_requests import MODELS, anthropic_bodies, chat_bodies
from tests.support.strategies.claude_requests import claude_requests

Body = dict[str, Any]

steps = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from(MODELS), st.booleans(), st.booleans()), min_size=1, max_size=6
)


class RecordingTokenizer:
    """A tokenizer that records the texts it measures."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.name, self.exact, self.safe_boundary = tokenizer.name, tokenizer.exact, tokenizer.safe_boundary
        self.additive_counts, self.to_token_count, self.count_steps = (
            tokenizer.additive_counts,
            tokenizer.to_token_count,
            tokenizer.count_steps,
        )
        self.texts: list[str] = []
        self.threads: set[int] = set()
        self._tokenizer = tokenizer

    def measure(self, text: str) -> TextLength:
        return self.measure_many([text])[0]

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        self.texts += texts
        self.threads |= {get_ident()} if texts else set()
        return self._tokenizer.measure_many(texts)


class RecordingCounter(RequestCounter):
    """A counter that records how many messages were added at a time."""

    added: list[int]

    @classmethod
    def copy_of(cls, counter: RequestCounter) -> "RecordingCounter":
        copy = cls(
            model=counter.model, backend=counter.backend, tokenizer=counter._tokenizer, rules=counter._rules
        )
        copy.added = []
        get_counter_name(copy)
        return copy

    def add_measured(self, tally: Tally, measured: Iterable[MeasuredRendering]) -> Tally:
        renderings = list(measured)
        self.added.append(len(renderings))
        return super().add_measured(tally, renderings)


def make_counter(model: str) -> RequestCounter:
    """A counter with empty caches."""
    counter = counter_for(model)
    return RequestCounter(
        model=model, backend=counter.backend, tokenizer=counter._tokenizer, rules=counter._rules
    )


def make_recording_counter(model: str) -> tuple[RequestCounter, RecordingTokenizer]:
    tokenizer = RecordingTokenizer(counter_for(model)._tokenizer)
    counter = RequestCounter(
        model=model, backend="offline", tokenizer=tokenizer, rules=counter_for(model)._rules
    )
    get_counter_name(counter)
    tokenizer.texts.clear()
    tokenizer.threads.clear()
    return counter, tokenizer


async def count_body(counts: TurnCounter, body: Body | bytes, counter: RequestCounter) -> RequestCount:
    request = with_model(formats.parse_request(body), counter.model)
    return await counts.count("agent", request, compute_chain(request), counter)


def count_synchronously(counts: TurnCounter, request: Request, model: str) -> RequestCount:
    """Count a request that is too short for a thread, without an event loop."""
    try:
        counts.count("agent", request, compute_chain(request), counter_for(model)).send(None)
    except StopIteration as finished:
        count: RequestCount = finished.value
        return count
    raise AssertionError("the count is not synchronous")


def recount(body: Body | bytes, model: str) -> tuple[TokenCount, tuple[str, ...]]:
    count = make_counter(model).count_request(with_model(formats.parse_request(body), model))
    return count.total, count.unexplained


def count_body_synchronously(counts: TurnCounter, body: Body, model: str) -> tuple[TokenCount, tuple[str, ...]]:
    """Count a body that is too short for a thread, without an event loop."""
    count = count_synchronously(counts, with_model(formats.parse_request(body), model), model)
    return count.total, count.unexplained


@pytest.mark.slow
@given(body=chat_bodies | anthropic_bodies, steps=steps)
def test_stored_counts_add_up_to_a_recount(body: Body, steps: list[tuple[int, str, bool, bool]]) -> None:
    """For all models and all earlier requests, in this or another process."""
    counts = TurnCounter(InMemorySessionStore())
    for length, model, drops_caches, is_later in steps:
        if drops_caches:
            drop_caches()
        messages = body["messages"][:length]
        if is_later and messages and messages[0]["role"] == "system":
            messages = [{"role": "system", "content": "It is later now"}, *messages[1:]]
        request = {**body, "messages": messages}

        assert count_body_synchronously(counts, request, model) == recount(request, model)


BODY_BUILDERS = {
    Format.ANTHROPIC: lambda messages: {"max_tokens": 9, "messages": messages},
    Format.CHAT: lambda messages: {"messages": messages},
    Format.RESPONSES: lambda messages: {"input": messages},
}
PARTS = st.sampled_from(
    [
        {"type": "text", "text": "Hello there"},
        {"type": "input_text", "text": "Hello again"},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
        {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
        {"type": "tool_use", "id": "1", "name": "read_file", "input": {"path": "a/b.py"}},
        {"type": "tool_result", "tool_use_id": "1", "content": "file text " * 20},
    ]
)


@pytest.mark.slow
@given(
    messages=st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "assistant"]),
                "content": st.sampled_from(["Hi", "Grüße"]) | st.lists(PARTS, min_size=1, max_size=2),
            }
        ),
        min_size=1,
        max_size=3,
    ),
    steps=st.lists(
        st.tuples(st.sampled_from(list(BODY_BUILDERS)), st.sampled_from(MODELS), st.booleans()),
        min_size=2,
        max_size=6,
    ),
)
@example(
    messages=[
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}],
        }
    ],
    steps=[(Format.ANTHROPIC, "gpt-5", False), (Format.CHAT, "gpt-5", False)],
)
def test_the_same_text_in_another_format_is_counted_by_its_rules(
    messages: list[Body], steps: list[tuple[Format, str, bool]]
) -> None:
    """An image in one format is plain JSON in another."""
    counts = TurnCounter(InMemorySessionStore())
    for api_format, model, drops_caches in steps:
        if drops_caches:
            drop_caches()
        request = with_model(formats.parse_request(BODY_BUILDERS[api_format](messages), api_format), model)

        assert (
            count_synchronously(counts, request, model).total
            == make_counter(model).count_request(request).total
        )


@pytest.mark.slow
@given(body=claude_requests(max_turns=3, max_calls=2, breakpoints=True), drops_caches=st.booleans())
@settings(max_examples=limit_examples(25))
async def test_stored_counts_of_thinking_images_and_parallel_calls_add_up_to_a_recount(
    body: Body, drops_caches: bool
) -> None:
    counts = TurnCounter(InMemorySessionStore())
    for length in range(1, len(body["messages"]) + 1):
        if drops_caches:
            drop_caches()
        part = {**body, "messages": body["messages"][:length]}
        count = await count_body(counts, part, counter_for(body["model"]))

        assert (count.total, count.unexplained) == recount(part, body["model"])


@pytest.mark.slow
@given(body=claude_requests(max_turns=3, max_calls=2))
@settings(max_examples=limit_examples(25))
async def test_counts_add_up_to_a_recount_while_a_breakpoint_moves_to_the_last_message(body: Body) -> None:
    counts = TurnCounter(InMemorySessionStore())
    for length in range(1, len(body["messages"]) + 1):
        *before, last = body["messages"][:length]
        if isinstance(last["content"], list):
            *blocks, last_block = last["content"]
            last = {**last, "content": [*blocks, {**last_block, "cache_control": {"type": "ephemeral"}}]}
        part = {**body, "messages": [*before, last]}
        count = await count_body(counts, part, counter_for(body["model"]))

        assert (count.total, count.unexplained) == recount(part, body["model"])


@pytest.mark.parametrize("drops_caches", [False, True])
async def test_only_the_new_turn_of_a_request_is_counted(drops_caches: bool) -> None:
    counts = TurnCounter(InMemorySessionStore())
    messages = [
        {"role": ("user", "assistant")[index % 2], "content": f"This is turn {index}"} for index in range(301)
    ]
    counter, tokenizer = make_recording_counter("gpt-4o")
    await count_body(counts, {"n": 1, "messages": messages[:300]}, counter)
    tokenizer.texts.clear()
    if drops_caches:  # as in another process
        drop_caches()
        counter, tokenizer = make_recording_counter("gpt-4o")
    count = await count_body(counts, {"n": 1, "messages": messages}, counter)

    assert [text for text in tokenizer.texts if "This is turn" in text] == ["This is turn 300"]
    assert count.total == recount({"n": 1, "messages": messages}, "gpt-4o")[0]


async def test_many_new_turns_are_counted_without_the_old_ones() -> None:
    store = InMemorySessionStore()
    counts = TurnCounter(store)
    messages = [{"role": "user", "content": f"This is turn {index}"} for index in range(340)]
    early, late = (
        with_model(formats.parse_request({"n": 1, "messages": messages[:length]}), "gpt-4o")
        for length in (300, 340)
    )
    counter = RecordingCounter.copy_of(counter_for("gpt-4o"))
    await counts.count("agent", early, compute_chain(early), counter, known=0)
    counter.added.clear()
    count = await counts.count("agent", late, compute_chain(late), counter, known=300)

    assert count.total == recount(late.body, "gpt-4o")[0]
    assert sum(counter.added) == 40


async def test_a_conversation_that_would_fill_the_cache_is_not_cached() -> None:
    """Regression: a request with 20,000 messages left 10 MB in memory."""
    counts = TurnCounter(InMemorySessionStore(), capacity=40)
    for turns, cached in ((11, 0), (10, 10)):
        messages = [{"role": "user", "content": f"{turns} {index}"} for index in range(turns)]
        count = await count_body(counts, {"n": 1, "messages": messages}, counter_for("gpt-4o"))

        assert count.total == recount({"n": 1, "messages": messages}, "gpt-4o")[0]
        assert len(counts._measured_messages) == cached


async def test_new_turns_are_not_looked_up_in_the_store() -> None:
    store = InMemorySessionStore()
    messages = [{"role": "user", "content": f"This is turn {index}"} for index in range(30)]
    counter = counter_for("gpt-4o")
    whole = with_model(formats.parse_request({"n": 1, "messages": messages}), "gpt-4o")
    early = with_model(formats.parse_request({"n": 1, "messages": messages[:20]}), "gpt-4o")
    await TurnCounter(store).count("agent", early, compute_chain(early), counter, known=0)

    assert store.count_query_sizes == []
    drop_caches()  # as in another process
    counts = TurnCounter(store)
    for known in (20, 30):  # the second time everything is cached
        count = await counts.count("agent", whole, compute_chain(whole), counter, known=known)
        assert count.total == recount(whole.body, "gpt-4o")[0]
    assert store.count_query_sizes == [20]
    assert len(store.counted) == 30


async def test_counts_are_stored_for_each_agent() -> None:
    store = InMemorySessionStore()
    counts = TurnCounter(store)
    request = with_model(
        formats.parse_request({"n": 1, "messages": [{"role": "user", "content": "Hello!"}]}), "gpt-4o"
    )
    for agent in ("ana", "bo"):
        await counts.count(agent, request, compute_chain(request), counter_for("gpt-4o"))

    assert {agent for agent, _, _ in store.counted} == {"ana", "bo"}


async def test_a_new_time_in_the_system_message_recounts_no_turn() -> None:
    counts = TurnCounter(InMemorySessionStore())
    counter, tokenizer = make_recording_counter("gpt-4o")
    turns = [{"role": "user", "content": f"This is turn {index}"} for index in range(20)]
    for time in ("noon", "evening"):
        tokenizer.texts.clear()
        body = {"n": 1, "messages": [{"role": "system", "content": f"It is {time}"}, *turns]}
        count = await count_body(counts, body, counter)

        assert count.total == recount(body, "gpt-4o")[0]
    assert f"It is {time}" in tokenizer.texts
    assert not [text for text in tokenizer.texts if "turn" in text]


@pytest.mark.parametrize("rule", ["Be brief.", "Be brief, and say it in a few words. " * 2000])
async def test_the_same_system_message_is_counted_once_for_all_conversations(rule: str) -> None:
    counts = TurnCounter(InMemorySessionStore())
    counter, tokenizer = make_recording_counter("gpt-4o")
    for topic in ("one thing", "another"):
        messages = [{"role": "system", "content": rule}, {"role": "user", "content": f"Tell me {topic}"}]
        count = await count_body(counts, {"n": 1, "messages": messages}, counter)

        assert count.total == recount({"n": 1, "messages": messages}, "gpt-4o")[0]
    assert tokenizer.texts.count(rule) == 1


async def test_a_switch_of_model_and_back_reads_no_stale_count() -> None:
    counts = TurnCounter(InMemorySessionStore())
    body = {"messages": [{"role": "user", "content": "Grüße aus Köln"}]}
    for model in ("gpt-4o", "claude-sonnet-4-5", "gpt-4", "gpt-4o"):
        drop_caches()
        count = await count_body(counts, body, counter_for(model))

        assert (count.model, count.total) == (model, recount(body, model)[0])


async def test_a_message_with_another_key_order_is_counted_as_written() -> None:
    """Such a message is the same turn, but may have another number of tokens."""
    store = InMemorySessionStore()
    counts = TurnCounter(store)
    arguments = {"src": [], "def main": {}, "):": 49756}
    totals = []
    for tool_input in (arguments, dict(sorted(arguments.items())), arguments):
        drop_caches()
        call = {"type": "tool_use", "id": "1", "name": "f", "input": tool_input}
        body = {"model": "gpt-4o", "messages": [{"role": "assistant", "content": [call]}], "system": "s"}
        count = await count_body(counts, body, counter_for("gpt-4o"))
        totals.append(count.total)

        assert count.total == recount(body, "gpt-4o")[0]
    assert len(store.counted) == 1
    assert totals[0] == totals[2] != totals[1]


def test_counters_that_count_differently_have_different_names() -> None:
    default, older = counter_for("gpt-4o"), counter_for("gpt-4")
    other_vocabulary, other_rules = (
        RequestCounter(model="gpt-4o", backend="offline", tokenizer=tokenizer, rules=rules)
        for tokenizer, rules in (
            (older._tokenizer, default._rules),
            (default._tokenizer, counter_for("qwen3-32b")._rules),
        )
    )

    names = {get_counter_name(counter) for counter in (default, older, other_vocabulary, other_rules)}
    assert len(names) == 4
    assert get_counter_name(make_counter("gpt-4o")) == get_counter_name(default)


def test_the_version_of_the_counting_rules_matches_their_code(root: Path) -> None:
    """If this fails, a rule may count differently: raise COUNTING_RULES_VERSION if so, then update the hash."""
    files = sorted((root / "src" / "foveate" / "tokens" / "rendering").glob("*.py"))
    code = "\n".join(_code_without_docstrings(file) for file in files)

    assert (COUNTING_RULES_VERSION, hash_bytes(code.encode())[:8].hex()) == (8, "938e7356518244b2")
    assert f" {COUNTING_RULES_VERSION} " in get_counter_name(counter_for("gpt-4o"))


def _code_without_docstrings(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes: Iterator[Any] = ast.walk(tree)
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not _is_text(statement)]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


async def test_a_turn_with_a_new_spelling_is_counted_only_once_more() -> None:
    counts = TurnCounter(InMemorySessionStore())
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1, "b": 2}}
    for tool_input in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"b": 2, "a": 1}):
        drop_caches()
        counter, tokenizer = make_recording_counter("gpt-4o")
        body = {"messages": [{"role": "assistant", "content": [{**call, "input": tool_input}]}], "system": "s"}
        await count_body(counts, body, counter)

    assert not [text for text in tokenizer.texts if '"b"' in text or "2" in text]


def test_a_counter_name_can_be_stored_for_any_model_name() -> None:
    assert get_counter_name(counter_for("gpt-4o\0\udcff")).isprintable()


async def test_counts_of_another_version_are_ignored() -> None:
    store = InMemorySessionStore()
    counts = TurnCounter(store)
    body = {"messages": [{"role": "user", "content": "Hello!"}]}
    counter = counter_for("gpt-4o")
    expected = await count_body(counts, body, counter)
    for unreadable in (b"", b"\xc1", b"\x01", b"\x93\x01\x02\x03"):
        store.counted = dict.fromkeys(store.counted, unreadable)
        drop_caches()

        assert await count_body(counts, body, counter) == expected


@pytest.mark.parametrize(("times", "is_in_thread"), [(20, False), (20_000, True)])
async def test_a_long_message_is_counted_in_a_thread(times: int, is_in_thread: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hello there! " * times}]}
    counter, tokenizer = make_recording_counter("gpt-4o")
    count = await count_body(TurnCounter(InMemorySessionStore()), body, counter)

    assert count.total == recount(body, "gpt-4o")[0]
    assert (get_ident() not in tokenizer.threads) == is_in_thread


@pytest.mark.parametrize(("times", "is_in_thread"), [(20, False), (20_000, True)])
async def test_a_long_system_prompt_is_counted_in_a_thread(times: int, is_in_thread: bool) -> None:
    """Regression: the envelope and edited requests were counted on the event loop."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "system": "Hello there! " * times}
    for caller in ("session", "alone"):
        drop_caches()
        counter, tokenizer = make_recording_counter("gpt-4o")
        if caller == "alone":
            count = await count_in_thread(formats.parse_request(body), counter)
        else:
            count = await count_body(TurnCounter(InMemorySessionStore()), body, counter)

        assert count.total == recount(body, "gpt-4o")[0]
        assert (tokenizer.threads != {get_ident()}) == is_in_thread
