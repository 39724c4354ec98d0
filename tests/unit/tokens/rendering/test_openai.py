"""OpenAI's rendering compared with recorded usage."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from foveate import formats
from foveate.model import Format, TokenCount
from foveate.tokens import RequestCount, counter_for, with_model

WEATHER = {
    "type": "function",
    "function": {
        "description": "",
        "name": "get_weather",
        "parameters": {
            "additionalProperties": False,
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "type": "object",
        },
        "strict": True,
    },
}


def count_body(
    body: dict[str, Any], api_format: Format = Format.CHAT, model: str | None = None
) -> RequestCount:
    request = with_model(formats.parse_request(body, api_format), model)
    return counter_for(request.model).count_request(request)


def chat_message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_a_plain_chat_is_exact() -> None:
    count = count_body(
        {"model": "gpt-4o", "messages": [chat_message("user", "What is the capital of France?")]}
    )

    assert count.total.tokens == 14
    assert count.total.exact
    assert count.total.upper == 16


def test_tool_counts_match_recorded_usage() -> None:
    question = chat_message("user", "What is the weather in Paris? Use the tool.")

    count = count_body({"model": "gpt-4o", "messages": [question], "tools": [WEATHER]})

    assert count.total.tokens == 48
    assert count.total.upper > 48


def test_tools_become_part_of_a_system_message() -> None:
    messages = [chat_message("system", "Be brief."), chat_message("user", "Hi")]
    alone = count_body({"model": "gpt-4o", "messages": messages}).total.tokens
    with_tools = count_body({"model": "gpt-4o", "messages": messages, "tools": [WEATHER]}).total.tokens
    without = count_body({"model": "gpt-4o", "messages": messages[1:]}).total.tokens
    separate = count_body({"model": "gpt-4o", "messages": messages[1:], "tools": [WEATHER]}).total.tokens

    assert with_tools - alone == separate - without - 4


def test_tool_calls_in_the_history_match_recorded_usage() -> None:
    call = {"name": "get_current_weather", "arguments": '{"location": "San Francisco"}'}
    calls = [{"id": "1", "type": "function", "function": call}]
    body = {
        "model": "gpt-3.5-turbo",
        "messages": [
            {"role": "assistant", "tool_calls": calls},
            chat_message("tool", "The weather in San Francisco is 70 degrees and sunny.", tool_call_id="1"),
        ],
    }

    assert count_body(body).total.tokens == 40


@pytest.mark.parametrize(("model", "reply_tokens"), [("gpt-4o", 3), ("gpt-5", 2), ("o3", 2)])
def test_the_overhead_is_the_beginning_of_the_response(model: str, reply_tokens: int) -> None:
    count = count_body({"model": model, "messages": [chat_message("user", "Hi")]})

    assert {part.name: part.tokens for part in count.parts} == {
        "system": 0,
        "tools": 0,
        "messages[0]": 5,
        "images": 0,
        "overhead": reply_tokens,
    }


def test_a_newer_model_inherits_and_is_not_exact() -> None:
    body = {"model": "gpt-9", "messages": [chat_message("user", "Hi there")]}

    known_count = count_body(body, model="gpt-5.4").total
    newer = count_body(body).total

    assert newer.tokens == known_count.tokens
    assert not newer.exact
    assert newer.upper > newer.tokens


def test_a_name_is_counted() -> None:
    plain = count_body({"model": "gpt-4o", "messages": [chat_message("user", "Hi")]}).total.tokens
    named = count_body({"model": "gpt-4o", "messages": [chat_message("user", "Hi", name="ana")]}).total.tokens

    assert named == plain + 1


def test_an_image_is_counted_by_its_tiles() -> None:
    header = "iVBORw0KGgoAAAANSUhEUgAABAAAAAQACAYAAAB"  # a PNG of 1024 by 1024
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{header}"}}
    low = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{header}", "detail": "low"}}

    def images(part: dict[str, Any]) -> int:
        count = count_body({"model": "gpt-4o", "messages": [chat_message("user", [part])]})
        return next(part.tokens for part in count.parts if part.name == "images")

    assert images(picture) == 85 + 4 * 170
    assert images(low) == 85


def test_an_image_by_url_is_unexplained() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}

    count = count_body({"model": "gpt-4o", "messages": [chat_message("user", [picture])]})

    assert count.unexplained == ("image (url)",)
    assert not count.total.exact


def pdf(pages: int, filling: int = 0) -> dict[str, Any]:
    data = b"%PDF-1.4" + b"<</Type /Page>>" * pages + b" " * filling
    return {"type": "file", "file": {"file_data": base64.b64encode(data).decode(), "filename": "a.pdf"}}


def test_an_inline_pdf_is_estimated_by_its_pages() -> None:
    def total(part: dict[str, Any], model: str = "gpt-4o") -> TokenCount:
        count = count_body({"model": model, "messages": [chat_message("user", [part])]})
        assert count.unexplained == ()
        return count.total

    page = 500 + 85 + 6 * 170  # its text, and an image of two by three tiles

    assert total(pdf(3)).tokens - total(pdf(1)).tokens == 2 * page
    assert total(pdf(3)).upper >= 2 * 3 * page
    assert not total(pdf(3)).exact
    assert total(pdf(0, filling=200_000)).tokens - total(pdf(0)).tokens == 3 * page
    assert total(pdf(3), "gpt-5").tokens > 3 * 500


def test_an_inline_file_of_another_type_is_estimated_and_unexplained() -> None:
    file = {"type": "file", "file": {"file_data": "data:application/zip;base64,UEsDBA==", "filename": "a.zip"}}
    count = count_body({"model": "gpt-4o", "messages": [chat_message("user", [file])]})

    assert count.unexplained == ("application/zip",)
    assert count.total.tokens > 500


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "qwen3", "deepseek-chat", "unknown"])
@pytest.mark.parametrize("content", [{"note": "hello " * 100}, [{"type": "note", "text": "hello " * 100}]])
def test_an_unknown_block_is_counted_by_its_text_and_unexplained(model: str, content: Any) -> None:
    count = count_body({"messages": [chat_message("user", content)]}, model=model)

    assert 90 < count.total.tokens < 160
    assert count.total.upper > count.total.tokens
    assert count.unexplained == ("an object" if isinstance(content, dict) else "note",)
    assert not count.total.exact


def test_a_block_next_to_a_call_is_counted_too() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = chat_message("assistant", {"note": "hello " * 100}, tool_calls=[call])

    assert count_body({"model": "gpt-4o", "messages": [message]}).total.tokens > 100


def test_audio_data_is_not_counted_as_text() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "UklGR" * 100_000, "format": "wav"}}
    count = count_body({"model": "gpt-4o", "messages": [chat_message("user", [audio])]})

    assert count.total.tokens < 50
    assert count.unexplained == ("input_audio",)


def test_server_tools_are_unexplained() -> None:
    body = {"model": "gpt-5", "input": "What is new?", "tools": [{"type": "web_search"}]}

    assert count_body(body, Format.RESPONSES).unexplained == ("server tool web_search",)


def test_a_stored_conversation_is_unexplained() -> None:
    body = {"model": "gpt-5", "input": "And then?", "previous_response_id": "resp_1"}

    assert count_body(body, Format.RESPONSES).unexplained == ("previous_response_id",)


def test_any_tool_can_be_counted() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "loop": {"$ref": "#/$defs/node"},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "many": {"type": "array", "items": {"enum": ["a", "b"]}},
            "rows": {"type": "array"},
            "kinds": {"type": ["string", "integer"], "description": "two\nlines"},
            "wrong": True,
        },
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    tool = {"type": "function", "function": {"name": "odd", "parameters": parameters}}

    count = count_body({"model": "gpt-4o", "messages": [chat_message("user", "Hi")], "tools": [tool]})

    assert count.total.tokens > 40


def recorded_counts(shared_data: Path) -> list[tuple[str, bool, int, RequestCount]]:
    counts = []
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        route = row["uri"].partition("?")[0].rpartition("/")[2]
        api_format = {"completions": Format.CHAT, "responses": Format.RESPONSES}.get(route)
        used_tokens = row["usage"].get("prompt_tokens") or row["usage"].get("input_tokens")
        if (
            not row["provider"].startswith("openai-")
            or api_format is None
            or "prompt" in row["request"]
            or not used_tokens
        ):
            continue
        count = count_body(row["request"], api_format, row["model"])
        if not count.unexplained:
            counts.append((str(api_format), bool(row["request"].get("tools")), used_tokens, count))
    return counts


@pytest.mark.slow
def test_counts_match_recorded_usage(shared_data: Path) -> None:
    """Measured in November 2026: 99% of plain chats and 88% of those with tools match exactly."""
    counts = recorded_counts(shared_data)
    for api_format, has_tools, share in (
        ("openai-chat", False, 0.97),
        ("openai-chat", True, 0.85),
        ("openai-responses", False, 0.90),
        ("openai-responses", True, 0.90),
    ):
        rows = [
            (used_tokens, count.total)
            for s, t, used_tokens, count in counts
            if s == api_format and t == has_tools
        ]

        assert len(rows) > 50
        assert sum(total.tokens == used_tokens for used_tokens, total in rows) >= share * len(rows)
        assert sum(total.upper >= used_tokens for used_tokens, total in rows) >= 0.95 * len(rows)


def with_schema(schema: dict[str, Any], *, name: str = "Answer", **fields: Any) -> int:
    answer_format = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
    body = {
        "model": "gpt-4o",
        "messages": [chat_message("user", "Hi")],
        "response_format": answer_format,
        **fields,
    }
    return count_body(body).total.tokens


def test_constraints_in_a_response_schema_are_not_rendered() -> None:
    score = {"title": "Score", "type": "number"}
    bounded = {**score, "minimum": 0.0, "maximum": 1.0, "default": 0.5}

    assert with_schema({"properties": {"score": score}}) == with_schema({"properties": {"score": bounded}})


def test_the_name_of_a_response_schema_counts_twice_without_tools() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]}
    one_token, two_tokens = "Answer", "ScoreOutput"

    alone = with_schema({}, name=two_tokens) - with_schema({}, name=one_token)
    with_tools = with_schema({}, name=two_tokens, **tools) - with_schema({}, name=one_token, **tools)

    assert (alone, with_tools) == (2, 1)


def test_a_response_schema_is_rendered_in_ascii() -> None:
    plain = with_schema({"description": "a - b"})

    assert with_schema({"description": "a — b"}) > plain


def test_a_forced_function_is_named_after_the_messages() -> None:
    tool = {"type": "function", "function": {"name": "ScoreOutput", "parameters": {"type": "object"}}}
    body = {"model": "gpt-4o", "messages": [chat_message("user", "Hi")], "tools": [tool]}
    forced = {**body, "tool_choice": {"type": "function", "function": {"name": "ScoreOutput"}}}

    assert count_body(forced).total.tokens == count_body(body).total.tokens + 9


def test_the_legacy_fields_for_functions_count_like_tools() -> None:
    function = {"name": "ScoreOutput", "parameters": {"type": "object"}}
    body = {"model": "gpt-4o", "messages": [chat_message("user", "Hi")]}
    choice = {"name": "ScoreOutput"}
    tools = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": choice},
    }

    legacy = count_body({**body, "functions": [function], "function_call": choice})

    assert legacy.total.tokens == count_body({**body, **tools}).total.tokens
