import re
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foveate import formats
from foveate.budget import graphemes
from foveate.compaction.tool_results import build_truncation_edits, clear_stale_results, result_limit_tokens
from foveate.errors import BadOption
from foveate.formats.json_text.parse import parse_json, to_json
from foveate.model import (
    Area,
    Edit,
    Format,
    Image,
    MediaSource,
    Message,
    Place,
    ReplaceText,
    Request,
    ToolResult,
)
from foveate.prompt_cache.rules import rules_for
from foveate.sandbox import validate_request
from foveate.tokens import counter_for, drop_caches
from tests.support.strategies.tool_conversations import Body, chat_requests, claude_tool_loops

COUNTER = counter_for("gpt-4.1")
LIMIT = 100
PNG_BASE64 = b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x01\x08\x02\0\0\0").decode()
TRUNCATION_MARKER = re.compile(r"\[\.\.\. ([\d,]+) tokens left out \.\.\.\]")


def claude_request(*results: Body, question: str = "Then?", model: str = "claude-sonnet-4-5") -> Request:
    """Build a turn with some results, and another question unless it is empty."""
    calls = [{"type": "tool_use", "id": r["tool_use_id"], "name": "read_file", "input": {}} for r in results]
    messages: list[Body] = [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": list(results)},
    ]
    if question:
        messages += [{"role": "assistant", "content": "So."}, {"role": "user", "content": question}]
    return formats.parse_request({"model": model, "max_tokens": 10, "system": "S", "messages": messages})


def build_result(call_id: str, content: Any, **fields: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def apply_edits(request: Request, edits: Sequence[Edit]) -> Request:
    return formats.parse_request(formats.apply_edits(request, edits), request.format)


def result_texts(request: Request) -> list[str]:
    parts = [part for raw in request.messages for part in formats.parse_message(request.format, raw).parts]
    results = [part for part in parts if isinstance(part, ToolResult)]
    return ["".join(getattr(content_part, "text", "?") for content_part in part.parts) for part in results]


def clear_results(
    request: Request, *, tokens_each: int = 1000, need_tokens: int = 10**9
) -> tuple[ReplaceText, ...]:
    messages = [formats.parse_message(request.format, raw) for raw in request.messages]
    return clear_stale_results(request, messages, [tokens_each] * len(messages), need_tokens=need_tokens)


def truncate_all(request: Request, limit_tokens: int = LIMIT) -> tuple[ReplaceText, ...]:
    return build_truncation_edits(request, COUNTER, dict.fromkeys(range(len(request.messages)), limit_tokens))


LINES = "\n".join(f"line {number} of the file" for number in range(500))


def test_a_truncated_result_keeps_start_and_end_and_says_how_much_is_missing() -> None:
    request = claude_request(build_result("a", LINES), build_result("b", "short"))
    edits = truncate_all(request)
    (edit,) = edits
    assert edit.place == Place(Area.MESSAGES, 2, 0)
    truncated, other = result_texts(apply_edits(request, edits))
    assert other == "short"
    assert truncated.startswith("line 0 of the file\n")
    assert truncated.endswith("\nline 499 of the file")
    match = TRUNCATION_MARKER.search(truncated)
    assert match is not None
    before, after = COUNTER.text(LINES).tokens, COUNTER.text(truncated).tokens
    assert after <= LIMIT
    assert edit.saved_tokens == before - after
    assert abs(int(match[1].replace(",", "")) - (before - after)) < 30


def test_a_result_within_the_limit_is_unchanged() -> None:
    request = claude_request(build_result("a", LINES))
    assert truncate_all(request, COUNTER.text(LINES).tokens) == ()


def test_a_result_is_truncated_in_the_same_way_each_time_even_after_a_restart() -> None:
    first = truncate_all(claude_request(build_result("a", LINES)))
    drop_caches()
    longer = claude_request(build_result("a", LINES), question="Another question, later.")
    assert build_truncation_edits(longer, counter_for("gpt-4.1"), {2: LIMIT}) == first


def test_a_message_without_a_limit_is_unchanged() -> None:
    assert build_truncation_edits(claude_request(build_result("a", LINES)), COUNTER, {1: LIMIT, 3: LIMIT}) == ()


def test_a_truncated_error_stays_an_error() -> None:
    request = claude_request(build_result("a", LINES, is_error=True))
    truncated = apply_edits(request, truncate_all(request))
    assert parse_json(truncated.messages[2])["content"][0]["is_error"] is True


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_BASE64}}


def test_an_image_next_to_truncated_text_is_replaced_by_its_name_and_tokens() -> None:
    """Regression: an image between two texts disappeared without a trace."""
    texts = [{"type": "text", "text": LINES}, IMAGE, {"type": "text", "text": LINES}]
    request = claude_request(build_result("a", texts))
    (edit,) = edits = truncate_all(request)
    (truncated,) = result_texts(apply_edits(request, edits))
    image = Image(source=MediaSource.INLINE, width=2, height=1)
    tokens_with_image, tokens_without_image = (
        COUNTER.count_message(Message(role="user", parts=parts)).tokens for parts in ((image,), ())
    )
    image_tokens = tokens_with_image - tokens_without_image

    assert truncated.startswith("line 0 of the file\n")
    assert truncated.endswith(f"line 499 of the file\n[image: 2x1 pixels: {image_tokens:,} tokens left out]")
    assert COUNTER.text(truncated).tokens <= LIMIT
    original_tokens = COUNTER.text(f"{LINES}\n{LINES}").tokens + image_tokens
    assert edit.saved_tokens == original_tokens - COUNTER.text(truncated).tokens


def test_several_images_next_to_truncated_text_become_one_line() -> None:
    request = claude_request(build_result("a", [{"type": "text", "text": LINES}, *[IMAGE] * 40]))
    for limit in range(60, 100):
        (edit,) = truncate_all(request, limit)

        assert re.search(r"\n\[40 images and files: [\d,]+ tokens left out\]$", edit.text)
        assert COUNTER.text(edit.text).tokens <= limit


def test_the_name_of_an_omitted_file_counts_against_the_limit() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    file = {"type": "document", "title": "q1 w2 e3 r4 t5 z6 u7 i8 " * 3, "source": source}
    request = claude_request(build_result("a", [{"type": "text", "text": LINES}, file]))
    (edit,) = truncate_all(request)

    assert "q1 w2 e3" in edit.text
    assert COUNTER.text(edit.text).tokens <= LIMIT


def test_images_next_to_text_that_fits_are_unchanged() -> None:
    assert (
        truncate_all(claude_request(build_result("a", [{"type": "text", "text": "Seen:"}, *[IMAGE] * 40])))
        == ()
    )


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": LINES}},
        {
            "type": "search_result",
            "source": "https://a/b",
            "title": "T",
            "content": [{"type": "text", "text": LINES}],
        },
    ],
    ids=lambda block: str(block["type"]),
)
def test_text_of_documents_and_search_results_is_truncated_too(block: Body) -> None:
    """Regression: 4,000 tokens of documents were sent at a limit of 100."""
    request = claude_request(build_result("a", [block]))
    (truncated,) = result_texts(apply_edits(request, truncate_all(request)))

    assert TRUNCATION_MARKER.search(truncated)
    assert truncated.endswith("line 499 of the file")
    assert COUNTER.text(truncated).tokens <= LIMIT


def test_only_the_marker_is_left_if_nothing_fits() -> None:
    (edit,) = truncate_all(claude_request(build_result("a", LINES)), 5)
    assert TRUNCATION_MARKER.fullmatch(edit.text)


BODIES: dict[Format, Body] = {
    Format.CHAT: {"messages": [{"role": "tool", "tool_call_id": "a", "content": LINES}]},
    Format.RESPONSES: {"input": [{"type": "function_call_output", "call_id": "a", "output": LINES}]},
    Format.GEMINI: {
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "x", "thoughtSignature": "s"},
                    {"functionResponse": {"name": "f", "response": {"a": LINES}}},
                ],
            }
        ]
    },
    Format.BEDROCK: {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"cachePoint": {"type": "default"}},
                    {"toolResult": {"toolUseId": "a", "content": [{"text": LINES}]}},
                ],
            }
        ]
    },
}


@pytest.mark.parametrize("api_format", BODIES)
def test_results_are_truncated_in_every_format(api_format: Format) -> None:
    request = formats.parse_request(BODIES[api_format], api_format)
    (truncated,) = result_texts(apply_edits(request, truncate_all(request)))
    assert TRUNCATION_MARKER.search(truncated)
    assert COUNTER.text(truncated).tokens <= LIMIT + 5  # Gemini wraps it in an object


def test_a_result_of_an_unknown_shape_is_unchanged() -> None:
    parts: list[Body] = [
        {"functionResponse": {}},
        {"functionResponse": {"name": "f", "response": {"a": LINES}}},
    ]
    request = formats.parse_request({"contents": [{"role": "user", "parts": parts}]}, Format.GEMINI)
    assert truncate_all(request) == ()


def test_the_result_limit_is_a_share_of_the_window() -> None:
    assert result_limit_tokens(200_000) == 60_000
    assert result_limit_tokens(1000, 0.5) == 500
    with pytest.raises(BadOption, match="tool_result_max_pct"):
        result_limit_tokens(1000, 30)


_PIECES = st.sampled_from(
    ("word ", "line\n", "👩‍👩‍👧", "e\u0301", "\U0001f1e9\U0001f1ea", "漢字", "x" * 50, "\r\n", " ")
)


@pytest.mark.slow
@given(st.lists(_PIECES, min_size=100, max_size=400).map("".join), st.integers(30, 200))
def test_a_truncated_result_fits_and_splits_no_character(text: str, limit: int) -> None:
    request = claude_request(build_result("a", text))
    edits = truncate_all(request, limit)
    assert edits == truncate_all(request, limit)
    assume(edits)
    (edit,) = edits
    assert COUNTER.text(edit.text).upper <= limit
    head, marker, tail = re.split(r"(\[\.\.\. [\d,]+ tokens left out \.\.\.\])", edit.text, maxsplit=1)
    assert marker
    head, tail = head.removesuffix("\n"), tail.removeprefix("\n")
    assert text.startswith(head)
    assert text.rstrip().endswith(tail)
    assert graphemes.boundary_at_or_before(text, len(head)) == len(head)
    tail_start = len(text.rstrip()) - len(tail)
    assert graphemes.boundary_at_or_before(text, tail_start) == tail_start


def test_cleared_results_name_their_tool_and_size() -> None:
    request = claude_request(build_result("a", LINES), build_result("b", LINES * 3))
    cleared = apply_edits(request, clear_results(request, tokens_each=12_300))
    assert result_texts(cleared) == [
        "[cleared: 3,075 tokens of read_file output]",
        "[cleared: 9,225 tokens of read_file output]",
    ]
    assert validate_request(cleared) is None


def test_the_oldest_results_are_cleared_first_and_no_more_than_needed() -> None:
    request = claude_request(build_result("a", LINES), build_result("b", LINES), build_result("c", LINES))
    edits = clear_results(request, tokens_each=3000, need_tokens=1100)
    assert [edit.place.block for edit in edits] == [0, 1]
    assert clear_results(request, tokens_each=3000, need_tokens=0) == ()


def test_recent_results_errors_and_short_results_are_not_cleared() -> None:
    assert clear_results(claude_request(build_result("a", LINES), question="")) == ()
    assert clear_results(claude_request(build_result("a", LINES, is_error=True))) == ()
    assert clear_results(claude_request(build_result("a", LINES)), tokens_each=50) == ()


def test_a_cleared_result_is_not_cleared_again() -> None:
    request = claude_request(build_result("a", LINES))
    cleared = apply_edits(request, clear_results(request))
    assert clear_results(cleared) == ()


@given(st.one_of(claude_tool_loops(), chat_requests()), st.integers(0, 5000))
def test_providers_accept_requests_with_cleared_results(body: Body, need_tokens: int) -> None:
    assume(not rules_for(body["model"]).binds_thinking)  # overflow drops their thinking
    request = formats.parse_request(to_json(body))
    assert validate_request(apply_edits(request, clear_results(request, need_tokens=need_tokens))) is None
