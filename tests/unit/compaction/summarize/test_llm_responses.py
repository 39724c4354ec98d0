import json
from typing import Any

import msgspec
import pytest

from foveate.compaction.summarize.llm import SummaryResponse, parse_response
from foveate.model import Format

SAID = "The user looks for the slow parser."


def claude(text: str, stop: str) -> SummaryResponse:
    return read(Format.ANTHROPIC, content=[{"type": "text", "text": text}], stop_reason=stop)


def chat(finish: str = "stop", **message: Any) -> SummaryResponse:
    return read(Format.CHAT, choices=[{"message": {"role": "assistant", **message}, "finish_reason": finish}])


def read(api_format: Format, **reply: Any) -> SummaryResponse:
    return parse_response(
        api_format, {name: msgspec.Raw(json.dumps(value).encode()) for name, value in reply.items()}
    )


@pytest.mark.parametrize("stop", ["max_tokens", "model_context_window_exceeded"])
def test_a_message_that_reached_its_output_limit_is_truncated(stop: str) -> None:
    answer = claude(SAID, stop)

    assert answer.is_truncated
    assert answer.problem == "the summary was cut off"


def test_a_chat_completion_that_reached_its_output_limit_is_truncated() -> None:
    assert chat("length", content=SAID).is_truncated
    assert not chat(content=SAID).is_truncated


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"content": SAID, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    ],
)
def test_a_tool_call_is_detected_whatever_the_stop_reason(message: dict[str, Any]) -> None:
    """Regression: a deprecated function call was read as an empty summary, and retried four times."""
    assert chat(**message).has_tool_calls


def test_a_null_tool_call_does_not_count() -> None:
    answer = chat(content=SAID, function_call=None, tool_calls=[])

    assert (answer.has_tool_calls, answer.problem, answer.text) == (False, None, SAID)


def response(*items: Any, **more: Any) -> SummaryResponse:
    return read(Format.RESPONSES, output=list(items), **more)


def message_item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": kind, **fields}]}


def test_reasoning_is_not_part_of_a_response_text() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "content": None}
    usage = {"input_tokens": 9, "output_tokens": 3}
    answer = response(reasoning, message_item("output_text", text=SAID), status="completed", usage=usage)

    assert (answer.text, answer.problem, answer.has_tool_calls) == (SAID, None, False)
    assert answer.usage is not None
    assert answer.usage.output_tokens == 3


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_incomplete_response_is_rejected(reason: str) -> None:
    fields = message_item("output_text", text=SAID)
    answer = response(fields, status="incomplete", incomplete_details={"reason": reason})

    assert answer.problem is not None
    assert answer.is_truncated == (reason == "max_output_tokens")


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call", "local_shell_call", "web_search_call"])
def test_a_tool_call_in_a_response_is_detected(kind: str) -> None:
    assert response(message_item("output_text", text=SAID), {"type": kind, "name": "f"}).has_tool_calls


def test_a_refused_failed_or_empty_response_is_rejected() -> None:
    refused = response(message_item("refusal", refusal="I cannot."), status="completed")
    failed = response(status="failed", error={"code": "server_error", "message": "no"})

    assert refused.problem == "the answer is a refusal, not a summary"
    assert failed.problem == "the response is failed"
    assert response(status="completed").problem == "the response has no output"


@pytest.mark.parametrize(
    "text",
    [
        f"<think>They want a summary.\n\nOf the parser.</think>\n\n{SAID}",
        f"\n<thinking>Hm.</thinking>{SAID}",
        f"They want a summary.\n</think>\n\n{SAID}",
    ],
)
def test_thinking_of_a_local_model_is_stripped_from_its_summary(text: str) -> None:
    assert chat(content=text).text == SAID


@pytest.mark.parametrize("text", ["<think>They want a summary.</think>", "<think>They want a summ"])
def test_a_response_of_nothing_but_thinking_is_empty(text: str) -> None:
    assert chat(content=text).text == ""


def test_a_summary_that_mentions_thinking_tags_stays_complete() -> None:
    fields = "The parser strips `<think>` up to `</think>`.\nIt keeps <think>a</think> in quotes."

    assert chat(content=fields).text == fields
