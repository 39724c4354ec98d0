"""Counts of whole requests: parts add up, nothing is counted twice, and caches never change a count."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import foveate
from foveate import formats
from foveate.caching import LruCache, hash_bytes
from foveate.model import Format, TokenCount
from foveate.prompt_cache.prompt.blocks import BlockTokens, look_up_facts
from foveate.tokens.counter import RequestCounter
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.rendering.claude import build_claude_rules
from foveate.tokens.rendering.openai import build_openai_rules
from foveate.tokens.tokenizers.tokenizer import AdditiveCounts, TextLength
from tests.support.strategies.agent_requests import MODELS, anthropic_bodies, chat_bodies, chat_messages


class RecordingTokenizer:
    """One token per character; records the texts that it measures."""

    name = "characters"
    exact = True
    safe_boundary: None = None

    def __init__(self) -> None:
        self.texts: list[str] = []

    def measure(self, text: str) -> TextLength:
        return self.measure_many([text])[0]

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        self.texts += [text for text in texts if text]
        return [TextLength(len(text), 0) for text in texts]

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        return [(len(text),) for text in texts]

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        return TokenCount(counts[0], True, counts[0])

    def count_steps(self, text: str, step_chars: int) -> None:
        del text, step_chars


def make_counter(model: str = "gpt-4o", capacity: int = 1024) -> tuple[RequestCounter, RecordingTokenizer]:
    tokenizer = RecordingTokenizer()
    rules = build_openai_rules(model)
    return RequestCounter(
        model=model, backend="offline", tokenizer=tokenizer, rules=rules, capacity=capacity
    ), tokenizer


@given(body=chat_bodies | anthropic_bodies, model=st.sampled_from(MODELS))
def test_parts_add_up_to_the_total(body: dict[str, Any], model: str) -> None:
    count = foveate.count_request(body, model=model)

    assert sum(part.tokens for part in count.parts) == count.total.tokens
    assert [part.name for part in count.parts] == [
        "system",
        "tools",
        *(f"messages[{i}]" for i in range(len(body["messages"]))),
        "images",
        "overhead",
    ]


@given(body=chat_bodies | anthropic_bodies, model=st.sampled_from(MODELS))
@example(body={"messages": [{"role": "user", "content": "0"}]}, model="qwen3-32b")
def test_upper_is_never_below_the_count(body: dict[str, Any], model: str) -> None:
    total = foveate.count_request(body, model=model).total

    assert total.upper >= total.tokens >= 0


@given(body=chat_bodies, more=chat_messages, model=st.sampled_from(MODELS))
@example(
    body={"n": 1, "messages": []},
    more={"role": "tool", "tool_call_id": "c1", "content": ""},
    model="gemini-2.5-flash",
)
def test_another_message_never_lowers_the_count(body: dict[str, Any], more: dict[str, Any], model: str) -> None:
    """Except if a provider drops the thinking of earlier turns, which chats do not contain."""
    longer = {**body, "messages": [*body["messages"], more]}

    before = foveate.count_request(body, model=model).total
    after = foveate.count_request(longer, model=model).total
    assert after.tokens >= before.tokens
    assert after.upper >= before.upper


@given(
    body=chat_bodies,
    model=st.sampled_from(MODELS),
    order=st.lists(st.integers(0, 12), max_size=6),
    capacity=st.integers(1, 40),
)
def test_a_counter_with_a_warm_cache_counts_like_a_new_one(
    body: dict[str, Any], model: str, order: list[int], capacity: int
) -> None:
    warm_counter, _ = make_counter(model, capacity)
    for end in order:
        other = {**body, "messages": body["messages"][:end], "tools": body.get("tools", [])[: end % 3]}
        warm_counter.count_request(formats.parse_request(other))
        warm_counter.count_request(formats.parse_request({**body, "messages": body["messages"][end:]}))

    new_counter, _ = make_counter(model)
    request = formats.parse_request(body)
    assert warm_counter.count_request(request) == new_counter.count_request(request)
    assert warm_counter.count_request(request) == new_counter.count_request(request)


@given(
    body=anthropic_bodies,
    before=st.sets(st.integers(0, 12)),
    after=st.sets(st.integers(0, 12)),
)
def test_moving_breakpoints_changes_no_count(body: dict[str, Any], before: set[int], after: set[int]) -> None:
    request_counter, _ = make_counter()
    plain = request_counter.count_request(formats.parse_request(body))
    counts = [
        request_counter.count_request(formats.parse_request(with_breakpoints(body, positions)))
        for positions in (before, after, before)
    ]

    assert counts == [plain] * 3


def with_breakpoints(body: dict[str, Any], positions: set[int]) -> dict[str, Any]:
    messages = [json.loads(json.dumps(message)) for message in body["messages"]]
    for i, message in enumerate(messages):
        if i in positions and isinstance(message["content"], list) and message["content"]:
            message["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {**body, "messages": messages}


@pytest.mark.slow
def test_a_growing_session_of_two_thousand_messages_is_not_recounted() -> None:
    counter, tokenizer = make_counter()
    messages: list[dict[str, str]] = []
    for i in range(1000):
        messages += (
            {"role": "user", "content": f"question {i}"},
            {"role": "assistant", "content": f"answer {i}"},
        )
        if i % 10 == 9:
            counter.count_request(
                formats.parse_request({"messages": messages, "tools": [{"function": {"name": "lookup"}}]})
            )

    texts = [text for text in tokenizer.texts if text.startswith(("question", "answer"))]
    assert len(texts) == len(set(texts)) == 2000
    assert sum("lookup" in text for text in tokenizer.texts) == 1


def test_two_interleaved_sessions_are_not_recounted() -> None:
    counter, tokenizer = make_counter()
    for end in range(2, 40, 2):
        for name in ("one", "two"):
            messages = [{"role": "user", "content": f"{name} {i}"} for i in range(end)]
            counter.count_request(formats.parse_request({"messages": messages}))

    texts = [text for text in tokenizer.texts if text.startswith(("one", "two"))]
    assert len(texts) == len(set(texts))


def test_a_changed_earlier_message_is_counted_again() -> None:
    counter, _ = make_counter()
    messages = [{"role": "user", "content": f"turn {i}"} for i in range(30)]
    before = counter.count_request(formats.parse_request({"messages": messages})).total.tokens
    messages[3] = {"role": "user", "content": "turn 3 and more"}

    assert counter.count_request(formats.parse_request({"messages": messages})).total.tokens == before + len(
        " and more"
    )


def test_the_same_tool_at_another_position_is_counted_separately() -> None:
    """The first tool has other separators than the next ones."""
    tools = [{"type": "function", "function": {"name": f"tool {i}", "description": "d " * i}} for i in range(4)]
    counter, _ = make_counter()
    for order in (tools, tools[::-1], tools[2:], tools[:1]):
        body = {"messages": [{"role": "user", "content": "Hi"}], "tools": order}
        new_counter, _ = make_counter()
        assert counter.count_request(formats.parse_request(body)) == new_counter.count_request(
            formats.parse_request(body)
        )


def test_a_long_text_is_counted_once() -> None:
    counter, tokenizer = make_counter()
    text = "some words " * 1000

    assert counter.text(text) == counter.text(text)
    assert tokenizer.texts == [text]


def test_an_empty_request_is_counted() -> None:
    count = foveate.count_request({"messages": []}, model="gpt-4o")

    assert count.total.tokens == 3
    assert [part.name for part in count.parts] == ["system", "tools", "images", "overhead"]


@given(
    capacity=st.integers(1, 20),
    keys=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=200),
)
def test_an_lru_cache_is_bounded_and_evicts_the_oldest_entry(
    capacity: int, keys: list[tuple[bool, int]]
) -> None:
    cache: LruCache[int] = LruCache(capacity)
    used: list[int] = []
    for puts, key in keys:
        name = hash_bytes(bytes([key]))
        if puts:
            cache.put(name, key)
        elif (value := cache.get(name)) is not None:
            assert value == key
        if puts or key in used[-capacity:]:
            used = [other for other in used if other != key] + [key]
        assert len(cache) <= capacity
    assert all(cache.get(hash_bytes(bytes([key]))) == key for key in used[-capacity:])


@given(first=st.lists(st.binary(), max_size=4), second=st.lists(st.binary(), max_size=4))
def test_parts_with_the_same_concatenation_have_different_hashes(
    first: list[bytes], second: list[bytes]
) -> None:
    assert (hash_bytes(*first) == hash_bytes(*second)) == (first == second)


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5"])
def test_the_caches_of_a_counter_are_bounded(model: str) -> None:
    counter, _ = make_counter(model, capacity=8)
    for i in range(50):
        tools = [{"function": {"name": f"f{i}-{j}"}} for j in range(3)]
        counter.count_request(
            formats.parse_request({"messages": [{"role": "user", "content": str(i)}], "tools": tools})
        )
        counter.text(f"long {i} " * 1000)

    assert max(len(counter._measurer._lengths), len(counter._cache.parts)) <= 8


def test_tools_are_cached_by_api_format() -> None:
    """Regression: the same bytes as a chat function and as an Anthropic tool shared a cache entry."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "description": "Tells the weather.", "parameters": city}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "functions": [function]}
    other = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [function],
        "max_tokens": 1,
        "system": "S",
    }
    warm_counter, _ = make_counter("gpt-4o")
    new_counter, _ = make_counter("gpt-4o")
    warm_counter.count_request(formats.parse_request(chat))

    assert warm_counter.count_request(formats.parse_request(other)) == new_counter.count_request(
        formats.parse_request(other)
    )


def test_a_translated_request_is_not_exact() -> None:
    body = {"model": "gpt-4o", "system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}

    translated = foveate.count_request(body).total

    assert not translated.exact
    assert translated.upper > translated.tokens


def test_a_partly_visible_part_is_not_exact() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": [audio]}]}

    count = foveate.count_request(body)

    assert count.unexplained
    assert not next(part.exact for part in count.parts if part.name == "messages[0]")


def test_blocks_of_a_message_just_counted_are_not_tokenised_again() -> None:
    model, tokenizer = "claude-sonnet-4-5", RecordingTokenizer()
    counter = RequestCounter(
        model=model, backend="offline", tokenizer=tokenizer, rules=build_claude_rules(model)
    )
    long_text = "A long text, as an answer has it. " * 4
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    content = [{"type": "text", "text": long_text}, call]
    request = formats.parse_request({"model": model, "messages": [{"role": "assistant", "content": content}]})
    counter.measure_messages(formats.parse_message(request.format, request.messages[0]))

    shares = BlockTokens(counter).divide(300, 0, look_up_facts(formats.request_blocks(request)))

    assert sum(shares) == 300
    assert tokenizer.texts.count(long_text) == 1


def test_a_message_is_counted_with_its_overhead() -> None:
    message = formats.parse_message(Format.CHAT, b'{"role": "user", "content": "Hello!"}')

    assert counter_for("gpt-4o").count_message(message) == TokenCount(6, True, 6)


@pytest.mark.parametrize(
    ("model", "expected_model"),
    [
        ("ft:gpt-4o-mini:acme::abc", "gpt-4o-mini"),
        ("openai:gpt-4o", "gpt-4o"),
        ("azure/gpt-4o", "gpt-4o"),
        (" GPT-4o ", "gpt-4o"),
        ("us.openai.gpt-5", "gpt-5"),
    ],
)
def test_a_route_before_the_name_does_not_change_the_model(model: str, expected_model: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello."}]}

    assert (
        foveate.count_request(body, model).total.tokens
        == foveate.count_request(body, expected_model).total.tokens
    )


@pytest.mark.parametrize(
    "model",
    [
        *("gemini-9-pro", "gemini-exp-1206", "gemini-embedding-001", "gemini"),
        *("gpt-5.10", "gpt-9", "o9", "text-embedding-004", "claude-opus-4-10"),
        *("ollama/phi3", "llama-2-70b", "qwen9-7b", "my-llama-3-finetune"),
    ],
)
def test_an_unknown_model_is_not_exact(model: str) -> None:
    count = foveate.count("Hello there", model)

    assert not count.exact
    assert count.upper > count.tokens


@pytest.mark.parametrize("model", ["gpt-2", "gpt-j-6b", "gpt-neo", "some-unknown"])
def test_the_bound_of_a_substitute_vocabulary_allows_for_other_scripts(model: str) -> None:
    """Regression: upper was 127 for a text with 371 tokens in a vocabulary of 32,000."""
    hindi = "यह एक परीक्षण है, और हम टोकन गिन रहे हैं। " * 10

    count = foveate.count(hindi, model)

    assert not count.exact
    assert count.upper >= foveate.count(hindi, "mixtral-8x7b").tokens


def test_an_exact_text_count_has_no_margin() -> None:
    assert foveate.count("Hello there", "llama-3.1-8b-instruct") == TokenCount(2, True, 2)
