
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

GOOD = "The user looks for the slow parser in src/parsers. Next was to say which it was."
LIMIT = 400


def span_of(body: Body, api_format: Format | None = None) -> SummaryInput:
    cut = plan_compaction(make_subject(body, api_format=api_format), counter_for(body["model"]), OPTIONS)
    assert cut is not None
    return cut.summary_input


def said(text: str, stop: str = "end_turn", **more: Any) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 5}
    return ok_response(
        {"content": [{"type": "text", "text": text}], "stop_reason": stop, "usage": usage, **more}
    )


CALLED = said("", "tool_use", content=[{"type": "tool_use", "id": "t", "name": "read_file", "input": {}}])


def one_by_one(*replies: bytes) -> Callable[[str, bytes], bytes]:
    waiting = list(replies)
    return lambda _path, _body: waiting.pop(0)


class Pauses:
    """Records delays without waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def asked(
    summary_input: SummaryInput,
    *replies: bytes,
    api_format: Format = Format.ANTHROPIC,
    model: str = "",
    window_tokens: int | None = None,
    redraft: Sequence[str] = (),
    usage_log: UsageLog | None = None,
) -> tuple[Summary | SummaryFailure, list[Body], list[float]]:
    """Run a summarizer, and return its result, the requests and the delays."""
    pauses = Pauses()
    usage_log = usage_log or UsageLog()
    async with raw_server(one_by_one(*replies)) as server, JsonClient(timeout_seconds=5) as client:
        where = SummarizerEndpoint(
            url=f"{server.url}/v1/messages", api_format=api_format, headers={"x-api-key": "k"}
        )
        summarizer = LlmSummarizer(client, where, model=model, window_tokens=window_tokens, sleep=pauses)
        if redraft:
            made = await summarizer.redraft(summary_input, GOOD, redraft, usage_log, limit_tokens=LIMIT)
        else:
            made = await summarizer.summarize(summary_input, usage_log, limit_tokens=LIMIT)
        return made, bodies(server), pauses.seconds


def bodies(server: FakeServer) -> list[Body]:
    return [body for _, body in server.sent]


async def test_the_own_model_is_sent_the_request_as_it_went_out_and_one_instruction() -> None:
    body = claude_body(12) | {"stream": True, "stop_sequences": ["x"], "temperature": 0.5}
    made, (sent,), _ = await asked(span_of(body), said(GOOD))

    assert isinstance(made, Summary)
    assert (made.text, made.model) == (GOOD, MODEL)
    assert sent["messages"][:-1] == body["messages"]
    assert {name: sent[name] for name in ("model", "system", "tools", "temperature")} == {
        name: body[name] for name in ("model", "system", "tools", "temperature")
    }
    assert not sent.keys() & {"stream", "stop_sequences"}
    assert sent["max_tokens"] == 2 * LIMIT
    assert validate_request(formats.parse_request(sent)) is None


@pytest.mark.parametrize("api_format", [Format.CHAT, Format.RESPONSES, Format.ANTHROPIC])
async def test_a_span_shown_as_data_names_the_model_as_its_endpoint_does(api_format: Format) -> None:
    summary_input = replace(
        summary_input := span_of(claude_body(12)), request=replace(summary_input.request, tool_choice="any")
    )
    async with (
        raw_server(lambda _path, _body: http_response(401)) as server,
        JsonClient(timeout_seconds=5) as client,
    ):
        where = SummarizerEndpoint(url=server.url, api_format=api_format, headers={}, model="house")
        for configured in ("", "other"):
            await LlmSummarizer(client, where, model=configured).summarize(summary_input, limit_tokens=LIMIT)

    assert [body["model"] for body in bodies(server)] == ["house", "other"]


async def test_a_failed_summary_does_not_tell_the_query_of_its_address() -> None:
    """Regression: a key in the query of an Azure URL was stored in the reason."""
    async with raw_server(one_by_one(http_response(404))) as server, JsonClient(timeout_seconds=5) as client:
        url = f"{server.url}/openai/v1/responses?api-version=1&subscription-key=SECRET"
        where = SummarizerEndpoint(url=url, api_format=Format.ANTHROPIC, headers={})
        summarizer = LlmSummarizer(client, where, sleep=Pauses())
        made = await summarizer.summarize(span_of(claude_body(12)), limit_tokens=LIMIT)

    assert isinstance(made, SummaryFailure)
    assert made.reason.startswith(f"{server.url}/openai/v1/responses: answered 404")
    assert "SECRET" not in made.reason


async def test_thinking_stays_as_it_is_and_has_room() -> None:
    body = claude_body(12, model="claude-sonnet-4-5") | {
        "thinking": {"type": "enabled", "budget_tokens": 1_500},
        "max_tokens": 2_000,
    }
    _, (sent,), _ = await asked(span_of(body), said(GOOD))

    assert sent["thinking"] == body["thinking"]
    assert sent["max_tokens"] == 1_500 + 2 * LIMIT


async def test_a_streamed_chat_is_asked_for_a_whole_answer() -> None:
    body = chat_body(24)
    choice = {"message": {"role": "assistant", "content": GOOD}, "finish_reason": "stop"}
    made, (sent,), _ = await asked(
        span_of(body, Format.CHAT), ok_response({"choices": [choice]}), api_format=Format.CHAT
    )

    assert isinstance(made, Summary)
    assert sent["messages"][:-1] == body["messages"]
    assert not sent.keys() & {"stream", "stream_options", "max_tokens"}
    assert validate_request(formats.parse_request(sent, Format.CHAT)) is None


def response_said(text: str, **more: Any) -> bytes:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output = [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": content},
    ]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return ok_response({"object": "response", "status": "completed", "output": output, "usage": usage, **more})


async def test_a_responses_session_is_summarised_by_responses_with_all_that_is_cached() -> None:
    """Regression: it was asked for as a chat completion, which is not cached and which some models reject."""
    body = responses_body(24)
    summary_input = span_of(body, Format.RESPONSES)
    made, (sent,), _ = await asked(summary_input, response_said(GOOD), api_format=Format.RESPONSES)

    assert made == Summary(text=GOOD, model="gpt-5.2")
    assert sent["input"][:-1] == body["input"]
    assert sent["input"][-1]["role"] == "user"
    dropped = {"stream", "max_output_tokens"}
    assert {name: sent[name] for name in body.keys() - dropped - {"input"}} == {
        name: body[name] for name in body.keys() - dropped - {"input"}
    }
    assert "stream" not in sent
    assert sent["max_output_tokens"] > 2 * LIMIT  # the model thinks before it writes
    assert validate_request(formats.parse_request(sent, Format.RESPONSES)) is None


async def test_a_draft_of_responses_is_asked_for_once_more_in_the_same_conversation() -> None:
    summary_input = span_of(responses_body(24), Format.RESPONSES)
    _, (sent,), _ = await asked(
        summary_input, response_said(GOOD), api_format=Format.RESPONSES, redraft=["part_3.py"]
    )

    assert [item["role"] for item in sent["input"][-3:]] == ["user", "assistant", "user"]
    assert sent["input"][-2]["content"] == GOOD
    assert validate_request(formats.parse_request(sent, Format.RESPONSES)) is None


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        ({}, "gpt-5-mini"),
        ({"tool_choice": "required"}, ""),
        ({"text": {"format": {"type": "json_object"}}}, ""),
    ],
    ids=["another model", "a forced tool", "a form"],
)
async def test_what_cannot_be_asked_in_place_is_shown_as_data_to_responses(changes: Body, model: str) -> None:
    summary_input = span_of(responses_body(24) | changes, Format.RESPONSES)
    made, sent, _ = await asked(
        summary_input, *[response_said(GOOD)] * 9, api_format=Format.RESPONSES, model=model
    )

    assert isinstance(made, Summary)
    assert all(not body.keys() & {"tools", "tool_choice", "text", "reasoning"} for body in sent)
    assert all(body["store"] is False for body in sent)
    assert all(validate_request(formats.parse_request(body, Format.RESPONSES)) is None for body in sent)
    shown = "".join(body["input"] for body in sent)
    assert all(source_path(step) in shown for step in range(6))


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
    ids=["a string", "blocks", "two messages", "a directive behind it"],
)
@pytest.mark.parametrize("redraft", [[], ["part_3.py"]], ids=["a first draft", "a redraft"])
async def test_the_instruction_becomes_part_of_the_system_message_that_a_conversation_ends_with(
    last: list[Body], block: int, redraft: list[str]
) -> None:
    """Regression: a user message after it was rejected, so such sessions were never summarized."""
    body = claude_body(12, model="claude-opus-4-8")
    body["messages"] += last
    _, (sent,), _ = await asked(span_of(body), said(GOOD), redraft=redraft)

    count, messages = len(body["messages"]), sent["messages"]
    changed = count - len(last) + block
    assert messages[:changed] == body["messages"][:changed]
    assert messages[changed]["role"] == "system"
    assert "Write that summary now." in messages[changed]["content"][-1]["text"]
    assert [message["role"] for message in messages[count:]] == (["assistant", "user"] if redraft else [])
    assert validate_request(formats.parse_request(sent, Format.ANTHROPIC)) is None


async def test_a_directive_at_the_end_takes_no_instruction() -> None:
    body = claude_body(12, model="claude-opus-4-8")
    body["messages"].append(DIRECTIVE)
    _, (sent,), _ = await asked(span_of(body), said(GOOD))

    assert sent["messages"][:-1] == body["messages"]
    assert sent["messages"][-1]["role"] == "user"


@pytest.mark.parametrize(
    ("changes", "model", "window_tokens"),
    [
        ({}, "claude-haiku-5-5", None),
        ({"tool_choice": {"type": "any"}}, "", None),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, "", None),
        ({}, "", 3_500),
    ],
    ids=["another model", "a forced tool", "a schema", "no room"],
)
async def test_what_cannot_be_asked_in_place_is_shown_as_data(
    changes: Body, model: str, window_tokens: int | None
) -> None:
    summary_input = span_of(claude_body(12) | changes)
    _, sent, _ = await asked(summary_input, *[said(GOOD)] * 9, model=model, window_tokens=window_tokens)

    assert all(not body.keys() & {"tools", "tool_choice", "output_config"} for body in sent)
    assert all(len(body["messages"]) == 1 for body in sent)
    assert all(validate_request(formats.parse_request(body, Format.ANTHROPIC)) is None for body in sent)
    shown = "".join(body["messages"][0]["content"] for body in sent)
    assert all(source_path(step) in shown for step in range(6))


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}},
        {"function_call": {"name": "read"}, "functions": [{"name": "read"}]},
        {"guided_choice": ["yes", "no"]},
        {"grammar": 'root ::= "yes"'},
    ],
    ids=lambda form: next(iter(form)),
)
async def test_a_chat_whose_answers_are_held_to_a_form_is_shown_as_data(form: Body) -> None:
    """Regression: the format was sent along, and the JSON response replaced the history."""
    choice = {"message": {"role": "assistant", "content": GOOD}, "finish_reason": "stop"}
    summary_input = span_of(chat_body(24) | form, Format.CHAT)
    _, (sent,), _ = await asked(summary_input, ok_response({"choices": [choice]}), api_format=Format.CHAT)

    assert not sent.keys() & {*form, "tools"}


async def test_what_spoils_an_answer_but_no_cache_is_left_out() -> None:
    spoiling = {"logit_bias": {"1": 100}, "modalities": ["text", "audio"], "audio": {"voice": "alloy"}}
    harmless = {"response_format": {"type": "text"}, "function_call": "auto"}
    choice = {"message": {"role": "assistant", "content": GOOD}, "finish_reason": "stop"}
    summary_input = span_of(chat_body(24) | spoiling | harmless, Format.CHAT)
    _, (sent,), _ = await asked(summary_input, ok_response({"choices": [choice]}), api_format=Format.CHAT)

    assert not sent.keys() & spoiling.keys()
    assert harmless.keys() <= sent.keys()


async def test_what_nobody_has_kept_is_shown_as_data() -> None:
    """Without a breakpoint nothing is cached, and tail and tools would cost the full price."""
    _, (sent,), _ = await asked(span_of(claude_body(12, has_breakpoint=False)), said(GOOD))

    assert "tools" not in sent


async def test_a_span_larger_than_the_window_is_told_in_pieces_each_with_what_came_before() -> None:
    summary_input = span_of(claude_body(40))
    summaries = [f"Summary number {number} of how slow the parser was so far." for number in range(60)]
    usage_log = UsageLog()
    made, sent, _ = await asked(summary_input, *map(said, summaries), window_tokens=3_500, usage_log=usage_log)

    assert len(sent) > 2
    assert isinstance(made, Summary)
    assert made.text == summaries[len(sent) - 1]
    assert len(usage_log.usages) == len(sent)
    for before, body in zip(summaries, sent[1:], strict=False):
        assert before in body["messages"][0]["content"]
    shown = [body["messages"][0]["content"] for body in sent]
    assert all(any(source_path(step) in text for text in shown) for step in range(30))
    assert all(
        counter_for(MODEL).count_request(formats.parse_request(body)).total.upper < 3_500 for body in sent
    )


async def test_an_error_in_the_midst_of_pieces_is_not_told_on() -> None:
    summary_input = span_of(claude_body(40))
    page = said("<html><body>502</body></html>")
    made, sent, _ = await asked(summary_input, said(GOOD), *[page] * 4, window_tokens=3_500)

    assert isinstance(made, SummaryFailure)
    assert len(sent) == 5
    assert all("<html>" not in body["messages"][0]["content"] for body in sent)


async def test_a_window_that_is_too_small_for_anything_is_said() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), window_tokens=600)

    assert isinstance(made, SummaryFailure)
    assert "too small" in made.reason
    assert sent == []


async def test_an_earlier_summary_is_shown_before_what_is_new() -> None:
    summary_input = replace(
        span_of(claude_body(12, has_breakpoint=False)), earlier_summary="What was folded before."
    )
    _, (sent,), _ = await asked(summary_input, said(GOOD))

    assert "What was folded before." in sent["messages"][0]["content"]


async def test_three_retries_are_made_each_later_than_the_last() -> None:
    made, sent, seconds = await asked(span_of(claude_body(12)), *[http_response(529)] * 4)

    assert isinstance(made, SummaryFailure)
    assert len(sent) == 4
    assert seconds == [1.0, 4.0, 16.0]
    assert "529" in made.reason


@pytest.mark.parametrize(
    "reply",
    [
        said(""),
        said("I can't help with that."),
        said(GOOD, "max_tokens"),
        said(GOOD, "refusal"),
        said("word " * 40_000),
        http_response(200, b"<html><body>Bad gateway</body></html>", "text/html"),
        ok_response({"error": {"message": "x"}}),
        ok_response({"content": "text"}),
        ok_response({"content": [{"type": "text", "text": 3}]}),
        http_response(503),
        http_response(429),
        http_response(200, b'{"content": [{"type": "te'),
    ],
)
async def test_what_is_no_summary_is_asked_for_again(reply: bytes) -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), reply, said(GOOD))

    assert isinstance(made, Summary)
    assert made.text == GOOD
    assert len(sent) == 2


async def test_a_model_that_calls_a_tool_instead_is_shown_the_history_as_data() -> None:
    usage_log = UsageLog()
    made, sent, _ = await asked(span_of(claude_body(12)), CALLED, said(GOOD), usage_log=usage_log)

    assert isinstance(made, Summary)
    assert ["tools" in body for body in sent] == [True, False]
    assert len(usage_log.usages) == 2


async def test_a_model_that_works_on_instead_is_shown_the_history_as_data() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), said("Sure! Let me go on with that now."), said(GOOD))

    assert isinstance(made, Summary)
    assert ["tools" in body for body in sent] == [True, False]


async def test_who_tells_nothing_of_it_twice_is_not_asked_a_third_time() -> None:
    hollow = said("All of it went well, and I am happy to help with more.")
    made, sent, _ = await asked(span_of(claude_body(12)), *[hollow] * 9)

    assert isinstance(made, SummaryFailure)
    assert "tells nothing" in made.reason
    assert ["tools" in body for body in sent] == [True, False, False]


async def test_a_summary_that_is_cut_off_is_asked_for_once_more_with_more_room() -> None:
    """Regression: asked for four times with the same body, and truncated four times."""
    made, sent, seconds = await asked(span_of(claude_body(12)), said("The parser", "max_tokens"), said(GOOD))
    _, again, _ = await asked(span_of(claude_body(12)), *[said("The parser", "max_tokens")] * 9)

    assert isinstance(made, Summary)
    assert [body["max_tokens"] for body in sent] == [2 * LIMIT, 4 * LIMIT]
    assert seconds == []
    assert [body["max_tokens"] for body in again] == [2 * LIMIT, 4 * LIMIT]


async def test_each_call_is_on_the_bill_one_without_an_answer_as_unknown_one_that_was_refused_not() -> None:
    usage_log = UsageLog()
    broken = http_response(200, b'{"content": [{"type": "te')
    await asked(span_of(claude_body(12)), broken, http_response(529), said(""), said(GOOD), usage_log=usage_log)

    unknown, empty, good = usage_log.usages
    assert unknown is None
    assert empty == good
    assert good is not None
    assert good.output_tokens == 5


def test_a_client_for_counting_tokens_is_none_for_summaries() -> None:
    """Regression: its timeout of 2 seconds was accepted, and no summary was ever finished."""
    where = SummarizerEndpoint(url="http://127.0.0.1", api_format=Format.CHAT, headers={})

    with pytest.raises(BadOption, match="2 s"):
        LlmSummarizer(JsonClient(), where)


async def test_a_request_that_is_refused_is_not_sent_again_but_otherwise() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), http_response(400), said(GOOD))

    assert isinstance(made, Summary)
    assert ["tools" in body for body in sent] == [True, False]


async def test_a_key_that_is_refused_is_not_tried_again() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), http_response(401))

    assert isinstance(made, SummaryFailure)
    assert len(sent) == 1


async def test_a_redraft_goes_on_from_the_draft_and_names_what_is_missing() -> None:
    _, (sent,), _ = await asked(span_of(claude_body(12)), said(GOOD), redraft=("src/secret_part.py",))

    *_, told, draft, again = sent["messages"]
    assert [message["role"] for message in (told, draft, again)] == ["user", "assistant", "user"]
    assert GOOD in json.dumps(draft)
    assert "src/secret_part.py" in json.dumps(again)
    assert validate_request(formats.parse_request(sent)) is None


async def test_a_redraft_of_what_was_shown_shows_it_again_after_the_draft() -> None:
    summary_input = span_of(claude_body(12, has_breakpoint=False))
    _, (sent,), _ = await asked(summary_input, said(GOOD), redraft=("src/secret_part.py",))

    shown = sent["messages"][0]["content"]
    assert GOOD in shown
    assert "src/secret_part.py" in shown
    assert source_path(3) in shown


async def test_a_redraft_is_tried_once() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), http_response(529), redraft=("x",))

    assert isinstance(made, SummaryFailure)
    assert len(sent) == 1


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(
        SummarizerEndpoint(url="http://127.0.0.1", api_format=Format.CHAT, headers={"authorization": "secret"})
    )
