"""Blocks of a request, as a provider's cache compares them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.caching import LruCache, drop_caches
from foveate.formats.blocks import BLOCK_CACHE, estimate_size
from foveate.model import Area, Block, Format, Place, Request, Ttl
from tests.support.oracles.json_tree import spell_oddly
from tests.support.strategies.request_edits import BODIES, requests

SHORT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def parse_blocks(body: dict[str, Any], api_format: Format | None = None) -> tuple[Block, ...]:
    return formats.request_blocks(formats.parse_request(body, api_format))


def block_kinds(body: dict[str, Any]) -> list[str]:
    return [block.kind for block in parse_blocks(body)]


def block_json(block: Block) -> Any:
    return json.loads(block.canonical_json)


def test_blocks_are_in_the_order_in_which_the_provider_reads_them() -> None:
    blocks = parse_blocks(
        {
            "messages": [
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "1"}],
                },
            ],
            "system": [{"type": "text", "text": "s", "cache_control": LONG}],
            "tools": [{"name": "f"}, {"name": "g", "cache_control": SHORT}],
            "model": "claude-4",
        }
    )

    assert [(block.place, block.kind, block.role, block.breakpoint_ttl) for block in blocks] == [
        (Place(Area.TOOLS, 0), "tool", "", None),
        (Place(Area.TOOLS, 1), "tool", "", Ttl.FIVE_MINUTES),
        (Place(Area.SYSTEM, 0), "text", "", Ttl.ONE_HOUR),
        (Place(Area.MESSAGES, 0, 0), "text", "user", None),
        (Place(Area.MESSAGES, 1, 0), "thinking", "assistant", None),
        (Place(Area.MESSAGES, 1, 1), "tool_use", "assistant", None),
    ]
    assert block_json(blocks[1]) == {"name": "g"}


@pytest.mark.parametrize(
    ("string_body", "block_body"),
    [
        (
            {"model": "claude-4", "system": "s", "messages": [{"role": "user", "content": "a"}]},
            {
                "model": "claude-4",
                "system": [{"type": "text", "text": "s"}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            },
        ),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            {"messages": [{"role": "tool", "content": [{"type": "text", "text": "a"}]}]},
        ),
        ({"input": "a"}, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}),
        (
            {"input": [{"type": "function_call_output", "output": "a"}]},
            {"input": [{"type": "function_call_output", "output": [{"type": "input_text", "text": "a"}]}]},
        ),
        (
            {"contents": {"parts": {"text": "a"}}, "systemInstruction": "s"},
            {"contents": [{"parts": [{"text": "a"}]}], "systemInstruction": {"parts": [{"text": "s"}]}},
        ),
    ],
)
def test_a_string_equals_the_equivalent_block(string_body: dict[str, Any], block_body: dict[str, Any]) -> None:
    assert [(parsed.place, parsed.kind, parsed.canonical_json) for parsed in parse_blocks(string_body)] == [
        (parsed.place, parsed.kind, parsed.canonical_json) for parsed in parse_blocks(block_body)
    ]


@given(st.sampled_from(Format).flatmap(lambda f: st.tuples(st.just(f), BODIES[f])), st.integers(0, 2**32))
def test_blocks_are_the_same_in_any_spelling(format_and_body: tuple[Format, dict[str, Any]], seed: int) -> None:
    """Numbers are an exception: 1 and 1.0 are not the same to every provider."""
    api_format, body = format_and_body
    plain, respelled = (
        formats.request_blocks(formats.parse_request(raw, api_format))
        for raw in (json.dumps(body).encode(), spell_oddly(body, seed))
    )

    assert [(block.place, block.kind, block.breakpoint_ttl, block.is_empty) for block in plain] == [
        (block.place, block.kind, block.breakpoint_ttl, block.is_empty) for block in respelled
    ]
    assert [block_json(block) for block in plain] == [block_json(block) for block in respelled]


@given(requests())
def test_cached_blocks_equal_parsed_ones(request: Request) -> None:
    reformatted = formats.parse_request(
        json.dumps({**json.loads(request.body), "x": 1}).encode() + b" ", request.format
    )  # other bytes around the same messages

    assert formats.request_blocks(request) == formats.request_blocks(request)
    assert [block.place for block in formats.request_blocks(reformatted)] == [
        block.place for block in formats.request_blocks(request)
    ]
    cached = formats.request_blocks(request)
    drop_caches()
    assert formats.request_blocks(formats.parse_request(request.body, request.format)) == cached


def test_the_least_recently_used_block_is_dropped_first() -> None:
    # Each block takes 1000 bytes and some overhead.
    cache: LruCache[tuple[Block, ...]] = LruCache(3 * 1600, weigh=estimate_size)
    keys = [(Format.CHAT, Area.MESSAGES, 0, Ttl.FIVE_MINUTES, bytes([number]) * 1000) for number in range(4)]
    for key in keys[:3]:
        cache.put(key, ())
        cache.put(key, ())
    cache.get(keys[0])
    cache.put(keys[3], ())

    assert [cache.get(key) is not None for key in keys] == [True, False, True, True]


def test_tools_that_would_fill_the_cache_are_not_cached() -> None:
    """Regression: the tools of one request of 20 MB displaced those of all agents."""
    drop_caches()
    tools = [{"name": f"t{at}", "description": "word " * 20_000, "input_schema": {}} for at in range(60)]
    body = {"model": "claude-opus-4-5", "messages": [{"role": "user", "content": "Hello"}]}
    blocks = parse_blocks({**body, "tools": tools})
    assert BLOCK_CACHE.weight == 0

    assert parse_blocks({**body, "tools": tools[:2]})[:2] == blocks[:2]
    assert BLOCK_CACHE.weight > len(tools[0]["description"])


def test_the_same_message_at_another_place_is_another_block() -> None:
    message = {"role": "user", "content": "again"}

    blocks = parse_blocks({"messages": [message, message]})

    assert [block.place.index for block in blocks] == [0, 1]


@pytest.mark.parametrize(
    ("cache_control", "ttl"),
    [
        ({"type": "ephemeral"}, Ttl.FIVE_MINUTES),
        ({"type": "ephemeral", "ttl": "1h"}, Ttl.ONE_HOUR),
        ({"type": "ephemeral", "ttl": "7 days"}, Ttl.FIVE_MINUTES),
        ({"ttl": ["1h"]}, Ttl.FIVE_MINUTES),
        ("odd", Ttl.FIVE_MINUTES),
        (None, None),
    ],
)
def test_a_breakpoint_without_a_ttl_has_the_default(cache_control: Any, ttl: Ttl | None) -> None:
    block = {"type": "text", "text": "a", "cache_control": cache_control}
    body = {
        "model": "claude-4",
        "messages": [{"role": "user", "content": [block]}],
        "cache_control": cache_control,
    }

    (parsed,) = parse_blocks(body)

    assert parsed.breakpoint_ttl == ttl
    assert block_json(parsed) == {"type": "text", "text": "a"}
    assert formats.automatic_breakpoint(formats.parse_request(body)) == ttl


def test_only_anthropic_has_a_breakpoint_on_the_whole_request() -> None:
    body = {"cache_control": SHORT, "messages": [{"role": "user", "content": "a"}]}

    assert formats.automatic_breakpoint(formats.parse_request(body, Format.CHAT)) is None
    assert formats.automatic_breakpoint(formats.parse_request(body, Format.ANTHROPIC)) is Ttl.FIVE_MINUTES


def test_a_breakpoint_of_openai_has_the_ttl_of_its_request_or_its_own() -> None:
    part: dict[str, Any] = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    body: dict[str, Any] = {"input": [{"role": "user", "content": [part]}]}

    assert [block.breakpoint_ttl for block in parse_blocks(body)] == [Ttl.THIRTY_MINUTES]
    body["prompt_cache_options"] = {"mode": "explicit", "ttl": "12h"}
    assert [block.breakpoint_ttl for block in parse_blocks(body)] == [Ttl.TWELVE_HOURS]
    part["prompt_cache_breakpoint"] = {"mode": "explicit", "ttl": "30m"}
    assert [block.breakpoint_ttl for block in parse_blocks(body)] == [Ttl.THIRTY_MINUTES]
    del body["prompt_cache_options"]
    part["prompt_cache_breakpoint"] = {"mode": "explicit", "ttl": "12h"}
    assert [block.breakpoint_ttl for block in parse_blocks(body)] == [Ttl.TWELVE_HOURS]


def test_cache_points_apply_to_the_block_before_them() -> None:
    cache_point, long_cache_point = (
        {"cachePoint": {"type": "default"}},
        {"cachePoint": {"type": "default", "ttl": "1h"}},
    )
    blocks = parse_blocks(
        {
            "toolConfig": {"tools": [{"toolSpec": {"name": "cachePoint"}}, long_cache_point, {"toolSpec": {}}]},
            "system": [cache_point, {"text": "s"}],
            "messages": [{"role": "user", "content": [{"text": "a"}, cache_point, {"toolResult": {}}]}],
        }
    )

    assert [(block.kind, block.place.block, block.breakpoint_ttl) for block in blocks] == [
        ("tool", None, Ttl.ONE_HOUR),
        ("tool", None, None),
        ("text", None, None),
        ("text", 0, Ttl.FIVE_MINUTES),
        ("toolResult", 1, None),
    ]


def test_fields_next_to_the_content_of_a_chat_message_are_blocks_too() -> None:
    blocks = parse_blocks(
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": "a",
                    "reasoning_content": "r",
                    "refusal": None,
                    "tool_calls": [{"id": "1", "function": {"name": "f"}}, {"id": "2"}],
                },
                {"role": "tool", "tool_call_id": "1", "content": "b"},
            ]
        }
    )

    assert [(block.kind, block.place.block) for block in blocks] == [
        ("text", 0),
        ("tool_call", 1),
        ("tool_call", 2),
        ("reasoning_content", 3),
        ("tool_result", 0),
    ]
    assert block_json(blocks[-1])["tool_call_id"] == "1"


@pytest.mark.parametrize("text", ["", " ", "\n\t\u00a0"])
def test_a_blank_text_is_empty(text: str) -> None:
    for body in (
        {"messages": [{"role": "user", "content": text}]},
        {"messages": [{"role": "tool", "content": text}]},
        {"contents": [{"parts": [{"text": text}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]},
    ):
        assert [block.is_empty for block in parse_blocks(body)] == [True]


def test_an_empty_result_can_have_a_breakpoint() -> None:
    block = {"type": "tool_result", "tool_use_id": "1", "content": ""}

    assert [b.is_empty for b in parse_blocks({"messages": [{"role": "user", "content": [block]}]})] == [False]


def test_unknown_blocks_are_kept() -> None:
    unknown_block = {"type": "hologram", "depth": 1}

    (parsed,) = parse_blocks({"model": "claude-4", "messages": [{"role": "user", "content": [unknown_block]}]})

    assert (parsed.kind, block_json(parsed)) == ("hologram", unknown_block)
    assert block_kinds({"contents": [{"parts": [{"hologram": 1}, {"thought": True, "text": "t"}]}]}) == [
        "hologram",
        "thought",
    ]
    assert block_kinds({"input": [{"type": "hologram_call"}]}) == ["hologram_call"]
