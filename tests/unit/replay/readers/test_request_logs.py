"""Logs of requests: bodies that continue each other share their messages, whatever program logged them."""

import json
from pathlib import Path
from typing import Any

import pytest

from foveate.model import CacheUsage, Format, Ttl
from foveate.replay.recording import MissingPart, Recording, RecordingSource
from foveate.replay.recording_files import read_recordings
from foveate.replay.simulator.reconstruct import reconstruct_calls

USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
FOLLOW_UP = {"role": "user", "content": "more"}
BODY: dict[str, Any] = {"model": "gpt-5.1", "temperature": 0, "messages": [USER]}
USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}
REPLY = {"id": "chatcmpl-1", "choices": [{"message": ANSWER, "finish_reason": "stop"}], "usage": USAGE}


def make_body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return BODY | {"messages": list(messages)} | fields


def write_and_read(folder: Path, *rows: Any) -> list[Recording]:
    path = folder / "log.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return list(read_recordings(path))


def test_bodies_that_continue_each_other_share_their_messages(tmp_path: Path) -> None:
    (recording,) = write_and_read(tmp_path, make_body(USER), make_body(USER, ANSWER, FOLLOW_UP))
    first, second = recording.calls

    assert recording.source is RecordingSource.REQUESTS
    assert second.last_message.history()[0] is first.last_message
    assert first.conversation == second.conversation
    assert json.loads(first.envelope) == {"model": "gpt-5.1", "temperature": 0}
    assert first.envelope is second.envelope
    assert recording.missing == {MissingPart.USAGE, MissingPart.TIME}


def test_moved_breakpoints_and_other_spellings_give_the_same_message(tmp_path: Path) -> None:
    block_with_breakpoint = {"type": "text", "text": "hällo", "cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": "hällo"}
    envelope = {"model": "claude-opus-5", "max_tokens": 9, "system": "s"}
    rows = (
        json.dumps(envelope | {"messages": [{"role": "user", "content": [block_with_breakpoint]}]}),
        json.dumps(
            envelope | {"messages": [message, ANSWER, FOLLOW_UP]}, ensure_ascii=False, separators=(",", ":")
        ),
    )
    (recording,) = write_and_read(tmp_path, *rows)
    first, second = recording.calls

    assert recording.format is Format.ANTHROPIC
    assert second.last_message.history()[0] is first.last_message
    assert b"cache_control" not in first.last_message.raw


def test_each_conversation_is_a_recording_and_single_requests_form_one(tmp_path: Path) -> None:
    other = {"role": "user", "content": "something else"}
    single_requests = [make_body({"role": "user", "content": f"number {number}"}) for number in range(3)]
    recordings = write_and_read(
        tmp_path,
        make_body(USER),
        make_body(other),
        *single_requests,
        make_body(USER, ANSWER, FOLLOW_UP),
        make_body(other, ANSWER, FOLLOW_UP),
    )

    assert sorted(
        (len(recording.calls), len({call.conversation for call in recording.calls})) for recording in recordings
    ) == [
        (2, 1),
        (2, 1),
        (3, 3),
    ]


def test_a_session_that_the_log_names_is_one_recording(tmp_path: Path) -> None:
    rows = [
        {"session_id": "s", "request": make_body({"role": "user", "content": text}), "timestamp": seconds}
        for seconds, text in enumerate(("one", "two"), start=1_767_607_200)
    ]
    (recording,) = write_and_read(tmp_path, *rows)

    assert (recording.name, len(recording.calls)) == ("s", 2)
    assert [call.at for call in recording.calls] == [1_767_607_200.0, 1_767_607_201.0]


STREAM = (
    'data: {"id":"x","choices":[{"delta":{"content":"hi"}}]}\n\n'
    f'data: {{"id":"x","choices":[],"usage":{json.dumps(USAGE)}}}\n\ndata: [DONE]\n\n'
)
WRAPPED = {
    "request and response": {"request": BODY, "response": REPLY, "timestamp": "2026-01-05T10:00:00Z"},
    "nested bodies": {"request": {"method": "POST", "body": BODY}, "response": {"status": 200, "body": REPLY}},
    "JSON in strings": {"request": json.dumps(BODY), "response": json.dumps(REPLY)},
    "a stream": {"request": BODY, "response": STREAM},
    "usage without a response": {
        "provider": "openai-chat",
        "model": "gpt-5.1",
        "usage": USAGE,
        "request": BODY,
        "uri": "u",
    },
    "response next to the messages": BODY
    | {"response": REPLY, "startTime": 1_767_607_200.5, "response_cost": 0.1},
    "helicone": {"request_body": BODY, "response_body": REPLY, "request_created_at": "2026-01-05T10:00:00Z"},
    "helicone, async": {"providerRequest": {"json": BODY, "url": "u"}, "providerResponse": {"json": REPLY}},
    "openpipe": {"requestedAt": 1_767_607_200_000, "reqPayload": json.dumps(BODY), "respPayload": REPLY},
    "langfuse": {
        "traceId": "t",
        "model": "gpt-5.1",
        "input": [USER],
        "output": ANSWER,
        "startTime": "2026-01-05T10:00:00.000Z",
        "usageDetails": {"input": 36, "input_cached_tokens": 64, "output": 5},
    },
    "top-level token counts": {"body": BODY, "prompt_tokens": 100, "completion_tokens": 5},
}


@pytest.mark.parametrize("row", WRAPPED.values(), ids=WRAPPED.keys())
def test_a_row_is_read_however_it_is_wrapped(tmp_path: Path, row: dict[str, Any]) -> None:
    (recording,) = write_and_read(tmp_path, row)
    (call,) = recording.calls

    assert recording.source is RecordingSource.REQUESTS
    assert (call.model, json.loads(call.last_message.raw)) == ("gpt-5.1", USER)
    assert call.usage is not None
    assert call.usage.cache.input_tokens == 100
    assert call.usage.output_tokens == 5
    if row is not WRAPPED["top-level token counts"]:
        assert call.usage.cache == CacheUsage(uncached=36, read=64)
    if "response" in row and isinstance(row["response"], dict):
        assert json.loads(call.response) == ANSWER


FORMATS = {
    Format.ANTHROPIC: {"model": "claude-opus-5", "max_tokens": 5, "system": "s", "messages": [USER]},
    Format.CHAT: BODY,
    Format.RESPONSES: {"model": "gpt-5.1", "instructions": "s", "input": "hello"},
    Format.GEMINI: {"contents": [{"role": "user", "parts": [{"text": "hello"}]}], "generationConfig": {}},
    Format.BEDROCK: {"messages": [{"role": "user", "content": [{"text": "hello"}]}], "inferenceConfig": {}},
}


@pytest.mark.parametrize(("api_format", "request_body"), FORMATS.items(), ids=list(FORMATS))
def test_bare_bodies_of_every_format_are_read(
    tmp_path: Path, api_format: Format, request_body: dict[str, Any]
) -> None:
    (recording,) = write_and_read(tmp_path, request_body)
    (call,) = recording.calls

    assert (recording.format, call.last_message.role, call.last_message.depth) == (api_format, "user", 0)


TEXT = {"type": "output_text", "text": "hi"}
REPLIES: dict[Format, tuple[dict[str, Any], Any]] = {
    Format.ANTHROPIC: (
        {"content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 7, "output_tokens": 2}},
        {"role": "assistant", "content": [{"type": "text", "text": "hi"}]},
    ),
    Format.RESPONSES: (
        {
            "output": [
                {"type": "message", "content": [TEXT]},
                {"type": "function_call", "name": "ls", "arguments": "{}"},
            ],
            "usage": {"input_tokens": 7, "output_tokens": 2},
        },
        {"type": "message", "role": "assistant", "content": [TEXT, {"type": "output_text", "text": "{}"}]},
    ),
    Format.GEMINI: (
        {
            "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}}],
            "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2},
        },
        {"role": "model", "parts": [{"text": "hi"}]},
    ),
    Format.BEDROCK: (
        {
            "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
            "usage": {"inputTokens": 7, "outputTokens": 2},
        },
        {"role": "assistant", "content": [{"text": "hi"}]},
    ),
}


@pytest.mark.parametrize("api_format", REPLIES, ids=list(REPLIES))
def test_responses_of_every_format_are_read_as_messages_with_usage(tmp_path: Path, api_format: Format) -> None:
    reply, expected = REPLIES[api_format]
    (recording,) = write_and_read(tmp_path, {"request": FORMATS[api_format], "response": reply})
    (call,) = recording.calls

    assert json.loads(call.response) == expected
    assert call.usage is not None
    assert (call.usage.cache.input_tokens, call.usage.output_tokens) == (7, 2)


def test_the_model_is_read_from_the_url_if_the_body_does_not_name_it(tmp_path: Path) -> None:
    uri = "https://host/v1beta/models/gemini-3-pro:generateContent"
    (recording,) = write_and_read(tmp_path, {"uri": uri, "request": FORMATS[Format.GEMINI], "usage": {}})

    assert recording.calls[0].model == "gemini-3-pro"


def test_enabled_thinking_is_read_from_the_body(tmp_path: Path) -> None:
    bodies = [
        make_body(USER, thinking={"type": "enabled", "budget_tokens": 1024}),
        make_body(USER, thinking={"type": "disabled"}),
        make_body(USER, reasoning={"effort": "high"}),
        make_body(USER),
    ]
    (recording,) = write_and_read(tmp_path, *bodies)

    assert [call.has_thinking for call in recording.calls] == [True, False, True, False]


@pytest.mark.parametrize(
    ("cache_control", "expected"),
    [
        ({"type": "ephemeral"}, Ttl.FIVE_MINUTES),
        ({"type": "ephemeral", "ttl": "1h"}, Ttl.ONE_HOUR),
        (None, None),
    ],
)
@pytest.mark.parametrize("location", ["message", "body"])
def test_breakpoints_in_a_body_without_usage_are_found(
    tmp_path: Path, location: str, cache_control: dict[str, str] | None, expected: Ttl | None
) -> None:
    block: dict[str, Any] = {"type": "text", "text": 'no "cache_control": {} of mine'}
    body: dict[str, Any] = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": []}
    if cache_control is not None:
        (block if location == "message" else body)["cache_control"] = cache_control
    body["messages"] = [{"role": "user", "content": [block]}]
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(body))
    (recording,) = read_recordings(path)

    assert [call.breakpoint_ttl for call in recording.calls] == [expected]
    assert [reconstructed.ttls for reconstructed in reconstruct_calls(recording)] == [
        (expected, expected) if expected else None
    ]


@pytest.mark.parametrize("name", ["data", "observations", "requests"])
def test_rows_in_an_object_are_read(tmp_path: Path, name: str) -> None:
    rows = [
        {"request": BODY, "response": REPLY},
        {"request": make_body(USER, ANSWER, FOLLOW_UP), "response": REPLY},
    ]
    (recording,) = write_and_read(tmp_path, {name: rows, "meta": {"page": 1}})

    assert recording.source is RecordingSource.REQUESTS
    assert [call.usage is not None for call in recording.calls] == [True, True]


def test_a_spend_log_of_litellm_with_a_separate_request_is_read(tmp_path: Path) -> None:
    row = {"request_id": "r", "messages": {}, "proxy_server_request": json.dumps(BODY), "response": REPLY}
    (recording,) = write_and_read(tmp_path, row)

    assert [call.model for call in recording.calls] == ["gpt-5.1"]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": 529},
        {"status": "failure"},
        {"response_status": 400},
        {"response": {"type": "error", "error": {"type": "overloaded_error"}}},
    ],
)
def test_a_rejected_request_is_not_a_call(tmp_path: Path, fields: dict[str, Any]) -> None:
    (recording,) = write_and_read(
        tmp_path, {"request": BODY, "response": REPLY, "status": 200}, {"request": BODY, **fields}
    )

    assert [call.usage is not None for call in recording.calls] == [True]


def test_other_observations_than_model_calls_are_ignored(tmp_path: Path) -> None:
    span = {"type": "SPAN", "traceId": "t", "input": [USER], "output": ANSWER}
    call = {
        "type": "GENERATION",
        "traceId": "t",
        "input": [USER],
        "output": ANSWER,
        "providedModelName": "gpt-5.1",
    }
    (recording,) = write_and_read(tmp_path, call, span)

    assert [recorded_call.model for recorded_call in recording.calls] == ["gpt-5.1"]


def test_a_row_without_a_time_has_that_of_its_response(tmp_path: Path) -> None:
    (recording,) = write_and_read(tmp_path, {"request": BODY, "response": {**REPLY, "created": 1_762_000_000}})

    assert [(call.at, call.response_at) for call in recording.calls] == [(1_762_000_000, 1_762_000_000)]
    assert MissingPart.TIME not in recording.missing


def test_requests_that_generate_no_text_are_not_calls(tmp_path: Path) -> None:
    embedding_request = {
        "request": {"model": "text-embedding-3-small", "input": "hello"},
        "usage": {"prompt_tokens": 1},
    }
    (recording,) = write_and_read(tmp_path, {"request": BODY, "usage": USAGE}, embedding_request)

    assert len(recording.calls) == 1
    assert recording.unreadable == ()


def test_unreadable_lines_are_reported_by_number(tmp_path: Path) -> None:
    (recording,) = write_and_read(tmp_path, BODY, '{"model": "gpt', "5", make_body(USER, ANSWER, FOLLOW_UP))

    assert [(problem.line, problem.reason) for problem in recording.unreadable] == [
        (2, "is truncated"),
        (3, "is JSON, but not an object"),
    ]
    assert len(recording.calls) == 2


def test_a_list_of_rows_is_read_like_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(
        json.dumps([WRAPPED["request and response"], {"request": make_body(USER, ANSWER, FOLLOW_UP)}], indent=1)
    )
    (recording,) = read_recordings(path)

    assert len(recording.calls) == 2


@pytest.mark.slow
def test_recorded_calls_of_all_providers_are_read(shared_data: Path) -> None:
    recordings = list(read_recordings(shared_data / "usage_pairs.jsonl.gz"))
    calls = [call for recording in recordings for call in recording.calls]

    assert len(calls) > 1_500
    assert {recording.format for recording in recordings} == set(Format)
    assert sum(call.usage is None for call in calls) < 10
    assert all(call.model for call in calls)
