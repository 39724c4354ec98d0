"""COUNT-5: stored counts of turns add up to a recount, and nothing is counted twice."""

import ast
from collections.abc import Iterable, Sequence
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
from foveate.tokens.rendering.rendering import MeasuredRendering
from foveate.tokens.request_bodies import with_model
from foveate.tokens.tally import Tally
from foveate.tokens.tokenizers.tokenizer import TextLength, Tokenizer
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.memory_session_store import InMemory
from tests.support.strategies.agent_requests import MODELS, anthropic_bodies, chat_bodies
from tests.support.strategies.claude_requests import claude_requests

Body = dict[str, Any]

steps = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from(MODELS), st.booleans(), st.booleans()), min_size=1, max_size=6
)


class Listening:
    """A tokenizer that records the texts it measures."""

    def __init__(self, ruler: Tokenizer) -> None:
        self.name, self.exact, self.safe_boundary = ruler.name, ruler.exact, ruler.safe_boundary
        self.additive_counts, self.to_token_count, self.count_steps = (
            ruler.additive_counts,
            ruler.to_token_count,
            ruler.count_steps,
        )
        self.heard: list[str] = []
        self.threads: set[int] = set()
        self._ruler = ruler

    def measure(self, text: str) -> TextLength:
        return self.measure_many([text])[0]

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        self.heard += texts
        self.threads |= {get_ident()} if texts else set()
        return self._ruler.measure_many(texts)


class Adding(RequestCounter):
    """A counter that records how many messages were added at a time."""

    added: list[int]

    @classmethod
    def like(cls, known: RequestCounter) -> "Adding":
        made = cls(model=known.model, backend=known.backend, tokenizer=known._tokenizer, rules=known._rules)
        made.added = []
        get_counter_name(made)
        return made

    def add_measured(self, tally: Tally, measured: Iterable[MeasuredRendering]) -> Tally:
        some = list(measured)
        self.added.append(len(some))
        return super().add_measured(tally, some)


def fresh(model: str) -> RequestCounter:
    """A counter with empty caches."""
    known = counter_for(model)
    return RequestCounter(model=model, backend=known.backend, tokenizer=known._tokenizer, rules=known._rules)


def listening(model: str) -> tuple[RequestCounter, Listening]:
    ruler = Listening(counter_for(model)._tokenizer)
    counter = RequestCounter(model=model, backend="offline", tokenizer=ruler, rules=counter_for(model)._rules)
    get_counter_name(counter)
    ruler.heard.clear()
    ruler.threads.clear()
    return counter, ruler


async def counted(counts: TurnCounter, body: Body | bytes, counter: RequestCounter) -> RequestCount:
    request = with_model(formats.parse_request(body), counter.model)
    return await counts.count("agent", request, compute_chain(request), counter)


def at_once(counts: TurnCounter, request: Request, model: str) -> RequestCount:
    """The count of a request that is short enough to be counted at once."""
    try:
        counts.count("agent", request, compute_chain(request), counter_for(model)).send(None)
    except StopIteration as finished:
        found: RequestCount = finished.value
        return found
    raise AssertionError("it waits for something")


def recounted(body: Body | bytes, model: str) -> tuple[TokenCount, tuple[str, ...]]:
    found = fresh(model).count_request(with_model(formats.parse_request(body), model))
    return found.total, found.unexplained


def run(counts: TurnCounter, body: Body, model: str) -> tuple[TokenCount, tuple[str, ...]]:
    """What is counted of a body that is short enough to be counted at once."""
    found = at_once(counts, with_model(formats.parse_request(body), model), model)
    return found.total, found.unexplained


@pytest.mark.slow
@given(body=chat_bodies | anthropic_bodies, steps=steps)
@settings(max_examples=limit_examples(80))
def test_stored_counts_add_up_to_a_recount(body: Body, steps: list[tuple[int, str, bool, bool]]) -> None:
    """For all models and all earlier requests, in this or another process."""
    counts = TurnCounter(InMemory())
    for length, model, forgets, is_later in steps:
        if forgets:
            drop_caches()
        messages = body["messages"][:length]
        if is_later and messages and messages[0]["role"] == "system":
            messages = [{"role": "system", "content": "It is later now"}, *messages[1:]]
        request = {**body, "messages": messages}

        assert run(counts, request, model) == recounted(request, model)


SPEAKING = {
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
        st.tuples(st.sampled_from(list(SPEAKING)), st.sampled_from(MODELS), st.booleans()),
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
@settings(max_examples=limit_examples(60))
def test_the_same_text_in_another_format_is_counted_by_its_rules(
    messages: list[Body], steps: list[tuple[Format, str, bool]]
) -> None:
    """An image in one format is plain JSON in another."""
    counts = TurnCounter(InMemory())
    for api_format, model, forgets in steps:
        if forgets:
            drop_caches()
        request = with_model(formats.parse_request(SPEAKING[api_format](messages), api_format), model)

        assert at_once(counts, request, model).total == fresh(model).count_request(request).total


@pytest.mark.slow
@given(body=claude_requests(max_turns=3, max_calls=2, breakpoints=True), forgets=st.booleans())
@settings(max_examples=limit_examples(25))
async def test_thinking_images_and_parallel_calls_add_up_too(body: Body, forgets: bool) -> None:
    counts = TurnCounter(InMemory())
    for length in range(1, len(body["messages"]) + 1):
        if forgets:
            drop_caches()
        part = {**body, "messages": body["messages"][:length]}
        found = await counted(counts, part, counter_for(body["model"]))

        assert (found.total, found.unexplained) == recounted(part, body["model"])


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_request_of_which_one_turn_is_new_counts_one_turn(forgets: bool) -> None:
    counts = TurnCounter(InMemory())
    messages = [{"role": ("user", "assistant")[at % 2], "content": f"This is turn {at}"} for at in range(301)]
    counter, ruler = listening("gpt-4o")
    await counted(counts, {"n": 1, "messages": messages[:300]}, counter)
    ruler.heard.clear()
    if forgets:  # as in another process
        drop_caches()
        counter, ruler = listening("gpt-4o")
    found = await counted(counts, {"n": 1, "messages": messages}, counter)

    assert [text for text in ruler.heard if "This is turn" in text] == ["This is turn 300"]
    assert found.total == recounted({"n": 1, "messages": messages}, "gpt-4o")[0]


async def test_many_new_turns_at_once_cost_nothing_of_the_old_ones() -> None:
    store = InMemory()
    counts = TurnCounter(store)
    messages = [{"role": "user", "content": f"This is turn {at}"} for at in range(340)]
    early, late = (
        with_model(formats.parse_request({"n": 1, "messages": messages[:length]}), "gpt-4o")
        for length in (300, 340)
    )
    counter = Adding.like(counter_for("gpt-4o"))
    await counts.count("agent", early, compute_chain(early), counter, known=0)
    counter.added.clear()
    found = await counts.count("agent", late, compute_chain(late), counter, known=300)

    assert found.total == recounted(late.body, "gpt-4o")[0]
    assert sum(counter.added) == 40


async def test_nothing_is_asked_of_turns_that_are_new() -> None:
    store = InMemory()
    messages = [{"role": "user", "content": f"This is turn {at}"} for at in range(30)]
    counter = counter_for("gpt-4o")
    whole = with_model(formats.parse_request({"n": 1, "messages": messages}), "gpt-4o")
    early = with_model(formats.parse_request({"n": 1, "messages": messages[:20]}), "gpt-4o")
    await TurnCounter(store).count("agent", early, compute_chain(early), counter, known=0)

    assert store.count_query_sizes == []
    drop_caches()  # as in another process
    counts = TurnCounter(store)
    for known in (20, 30):  # the second time all is remembered
        found = await counts.count("agent", whole, compute_chain(whole), counter, known=known)
        assert found.total == recounted(whole.body, "gpt-4o")[0]
    assert store.count_query_sizes == [20]
    assert len(store.counted) == 30


async def test_counts_are_stored_for_each_agent() -> None:
    store = InMemory()
    counts = TurnCounter(store)
    request = with_model(
        formats.parse_request({"n": 1, "messages": [{"role": "user", "content": "Hello!"}]}), "gpt-4o"
    )
    for agent in ("ana", "bo"):
        await counts.count(agent, request, compute_chain(request), counter_for("gpt-4o"))

    assert {agent for agent, _, _ in store.counted} == {"ana", "bo"}


async def test_a_new_time_in_the_system_message_recounts_no_turn() -> None:
    counts = TurnCounter(InMemory())
    counter, ruler = listening("gpt-4o")
    turns = [{"role": "user", "content": f"This is turn {at}"} for at in range(20)]
    for time in ("noon", "evening"):
        ruler.heard.clear()
        body = {"n": 1, "messages": [{"role": "system", "content": f"It is {time}"}, *turns]}
        found = await counted(counts, body, counter)

        assert found.total == recounted(body, "gpt-4o")[0]
    assert f"It is {time}" in ruler.heard
    assert not [text for text in ruler.heard if "turn" in text]


@pytest.mark.parametrize("rule", ["Be brief.", "Be brief, and say it in a few words. " * 2000])
async def test_the_same_system_message_is_counted_once_for_all_conversations(rule: str) -> None:
    counts = TurnCounter(InMemory())
    counter, ruler = listening("gpt-4o")
    for said in ("one thing", "another"):
        asked = [{"role": "system", "content": rule}, {"role": "user", "content": f"Tell me {said}"}]
        found = await counted(counts, {"n": 1, "messages": asked}, counter)

        assert found.total == recounted({"n": 1, "messages": asked}, "gpt-4o")[0]
    assert ruler.heard.count(rule) == 1


async def test_a_switch_of_model_and_back_reads_no_stale_count() -> None:
    counts = TurnCounter(InMemory())
    body = {"messages": [{"role": "user", "content": "Grüße aus Köln"}]}
    for model in ("gpt-4o", "claude-sonnet-4-5", "gpt-4", "gpt-4o"):
        drop_caches()
        found = await counted(counts, body, counter_for(model))

        assert (found.model, found.total) == (model, recounted(body, model)[0])


async def test_a_message_with_its_keys_in_another_order_is_counted_as_it_is() -> None:
    """It is the same turn, but may have another number of tokens."""
    store = InMemory()
    counts = TurnCounter(store)
    arguments = {"src": [], "def main": {}, "):": 49756}
    totals = []
    for written in (arguments, dict(sorted(arguments.items())), arguments):
        drop_caches()
        call = {"type": "tool_use", "id": "1", "name": "f", "input": written}
        body = {"model": "gpt-4o", "messages": [{"role": "assistant", "content": [call]}], "system": "s"}
        found = await counted(counts, body, counter_for("gpt-4o"))
        totals.append(found.total)

        assert found.total == recounted(body, "gpt-4o")[0]
    assert len(store.counted) == 1
    assert totals[0] == totals[2] != totals[1]


def test_counters_that_count_differently_have_different_names() -> None:
    usual, older = counter_for("gpt-4o"), counter_for("gpt-4")
    other_vocabulary, other_rules = (
        RequestCounter(model="gpt-4o", backend="offline", tokenizer=ruler, rules=rules)
        for ruler, rules in (
            (older._tokenizer, usual._rules),
            (usual._tokenizer, counter_for("qwen3-32b")._rules),
        )
    )

    names = {get_counter_name(counter) for counter in (usual, older, other_vocabulary, other_rules)}
    assert len(names) == 4
    assert get_counter_name(fresh("gpt-4o")) == get_counter_name(usual)


def test_stored_counts_are_those_of_the_current_rules(root: Path) -> None:
    """If this fails, a rule may count differently: raise COUNTING_RULES_VERSION if so, then update the hash."""
    files = sorted((root / "src" / "foveate" / "tokens" / "rendering").glob("*.py"))
    code = "\n".join(_code_without_docstrings(file) for file in files)

    assert (COUNTING_RULES_VERSION, hash_bytes(code.encode())[:8].hex()) == (8, "4564db83d9a04c6c")
    assert f" {COUNTING_RULES_VERSION} " in get_counter_name(counter_for("gpt-4o"))


def _code_without_docstrings(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


async def test_a_turn_that_stays_spelled_differently_is_counted_once_more() -> None:
    counts = TurnCounter(InMemory())
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1, "b": 2}}
    for written in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"b": 2, "a": 1}):
        drop_caches()
        counter, ruler = listening("gpt-4o")
        body = {"messages": [{"role": "assistant", "content": [{**call, "input": written}]}], "system": "s"}
        await counted(counts, body, counter)

    assert not [text for text in ruler.heard if '"b"' in text or "2" in text]


def test_a_counter_name_can_be_stored_for_any_model_name() -> None:
    assert get_counter_name(counter_for("gpt-4o\0\udcff")).isprintable()


async def test_counts_of_another_version_are_ignored() -> None:
    store = InMemory()
    counts = TurnCounter(store)
    body = {"messages": [{"role": "user", "content": "Hello!"}]}
    counter = counter_for("gpt-4o")
    right = await counted(counts, body, counter)
    for unreadable in (b"", b"\xc1", b"\x01", b"\x93\x01\x02\x03"):
        store.counted = dict.fromkeys(store.counted, unreadable)
        drop_caches()

        assert await counted(counts, body, counter) == right


@pytest.mark.parametrize(("times", "is_beside"), [(20, False), (20_000, True)])
async def test_a_long_message_is_counted_beside_the_event_loop(times: int, is_beside: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hello there! " * times}]}
    counter, ruler = listening("gpt-4o")
    found = await counted(TurnCounter(InMemory()), body, counter)

    assert found.total == recounted(body, "gpt-4o")[0]
    assert (get_ident() not in ruler.threads) == is_beside


@pytest.mark.parametrize(("times", "is_beside"), [(20, False), (20_000, True)])
async def test_a_long_system_prompt_is_counted_beside_the_event_loop(times: int, is_beside: bool) -> None:
    """Regression: the envelope and edited requests were counted on the event loop."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "system": "Hello there! " * times}
    for ways in ("of a session", "alone"):
        drop_caches()
        counter, ruler = listening("gpt-4o")
        if ways == "alone":
            found = await count_in_thread(formats.parse_request(body), counter)
        else:
            found = await counted(TurnCounter(InMemory()), body, counter)

        assert found.total == recounted(body, "gpt-4o")[0]
        assert (ruler.threads != {get_ident()}) == is_beside
