import json
from typing import Any

import msgspec
import pytest

from foveate.compaction.summarize.llm import SummaryResponse, parse_response
from foveate.model import Format

SUMMARY = "The user looks for the slow parser."


def claude_summary(text: str, stop_reason: str) -> SummaryResponse:
    return read_summary(Format.ANTHROPIC, content=[{"type": "text", "text": text}], stop_reason=stop_reason)


def chat_summary(finish_reason: str = "stop", **message: Any) -> SummaryResponse:
    return read_summary(
        Format.CHAT, choices=[{"message": {"role": "assistant", **message}, "finish_reason": finish_reason}]
    )


def read_summary(api_format: Format, **body: Any) -> SummaryResponse:
    return parse_response(
        api_format, {name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()}
    )


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded"])
def test_a_message_that_reached_its_output_limit_is_truncated(stop_reason: str) -> None:
    summary = claude_summary(SUMMARY, stop_reason)

    assert summary.is_truncated
    assert summary.problem == "the summary was cut off"


def test_a_chat_completion_that_reached_its_output_limit_is_truncated() -> None:
    assert chat_summary("length", content=SUMMARY).is_truncated
    assert not chat_summary(content=SUMMARY).is_truncated


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"content": SUMMARY, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    ],
)
def test_a_tool_call_is_detected_whatever_the_stop_reason(message: dict[str, Any]) -> None:
    """Regression: a deprecated function call was read as an empty summary, and retried four times."""
    assert chat_summary(**message).has_tool_calls


def test_a_null_tool_call_does_not_count() -> None:
    summary = chat_summary(content=SUMMARY, function_call=None, tool_calls=[])

    assert (summary.has_tool_calls, summary.problem, summary.text) == (False, None, SUMMARY)


def responses_summary(*items: Any, **fields: Any) -> SummaryResponse:
    return read_summary(Format.RESPONSES, output=list(items), **fields)


def message_item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": kind, **fields}]}


def test_reasoning_is_not_part_of_a_response_text() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "content": None}
    usage = {"input_tokens": 9, "output_tokens": 3}
    summary = responses_summary(
        reasoning, message_item("output_text", text=SUMMARY), status="completed", usage=usage
    )

    assert (summary.text, summary.problem, summary.has_tool_calls) == (SUMMARY, None, False)
    assert summary.usage is not None
    assert summary.usage.output_tokens == 3


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_incomplete_response_is_rejected(reason: str) -> None:
    fields = message_item("output_text", text=SUMMARY)
    summary = responses_summary(fields, status="incomplete", incomplete_details={"reason": reason})

    assert summary.problem is not None
    assert summary.is_truncated == (reason == "max_output_tokens")


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call", "local_shell_call", "web_search_call"])
def test_a_tool_call_in_a_response_is_detected(kind: str) -> None:
    assert responses_summary(
        message_item("output_text", text=SUMMARY), {"type": kind, "name": "f"}
    ).has_tool_calls


def test_a_refused_failed_or_empty_response_is_rejected() -> None:
    refusal = responses_summary(message_item("refusal", refusal="I cannot."), status="completed")
    failure = responses_summary(status="failed", error={"code": "server_error", "message": "no"})

    assert refusal.problem == "the response is a refusal, not a summary"
    assert failure.problem == "the response has the status failed"
    assert responses_summary(status="completed").problem == "the response has no output"


@pytest.mark.parametrize(
    "text",
    [
        f"<think>They want a summary.\n\nOf the parser.</think>\n\n{SUMMARY}",
        f"\n<thinking>Hm.</thinking>{SUMMARY}",
        f"They want a summary.\n</think>\n\n{SUMMARY}",
    ],
)
def test_thinking_of_a_local_model_is_stripped_from_its_summary(text: str) -> None:
    assert chat_summary(content=text).text == SUMMARY


@pytest.mark.parametrize("text", ["<think>They want a summary.</think>", "<think>They want a summ"])
def test_a_response_of_nothing_but_thinking_is_empty(text: str) -> None:
    assert chat_summary(content=text).text == ""


def test_a_summary_that_mentions_thinking_tags_stays_complete() -> None:
    fields = "The parser strips `<think>` up to `</think>`.\nIt keeps <think>a</think> in quotes."

    assert chat_summary(content=fields).text == fields
