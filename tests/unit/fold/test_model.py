"""Summaries by a model over HTTP: what it is asked, and when it is asked again or otherwise."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from foveate import wire
from foveate.errors import BadOption
from foveate.fold.cuts import cut_of
from foveate.fold.model import Endpoint, ModelSummariser
from foveate.fold.summariser import Bills, NoSummary, Span, Summary
from foveate.sandbox import accept
from foveate.tokens import counter_for
from foveate.upstream import Client
from foveate.values import Format
from tests.fakes import Fake, ok, raw_server, response
from tests.sessions_to_fold import (
    MODEL,
    OPTIONS,
    Body,
    chat_body,
    claude_body,
    path,
    responses_body,
    subject_of,
)

GOOD = "The user looks for the slow parser in src/parsers. Next was to say which it was."
LIMIT = 400


def span_of(body: Body, spoken: Format | None = None) -> Span:
    cut = cut_of(subject_of(body, spoken=spoken), counter_for(body["model"]), OPTIONS)
    assert cut is not None
    return cut.span


def said(text: str, stop: str = "end_turn", **more: Any) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 5}
    return ok({"content": [{"type": "text", "text": text}], "stop_reason": stop, "usage": usage, **more})


CALLED = said("", "tool_use", content=[{"type": "tool_use", "id": "t", "name": "read_file", "input": {}}])


def one_by_one(*replies: bytes) -> Callable[[str, bytes], bytes]:
    waiting = list(replies)
    return lambda _path, _body: waiting.pop(0)


class Pauses:
    """How long was waited, without waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def asked(
    span: Span,
    *replies: bytes,
    spoken: Format = Format.ANTHROPIC,
    model: str = "",
    window_tokens: int | None = None,
    redraft: Sequence[str] = (),
    bills: Bills | None = None,
) -> tuple[Summary | NoSummary, list[Body], list[float]]:
    """What came of it, what was asked, and how long was waited in between."""
    pauses = Pauses()
    bills = bills or Bills()
    async with raw_server(one_by_one(*replies)) as server, Client(timeout_seconds=5) as client:
        where = Endpoint(url=f"{server.url}/v1/messages", spoken=spoken, headers={"x-api-key": "k"})
        summariser = ModelSummariser(client, where, model=model, window_tokens=window_tokens, sleep=pauses)
        if redraft:
            made = await summariser.redraft(span, GOOD, redraft, bills, limit_tokens=LIMIT)
        else:
            made = await summariser.summarise(span, bills, limit_tokens=LIMIT)
        return made, bodies(server), pauses.seconds


def bodies(server: Fake) -> list[Body]:
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
    assert accept(wire.read(sent)) is None


@pytest.mark.parametrize("spoken", [Format.CHAT, Format.RESPONSES, Format.ANTHROPIC])
async def test_a_span_shown_as_data_names_the_model_as_its_endpoint_does(spoken: Format) -> None:
    span = replace(span := span_of(claude_body(12)), sent=replace(span.sent, tool_choice="any"))
    async with raw_server(lambda _path, _body: response(401)) as server, Client(timeout_seconds=5) as client:
        where = Endpoint(url=server.url, spoken=spoken, headers={}, model="house")
        for configured in ("", "other"):
            await ModelSummariser(client, where, model=configured).summarise(span, limit_tokens=LIMIT)

    assert [body["model"] for body in bodies(server)] == ["house", "other"]


async def test_a_failed_summary_does_not_tell_the_query_of_its_address() -> None:
    """Defect: a key in the query of an Azure address was stored as part of the reason."""
    async with raw_server(one_by_one(response(404))) as server, Client(timeout_seconds=5) as client:
        url = f"{server.url}/openai/v1/responses?api-version=1&subscription-key=SECRET"
        where = Endpoint(url=url, spoken=Format.ANTHROPIC, headers={})
        summariser = ModelSummariser(client, where, sleep=Pauses())
        made = await summariser.summarise(span_of(claude_body(12)), limit_tokens=LIMIT)

    assert isinstance(made, NoSummary)
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
    made, (sent,), _ = await asked(span_of(body, Format.CHAT), ok({"choices": [choice]}), spoken=Format.CHAT)

    assert isinstance(made, Summary)
    assert sent["messages"][:-1] == body["messages"]
    assert not sent.keys() & {"stream", "stream_options", "max_tokens"}
    assert accept(wire.read(sent, Format.CHAT)) is None


def response_said(text: str, **more: Any) -> bytes:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output = [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": content},
    ]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return ok({"object": "response", "status": "completed", "output": output, "usage": usage, **more})


async def test_a_responses_session_is_summarised_by_responses_with_all_that_is_cached() -> None:
    """Defect: it was asked for as a chat, which reads nothing that is cached and which some models refuse."""
    body = responses_body(24)
    span = span_of(body, Format.RESPONSES)
    made, (sent,), _ = await asked(span, response_said(GOOD), spoken=Format.RESPONSES)

    assert made == Summary(text=GOOD, model="gpt-5.2")
    assert sent["input"][:-1] == body["input"]
    assert sent["input"][-1]["role"] == "user"
    dropped = {"stream", "max_output_tokens"}
    assert {name: sent[name] for name in body.keys() - dropped - {"input"}} == {
        name: body[name] for name in body.keys() - dropped - {"input"}
    }
    assert "stream" not in sent
    assert sent["max_output_tokens"] > 2 * LIMIT  # the model thinks before it writes
    assert accept(wire.read(sent, Format.RESPONSES)) is None


async def test_a_draft_of_responses_is_asked_for_once_more_in_the_same_conversation() -> None:
    span = span_of(responses_body(24), Format.RESPONSES)
    _, (sent,), _ = await asked(span, response_said(GOOD), spoken=Format.RESPONSES, redraft=["part_3.py"])

    assert [item["role"] for item in sent["input"][-3:]] == ["user", "assistant", "user"]
    assert sent["input"][-2]["content"] == GOOD
    assert accept(wire.read(sent, Format.RESPONSES)) is None


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
    span = span_of(responses_body(24) | changes, Format.RESPONSES)
    made, sent, _ = await asked(span, *[response_said(GOOD)] * 9, spoken=Format.RESPONSES, model=model)

    assert isinstance(made, Summary)
    assert all(not body.keys() & {"tools", "tool_choice", "text", "reasoning"} for body in sent)
    assert all(body["store"] is False for body in sent)
    assert all(accept(wire.read(body, Format.RESPONSES)) is None for body in sent)
    shown = "".join(body["input"] for body in sent)
    assert all(path(step) in shown for step in range(6))


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
    """Defect: a user message behind it was refused, so that no such session was ever summarised."""
    body = claude_body(12, model="claude-opus-4-8")
    body["messages"] += last
    _, (sent,), _ = await asked(span_of(body), said(GOOD), redraft=redraft)

    count, messages = len(body["messages"]), sent["messages"]
    changed = count - len(last) + block
    assert messages[:changed] == body["messages"][:changed]
    assert messages[changed]["role"] == "system"
    assert "Write that summary now." in messages[changed]["content"][-1]["text"]
    assert [message["role"] for message in messages[count:]] == (["assistant", "user"] if redraft else [])
    assert accept(wire.read(sent, Format.ANTHROPIC)) is None


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
    span = span_of(claude_body(12) | changes)
    _, sent, _ = await asked(span, *[said(GOOD)] * 9, model=model, window_tokens=window_tokens)

    assert all(not body.keys() & {"tools", "tool_choice", "output_config"} for body in sent)
    assert all(len(body["messages"]) == 1 for body in sent)
    assert all(accept(wire.read(body, Format.ANTHROPIC)) is None for body in sent)
    shown = "".join(body["messages"][0]["content"] for body in sent)
    assert all(path(step) in shown for step in range(6))


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
    """Was: sent along, and the JSON that came back was the history from then on."""
    choice = {"message": {"role": "assistant", "content": GOOD}, "finish_reason": "stop"}
    span = span_of(chat_body(24) | form, Format.CHAT)
    _, (sent,), _ = await asked(span, ok({"choices": [choice]}), spoken=Format.CHAT)

    assert not sent.keys() & {*form, "tools"}


async def test_what_spoils_an_answer_but_no_cache_is_left_out() -> None:
    spoiling = {"logit_bias": {"1": 100}, "modalities": ["text", "audio"], "audio": {"voice": "alloy"}}
    harmless = {"response_format": {"type": "text"}, "function_call": "auto"}
    choice = {"message": {"role": "assistant", "content": GOOD}, "finish_reason": "stop"}
    span = span_of(chat_body(24) | spoiling | harmless, Format.CHAT)
    _, (sent,), _ = await asked(span, ok({"choices": [choice]}), spoken=Format.CHAT)

    assert not sent.keys() & spoiling.keys()
    assert harmless.keys() <= sent.keys()


async def test_what_nobody_has_kept_is_shown_as_data() -> None:
    """Without a mark nothing is cached, and the tail and the tools would be paid for in full."""
    _, (sent,), _ = await asked(span_of(claude_body(12, marked=False)), said(GOOD))

    assert "tools" not in sent


async def test_a_span_larger_than_the_window_is_told_in_pieces_each_with_what_came_before() -> None:
    span = span_of(claude_body(40))
    summaries = [f"Summary number {number} of how slow the parser was so far." for number in range(60)]
    bills = Bills()
    made, sent, _ = await asked(span, *map(said, summaries), window_tokens=3_500, bills=bills)

    assert len(sent) > 2
    assert isinstance(made, Summary)
    assert made.text == summaries[len(sent) - 1]
    assert len(bills.usages) == len(sent)
    for before, body in zip(summaries, sent[1:], strict=False):
        assert before in body["messages"][0]["content"]
    shown = [body["messages"][0]["content"] for body in sent]
    assert all(any(path(step) in text for text in shown) for step in range(30))
    assert all(counter_for(MODEL).request(wire.read(body)).total.upper < 3_500 for body in sent)


async def test_an_error_in_the_midst_of_pieces_is_not_told_on() -> None:
    span = span_of(claude_body(40))
    page = said("<html><body>502</body></html>")
    made, sent, _ = await asked(span, said(GOOD), *[page] * 4, window_tokens=3_500)

    assert isinstance(made, NoSummary)
    assert len(sent) == 5
    assert all("<html>" not in body["messages"][0]["content"] for body in sent)


async def test_a_window_that_is_too_small_for_anything_is_said() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), window_tokens=600)

    assert isinstance(made, NoSummary)
    assert "too small" in made.reason
    assert sent == []


async def test_an_earlier_summary_is_shown_before_what_is_new() -> None:
    span = replace(span_of(claude_body(12, marked=False)), earlier="What was folded before.")
    _, (sent,), _ = await asked(span, said(GOOD))

    assert "What was folded before." in sent["messages"][0]["content"]


async def test_three_retries_are_made_each_later_than_the_last() -> None:
    made, sent, seconds = await asked(span_of(claude_body(12)), *[response(529)] * 4)

    assert isinstance(made, NoSummary)
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
        response(200, b"<html><body>Bad gateway</body></html>", "text/html"),
        ok({"error": {"message": "x"}}),
        ok({"content": "text"}),
        ok({"content": [{"type": "text", "text": 3}]}),
        response(503),
        response(429),
        response(200, b'{"content": [{"type": "te'),
    ],
)
async def test_what_is_no_summary_is_asked_for_again(reply: bytes) -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), reply, said(GOOD))

    assert isinstance(made, Summary)
    assert made.text == GOOD
    assert len(sent) == 2


async def test_a_model_that_calls_a_tool_instead_is_shown_the_history_as_data() -> None:
    bills = Bills()
    made, sent, _ = await asked(span_of(claude_body(12)), CALLED, said(GOOD), bills=bills)

    assert isinstance(made, Summary)
    assert ["tools" in body for body in sent] == [True, False]
    assert len(bills.usages) == 2


async def test_a_model_that_works_on_instead_is_shown_the_history_as_data() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), said("Sure! Let me go on with that now."), said(GOOD))

    assert isinstance(made, Summary)
    assert ["tools" in body for body in sent] == [True, False]


async def test_who_tells_nothing_of_it_twice_is_not_asked_a_third_time() -> None:
    hollow = said("All of it went well, and I am happy to help with more.")
    made, sent, _ = await asked(span_of(claude_body(12)), *[hollow] * 9)

    assert isinstance(made, NoSummary)
    assert "tells nothing" in made.reason
    assert ["tools" in body for body in sent] == [True, False, False]


async def test_a_summary_that_is_cut_off_is_asked_for_once_more_with_more_room() -> None:
    """Was: asked for four times with the same body, and cut off four times."""
    made, sent, seconds = await asked(span_of(claude_body(12)), said("The parser", "max_tokens"), said(GOOD))
    _, again, _ = await asked(span_of(claude_body(12)), *[said("The parser", "max_tokens")] * 9)

    assert isinstance(made, Summary)
    assert [body["max_tokens"] for body in sent] == [2 * LIMIT, 4 * LIMIT]
    assert seconds == []
    assert [body["max_tokens"] for body in again] == [2 * LIMIT, 4 * LIMIT]


async def test_each_call_is_on_the_bill_one_without_an_answer_as_unknown_one_that_was_refused_not() -> None:
    bills = Bills()
    broken = response(200, b'{"content": [{"type": "te')
    await asked(span_of(claude_body(12)), broken, response(529), said(""), said(GOOD), bills=bills)

    unknown, empty, good = bills.usages
    assert unknown is None
    assert empty == good
    assert good is not None
    assert good.output_tokens == 5


def test_a_client_for_counting_tokens_is_none_for_summaries() -> None:
    """Was: its 2 seconds were taken unsaid, and no summary was ever finished."""
    where = Endpoint(url="http://127.0.0.1", spoken=Format.CHAT, headers={})

    with pytest.raises(BadOption, match="2 s"):
        ModelSummariser(Client(), where)


async def test_a_request_that_is_refused_is_not_sent_again_but_otherwise() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), response(400), said(GOOD))

    assert isinstance(made, Summary)
    assert ["tools" in body for body in sent] == [True, False]


async def test_a_key_that_is_refused_is_not_tried_again() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), response(401))

    assert isinstance(made, NoSummary)
    assert len(sent) == 1


async def test_a_redraft_goes_on_from_the_draft_and_names_what_is_missing() -> None:
    _, (sent,), _ = await asked(span_of(claude_body(12)), said(GOOD), redraft=("src/secret_part.py",))

    *_, told, draft, again = sent["messages"]
    assert [message["role"] for message in (told, draft, again)] == ["user", "assistant", "user"]
    assert GOOD in json.dumps(draft)
    assert "src/secret_part.py" in json.dumps(again)
    assert accept(wire.read(sent)) is None


async def test_a_redraft_of_what_was_shown_shows_it_again_after_the_draft() -> None:
    span = span_of(claude_body(12, marked=False))
    _, (sent,), _ = await asked(span, said(GOOD), redraft=("src/secret_part.py",))

    shown = sent["messages"][0]["content"]
    assert GOOD in shown
    assert "src/secret_part.py" in shown
    assert path(3) in shown


async def test_a_redraft_is_tried_once() -> None:
    made, sent, _ = await asked(span_of(claude_body(12)), response(529), redraft=("x",))

    assert isinstance(made, NoSummary)
    assert len(sent) == 1


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(
        Endpoint(url="http://127.0.0.1", spoken=Format.CHAT, headers={"authorization": "secret"})
    )
