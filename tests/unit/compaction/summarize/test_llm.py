import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from foveate import formats
from foveate.compaction.plan import plan_compaction
from foveate.compaction.summarize.llm import LlmSummarizer, SummarizerEndpoint
from foveate.compaction.summarize.summarizer import Summary, SummaryFailure, SummaryInput, UsageLog
from foveate.errors import BadOption
from foveate.http import JsonClient
from foveate.model import Format
from foveate.sandbox import validate_request
from foveate.tokens import counter_for
from tests.support.scenarios.compaction_sessions import (
    MODEL,
    OPTIONS,
    Body,
    chat_body,
    claude_body,
    make_subject,
    responses_body,
    source_path,
)
from tests.support.servers.counting_apis import FakeServer, http_response, ok_response, raw_server

VALID_SUMMARY = "The user looks for the slow parser in src/parsers. Next was to say which it was."
LIMIT_TOKENS = 400


def make_summary_input(body: Body, api_format: Format | None = None) -> SummaryInput:
    plan = plan_compaction(make_subject(body, api_format=api_format), counter_for(body["model"]), OPTIONS)
    assert plan is not None
    return plan.summary_input


def claude_reply(text: str, stop_reason: str = "end_turn", **fields: Any) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 5}
    return ok_response(
        {"content": [{"type": "text", "text": text}], "stop_reason": stop_reason, "usage": usage, **fields}
    )


TOOL_CALL_REPLY = claude_reply(
    "", "tool_use", content=[{"type": "tool_use", "id": "t", "name": "read_file", "input": {}}]
)


def reply_in_turn(*replies: bytes) -> Callable[[str, bytes], bytes]:
    pending = list(replies)
    return lambda _path, _body: pending.pop(0)


class RecordedDelays:
    """Records delays without waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def run_summarizer(
    summary_input: SummaryInput,
    *replies: bytes,
    api_format: Format = Format.ANTHROPIC,
    model: str = "",
    window_tokens: int | None = None,
    redraft: Sequence[str] = (),
    usage_log: UsageLog | None = None,
) -> tuple[Summary | SummaryFailure, list[Body], list[float]]:
    """Run a summarizer, and return its result, the requests and the delays."""
    delays = RecordedDelays()
    usage_log = usage_log or UsageLog()
    async with raw_server(reply_in_turn(*replies)) as server, JsonClient(timeout_seconds=5) as client:
        endpoint = SummarizerEndpoint(
            url=f"{server.url}/v1/messages", api_format=api_format, headers={"x-api-key": "k"}
        )
        summarizer = LlmSummarizer(client, endpoint, model=model, window_tokens=window_tokens, sleep=delays)
        if redraft:
            result = await summarizer.redraft(
                summary_input, VALID_SUMMARY, redraft, usage_log, limit_tokens=LIMIT_TOKENS
            )
        else:
            result = await summarizer.summarize(summary_input, usage_log, limit_tokens=LIMIT_TOKENS)
        return result, request_bodies(server), delays.seconds


def request_bodies(server: FakeServer) -> list[Body]:
    return [body for _, body in server.sent]


async def test_the_agents_own_model_gets_the_sent_request_and_one_instruction() -> None:
    body = claude_body(12) | {"stream": True, "stop_sequences": ["x"], "temperature": 0.5}
    result, (request,), _ = await run_summarizer(make_summary_input(body), claude_reply(VALID_SUMMARY))

    assert isinstance(result, Summary)
    assert (result.text, result.model) == (VALID_SUMMARY, MODEL)
    assert request["messages"][:-1] == body["messages"]
    assert {name: request[name] for name in ("model", "system", "tools", "temperature")} == {
        name: body[name] for name in ("model", "system", "tools", "temperature")
    }
    assert not request.keys() & {"stream", "stop_sequences"}
    assert request["max_tokens"] == 2 * LIMIT_TOKENS
    assert validate_request(formats.parse_request(request)) is None


@pytest.mark.parametrize("api_format", [Format.CHAT, Format.RESPONSES, Format.ANTHROPIC])
async def test_a_request_with_data_uses_the_endpoints_model_name(api_format: Format) -> None:
    summary_input = replace(
        summary_input := make_summary_input(claude_body(12)),
        request=replace(summary_input.request, tool_choice="any"),
    )
    async with (
        raw_server(lambda _path, _body: http_response(401)) as server,
        JsonClient(timeout_seconds=5) as client,
    ):
        endpoint = SummarizerEndpoint(url=server.url, api_format=api_format, headers={}, model="house")
        for model in ("", "other"):
            await LlmSummarizer(client, endpoint, model=model).summarize(
                summary_input, limit_tokens=LIMIT_TOKENS
            )

    assert [body["model"] for body in request_bodies(server)] == ["house", "other"]


async def test_a_failure_does_not_reveal_the_query_of_the_url() -> None:
    """Regression: a key in the query of an Azure URL was stored in the reason."""
    async with raw_server(reply_in_turn(http_response(404))) as server, JsonClient(timeout_seconds=5) as client:
        url = f"{server.url}/openai/v1/responses?api-version=1&subscription-key=SECRET"
        endpoint = SummarizerEndpoint(url=url, api_format=Format.ANTHROPIC, headers={})
        summarizer = LlmSummarizer(client, endpoint, sleep=RecordedDelays())
        result = await summarizer.summarize(make_summary_input(claude_body(12)), limit_tokens=LIMIT_TOKENS)

    assert isinstance(result, SummaryFailure)
    assert result.reason.startswith(f"{server.url}/openai/v1/responses: responded with status 404")
    assert "SECRET" not in result.reason


async def test_thinking_stays_enabled_and_gets_output_tokens() -> None:
    body = claude_body(12, model="claude-sonnet-4-5") | {
        "thinking": {"type": "enabled", "budget_tokens": 1_500},
        "max_tokens": 2_000,
    }
    _, (request,), _ = await run_summarizer(make_summary_input(body), claude_reply(VALID_SUMMARY))

    assert request["thinking"] == body["thinking"]
    assert request["max_tokens"] == 1_500 + 2 * LIMIT_TOKENS


async def test_a_streamed_chat_is_summarized_without_streaming() -> None:
    body = chat_body(24)
    choice = {"message": {"role": "assistant", "content": VALID_SUMMARY}, "finish_reason": "stop"}
    result, (request,), _ = await run_summarizer(
        make_summary_input(body, Format.CHAT), ok_response({"choices": [choice]}), api_format=Format.CHAT
    )

    assert isinstance(result, Summary)
    assert request["messages"][:-1] == body["messages"]
    assert not request.keys() & {"stream", "stream_options", "max_tokens"}
    assert validate_request(formats.parse_request(request, Format.CHAT)) is None


def responses_reply(text: str, **fields: Any) -> bytes:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output = [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": content},
    ]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return ok_response(
        {"object": "response", "status": "completed", "output": output, "usage": usage, **fields}
    )


async def test_a_responses_session_is_summarized_from_the_cached_prefix() -> None:
    """Regression: a chat completion was requested, which is not cached and which some models reject."""
    body = responses_body(24)
    summary_input = make_summary_input(body, Format.RESPONSES)
    result, (request,), _ = await run_summarizer(
        summary_input, responses_reply(VALID_SUMMARY), api_format=Format.RESPONSES
    )

    assert result == Summary(text=VALID_SUMMARY, model="gpt-5.2")
    assert request["input"][:-1] == body["input"]
    assert request["input"][-1]["role"] == "user"
    changed_fields = {"stream", "max_output_tokens"}
    assert {name: request[name] for name in body.keys() - changed_fields - {"input"}} == {
        name: body[name] for name in body.keys() - changed_fields - {"input"}
    }
    assert "stream" not in request
    assert request["max_output_tokens"] > 2 * LIMIT_TOKENS  # the model thinks before it writes
    assert validate_request(formats.parse_request(request, Format.RESPONSES)) is None


async def test_a_redraft_by_responses_continues_the_same_conversation() -> None:
    summary_input = make_summary_input(responses_body(24), Format.RESPONSES)
    _, (request,), _ = await run_summarizer(
        summary_input, responses_reply(VALID_SUMMARY), api_format=Format.RESPONSES, redraft=["part_3.py"]
    )

    assert [item["role"] for item in request["input"][-3:]] == ["user", "assistant", "user"]
    assert request["input"][-2]["content"] == VALID_SUMMARY
    assert validate_request(formats.parse_request(request, Format.RESPONSES)) is None


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        ({}, "gpt-5-mini"),
        ({"tool_choice": "required"}, ""),
        ({"text": {"format": {"type": "json_object"}}}, ""),
    ],
    ids=["another model", "a forced tool", "an output format"],
)
async def test_responses_get_data_if_the_request_cannot_be_continued(changes: Body, model: str) -> None:
    summary_input = make_summary_input(responses_body(24) | changes, Format.RESPONSES)
    result, requests, _ = await run_summarizer(
        summary_input, *[responses_reply(VALID_SUMMARY)] * 9, api_format=Format.RESPONSES, model=model
    )

    assert isinstance(result, Summary)
    assert all(not body.keys() & {"tools", "tool_choice", "text", "reasoning"} for body in requests)
    assert all(body["store"] is False for body in requests)
    assert all(validate_request(formats.parse_request(body, Format.RESPONSES)) is None for body in requests)
    contents = "".join(body["input"] for body in requests)
    assert all(source_path(step) in contents for step in range(6))


SYSTEM_MESSAGE: Body = {"role": "system", "content": "The user opened src/parsers/part_3.py."}
DIRECTIVE: Body = {"role": "system", "content": [], "output_config": {"effort": "low"}}


@pytest.mark.parametrize(
    ("last", "block"),
    [
        ([SYSTEM_MESSAGE], 0),
        ([{"role": "system", "content": [{"type": "text", "text": "A."}, {"type": "text", "text": "B."}]}], 0),
        ([SYSTEM_MESSAGE, SYSTEM_MESSAGE], 1),
        ([SYSTEM_MESSAGE, DIRECTIVE], 0),
    ],
    ids=["a string", "blocks", "two messages", "a directive after it"],
)
@pytest.mark.parametrize("redraft", [[], ["part_3.py"]], ids=["a first draft", "a redraft"])
async def test_the_instruction_joins_a_final_system_message(
    last: list[Body], block: int, redraft: list[str]
) -> None:
    """Regression: a user message after it was rejected, so such sessions were never summarized."""
    body = claude_body(12, model="claude-opus-4-8")
    body["messages"] += last
    _, (request,), _ = await run_summarizer(
        make_summary_input(body), claude_reply(VALID_SUMMARY), redraft=redraft
    )

    count, messages = len(body["messages"]), request["messages"]
    instruction_index = count - len(last) + block
    assert messages[:instruction_index] == body["messages"][:instruction_index]
    assert messages[instruction_index]["role"] == "system"
    assert "Write that summary now." in messages[instruction_index]["content"][-1]["text"]
    assert [message["role"] for message in messages[count:]] == (["assistant", "user"] if redraft else [])
    assert validate_request(formats.parse_request(request, Format.ANTHROPIC)) is None


async def test_an_empty_system_message_does_not_take_the_instruction() -> None:
    body = claude_body(12, model="claude-opus-4-8")
    body["messages"].append(DIRECTIVE)
    _, (request,), _ = await run_summarizer(make_summary_input(body), claude_reply(VALID_SUMMARY))

    assert request["messages"][:-1] == body["messages"]
    assert request["messages"][-1]["role"] == "user"


@pytest.mark.parametrize(
    ("changes", "model", "window_tokens"),
    [
        ({}, "claude-haiku-5-5", None),
        ({"tool_choice": {"type": "any"}}, "", None),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, "", None),
        ({}, "", 3_500),
    ],
    ids=["another model", "a forced tool", "a schema", "a small window"],
)
async def test_messages_are_shown_as_data_if_the_request_cannot_be_continued(
    changes: Body, model: str, window_tokens: int | None
) -> None:
    summary_input = make_summary_input(claude_body(12) | changes)
    _, requests, _ = await run_summarizer(
        summary_input, *[claude_reply(VALID_SUMMARY)] * 9, model=model, window_tokens=window_tokens
    )

    assert all(not body.keys() & {"tools", "tool_choice", "output_config"} for body in requests)
    assert all(len(body["messages"]) == 1 for body in requests)
    assert all(validate_request(formats.parse_request(body, Format.ANTHROPIC)) is None for body in requests)
    contents = "".join(body["messages"][0]["content"] for body in requests)
    assert all(source_path(step) in contents for step in range(6))


@pytest.mark.parametrize(
    "output_format",
    [
        {"response_format": {"type": "json_object"}},
        {"function_call": {"name": "read"}, "functions": [{"name": "read"}]},
        {"guided_choice": ["yes", "no"]},
        {"grammar": 'root ::= "yes"'},
    ],
    ids=lambda form: next(iter(form)),
)
async def test_a_chat_with_a_forced_output_format_is_shown_as_data(output_format: Body) -> None:
    """Regression: the format was sent along, and the JSON response replaced the history."""
    choice = {"message": {"role": "assistant", "content": VALID_SUMMARY}, "finish_reason": "stop"}
    summary_input = make_summary_input(chat_body(24) | output_format, Format.CHAT)
    _, (request,), _ = await run_summarizer(
        summary_input, ok_response({"choices": [choice]}), api_format=Format.CHAT
    )

    assert not request.keys() & {*output_format, "tools"}


async def test_fields_that_spoil_a_response_but_not_the_cache_are_dropped() -> None:
    dropped = {"logit_bias": {"1": 100}, "modalities": ["text", "audio"], "audio": {"voice": "alloy"}}
    kept_fields = {"response_format": {"type": "text"}, "function_call": "auto"}
    choice = {"message": {"role": "assistant", "content": VALID_SUMMARY}, "finish_reason": "stop"}
    summary_input = make_summary_input(chat_body(24) | dropped | kept_fields, Format.CHAT)
    _, (request,), _ = await run_summarizer(
        summary_input, ok_response({"choices": [choice]}), api_format=Format.CHAT
    )

    assert not request.keys() & dropped.keys()
    assert kept_fields.keys() <= request.keys()


async def test_an_uncached_request_is_shown_as_data() -> None:
    """Without a breakpoint nothing is cached, and tail and tools would cost the full price."""
    _, (request,), _ = await run_summarizer(
        make_summary_input(claude_body(12, has_breakpoint=False)), claude_reply(VALID_SUMMARY)
    )

    assert "tools" not in request


async def test_messages_beyond_the_window_are_shown_in_chunks_with_earlier_summaries() -> None:
    summary_input = make_summary_input(claude_body(40))
    summaries = [f"Summary number {number} of how slow the parser was so far." for number in range(60)]
    usage_log = UsageLog()
    result, requests, _ = await run_summarizer(
        summary_input, *map(claude_reply, summaries), window_tokens=4_000, usage_log=usage_log
    )

    assert len(requests) > 2
    assert isinstance(result, Summary)
    assert result.text == summaries[len(requests) - 1]
    assert len(usage_log.usages) == len(requests)
    for previous, body in zip(summaries, requests[1:], strict=False):
        assert previous in body["messages"][0]["content"]
    contents = [body["messages"][0]["content"] for body in requests]
    assert all(any(source_path(step) in text for text in contents) for step in range(30))
    assert all(
        counter_for(MODEL).count_request(formats.parse_request(body)).total.upper < 4_000 for body in requests
    )


async def test_an_error_in_a_chunk_is_not_passed_on() -> None:
    summary_input = make_summary_input(claude_body(40))
    error_page = claude_reply("<html><body>502</body></html>")
    result, requests, _ = await run_summarizer(
        summary_input, claude_reply(VALID_SUMMARY), *[error_page] * 4, window_tokens=4_000
    )

    assert isinstance(result, SummaryFailure)
    assert len(requests) == 5
    assert all("<html>" not in body["messages"][0]["content"] for body in requests)


async def test_a_window_too_small_for_any_chunk_is_reported() -> None:
    result, requests, _ = await run_summarizer(make_summary_input(claude_body(12)), window_tokens=600)

    assert isinstance(result, SummaryFailure)
    assert "too small" in result.reason
    assert requests == []


async def test_an_earlier_summary_is_shown_before_new_messages() -> None:
    summary_input = replace(
        make_summary_input(claude_body(12, has_breakpoint=False)), earlier_summary="What was folded before."
    )
    _, (request,), _ = await run_summarizer(summary_input, claude_reply(VALID_SUMMARY))

    assert "What was folded before." in request["messages"][0]["content"]


async def test_there_are_three_retries_with_growing_delays() -> None:
    result, requests, delays = await run_summarizer(
        make_summary_input(claude_body(12)), *[http_response(529)] * 4
    )

    assert isinstance(result, SummaryFailure)
    assert len(requests) == 4
    assert delays == [1.0, 4.0, 16.0]
    assert "529" in result.reason


@pytest.mark.parametrize(
    "reply",
    [
        claude_reply(""),
        claude_reply("I can't help with that."),
        claude_reply(VALID_SUMMARY, "max_tokens"),
        claude_reply(VALID_SUMMARY, "refusal"),
        claude_reply("word " * 40_000),
        http_response(200, b"<html><body>Bad gateway</body></html>", "text/html"),
        ok_response({"error": {"message": "x"}}),
        ok_response({"content": "text"}),
        ok_response({"content": [{"type": "text", "text": 3}]}),
        http_response(503),
        http_response(429),
        http_response(200, b'{"content": [{"type": "te'),
    ],
)
async def test_a_response_that_is_not_a_summary_is_retried(reply: bytes) -> None:
    result, requests, _ = await run_summarizer(
        make_summary_input(claude_body(12)), reply, claude_reply(VALID_SUMMARY)
    )

    assert isinstance(result, Summary)
    assert result.text == VALID_SUMMARY
    assert len(requests) == 2


async def test_a_model_that_calls_a_tool_is_shown_the_messages_as_data() -> None:
    usage_log = UsageLog()
    result, requests, _ = await run_summarizer(
        make_summary_input(claude_body(12)), TOOL_CALL_REPLY, claude_reply(VALID_SUMMARY), usage_log=usage_log
    )

    assert isinstance(result, Summary)
    assert ["tools" in body for body in requests] == [True, False]
    assert len(usage_log.usages) == 2


async def test_a_model_that_continues_the_work_is_shown_the_messages_as_data() -> None:
    result, requests, _ = await run_summarizer(
        make_summary_input(claude_body(12)),
        claude_reply("Sure! Let me go on with that now."),
        claude_reply(VALID_SUMMARY),
    )

    assert isinstance(result, Summary)
    assert ["tools" in body for body in requests] == [True, False]


async def test_a_model_that_writes_unrelated_text_twice_is_not_called_again() -> None:
    unrelated = claude_reply("All of it went well, and I am happy to help with more.")
    result, requests, _ = await run_summarizer(make_summary_input(claude_body(12)), *[unrelated] * 9)

    assert isinstance(result, SummaryFailure)
    assert "nothing in common" in result.reason
    assert ["tools" in body for body in requests] == [True, False, False]


async def test_a_truncated_summary_is_retried_with_more_output_tokens() -> None:
    """Regression: the same body was sent four times, and the summary was truncated four times."""
    result, requests, delays = await run_summarizer(
        make_summary_input(claude_body(12)),
        claude_reply("The parser", "max_tokens"),
        claude_reply(VALID_SUMMARY),
    )
    _, failed_requests, _ = await run_summarizer(
        make_summary_input(claude_body(12)), *[claude_reply("The parser", "max_tokens")] * 9
    )

    assert isinstance(result, Summary)
    assert [body["max_tokens"] for body in requests] == [2 * LIMIT_TOKENS, 4 * LIMIT_TOKENS]
    assert delays == []
    assert [body["max_tokens"] for body in failed_requests] == [2 * LIMIT_TOKENS, 4 * LIMIT_TOKENS]


async def test_every_call_is_logged_without_rejected_ones() -> None:
    usage_log = UsageLog()
    truncated = http_response(200, b'{"content": [{"type": "te')
    await run_summarizer(
        make_summary_input(claude_body(12)),
        truncated,
        http_response(529),
        claude_reply(""),
        claude_reply(VALID_SUMMARY),
        usage_log=usage_log,
    )

    unknown, empty, complete = usage_log.usages
    assert unknown is None
    assert empty == complete
    assert complete is not None
    assert complete.output_tokens == 5


def test_a_client_with_a_short_timeout_is_rejected() -> None:
    """Regression: its timeout of 2 seconds was accepted, and no summary was ever finished."""
    endpoint = SummarizerEndpoint(url="http://127.0.0.1", api_format=Format.CHAT, headers={})

    with pytest.raises(BadOption, match="2 s"):
        LlmSummarizer(JsonClient(), endpoint)


async def test_a_rejected_request_is_not_repeated_but_sent_as_data() -> None:
    result, requests, _ = await run_summarizer(
        make_summary_input(claude_body(12)), http_response(400), claude_reply(VALID_SUMMARY)
    )

    assert isinstance(result, Summary)
    assert ["tools" in body for body in requests] == [True, False]


async def test_a_rejected_key_is_not_retried() -> None:
    result, requests, _ = await run_summarizer(make_summary_input(claude_body(12)), http_response(401))

    assert isinstance(result, SummaryFailure)
    assert len(requests) == 1


async def test_a_redraft_continues_the_draft_and_names_missing_facts() -> None:
    _, (request,), _ = await run_summarizer(
        make_summary_input(claude_body(12)), claude_reply(VALID_SUMMARY), redraft=("src/secret_part.py",)
    )

    *_, prompt, draft, redraft_prompt = request["messages"]
    assert [message["role"] for message in (prompt, draft, redraft_prompt)] == ["user", "assistant", "user"]
    assert VALID_SUMMARY in json.dumps(draft)
    assert "src/secret_part.py" in json.dumps(redraft_prompt)
    assert validate_request(formats.parse_request(request)) is None


async def test_a_redraft_of_data_shows_it_again_after_the_draft() -> None:
    summary_input = make_summary_input(claude_body(12, has_breakpoint=False))
    _, (request,), _ = await run_summarizer(
        summary_input, claude_reply(VALID_SUMMARY), redraft=("src/secret_part.py",)
    )

    content = request["messages"][0]["content"]
    assert VALID_SUMMARY in content
    assert "src/secret_part.py" in content
    assert source_path(3) in content


async def test_a_redraft_is_attempted_once() -> None:
    result, requests, _ = await run_summarizer(
        make_summary_input(claude_body(12)), http_response(529), redraft=("x",)
    )

    assert isinstance(result, SummaryFailure)
    assert len(requests) == 1


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(
        SummarizerEndpoint(url="http://127.0.0.1", api_format=Format.CHAT, headers={"authorization": "secret"})
    )
