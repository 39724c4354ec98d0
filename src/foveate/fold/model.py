"""Summaries by a model over HTTP, in the format that the client speaks: Messages, chats or Responses.

Where the agent's own model writes it, the whole request is sent once more, as it went out, with one instruction
after it: all but that is then read from the provider's cache. Otherwise the model is shown the span as data, in
pieces where its window is too small for all of it, each with the summary of those before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Protocol

import msgspec

from foveate import wire
from foveate.budget.windows import window_of
from foveate.cache.rules import Caching, rules_for
from foveate.errors import BadOption, UpstreamError, UpstreamStatus
from foveate.fold import prompts
from foveate.fold.answers import Answer, answer_of
from foveate.fold.summariser import Bills, NoSummary, Span, Summary
from foveate.fold.verifying import hollow, problem_of
from foveate.tokens import counter_for
from foveate.upstream import Client
from foveate.values import Area, Edit, Format, Insert, Message, Place, ReplaceMessages, Request, Text
from foveate.wire.body import as_record, fields, record, selected, value

DELAYS_SECONDS = (1.0, 4.0, 16.0)
"""How long to wait before each retry."""

_USUAL_WINDOW_TOKENS = 16_384
# What is asked for is a number of words. The answer may be longer; what is cut off is lost.
_ROOM = 2
_MOST_OUTPUT_TOKENS = 8_192
# What counting tokens may take is no time for a summary; less than this is meant for something else.
_LEAST_SECONDS = 2.0
_MOST_SUMMARY_TOKENS = 6_000
# For models that think unasked, and are billed for it as output.
_THOUGHT_TOKENS = 4_096
# A span that is cut into smaller pieces than this is told in too many summaries of summaries.
_LEAST_PIECE_TOKENS = 512
_PASSING = frozenset((408, 409, 425, 429))  # the same request may be answered a little later
_REFUSES_THIS = frozenset((400, 413, 422))  # another request may be answered at once
_UNFORCED = frozenset(("", "auto", "none"))
_NO_THINKING = frozenset(("", "disabled", "none"))
# None of these is part of what is cached, and each would keep the answer from being one whole text.
_DROPPED = frozenset(
    ("stream", "stream_options", "stop", "stop_sequences", "n", "logprobs", "top_logprobs", "prediction",
     "max_tokens", "max_completion_tokens", "max_output_tokens", "logit_bias", "modalities", "audio",
     "background")
)  # fmt: skip
# What holds an answer to a form, besides OpenAI's own ways: vLLM's names (docs.vllm.ai, structured outputs) and
# llama.cpp's (tools/server/README.md), read November 2026.
_FORMS = frozenset(
    ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag", "structured_outputs",
     "grammar", "json_schema")
)  # fmt: skip

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is: the whole address of the route, the format that it takes, and headers with the key.

    `model` is the name of the client's own model there, if it differs from the one that it is known by: on
    Azure that of a deployment. The query of `url` can hold a key. Without `reuse`, each call has a connection
    of its own.
    """

    url: str = field(repr=False)
    spoken: Format
    headers: Mapping[str, str] = field(repr=False)
    model: str = ""
    reuse: bool = True


class _Write(Protocol):
    """Writes a request."""

    def __call__(self, *, more: bool) -> bytes:
        """With `more` room for the answer, or not."""


class _Then(Enum):
    """What may help after a try that failed."""

    LATER = auto()  # the same once more
    ROOM = auto()  # more room for the answer
    ONCE = auto()  # the same, but only once: who has nothing to tell twice has nothing to tell
    AS_DATA = auto()  # another way of asking
    NOTHING = auto()


_ENDS = frozenset((_Then.AS_DATA, _Then.NOTHING))


@dataclass(frozen=True, slots=True)
class _Text:
    """What was written, or why nothing was, and what may help."""

    text: str
    problem: str | None = None
    then: _Then = _Then.LATER


class ModelSummariser:
    """Implements `Summariser`. Without a `model` it is the agent's own, at the same provider."""

    def __init__(
        self,
        client: Client,
        endpoint: Endpoint,
        *,
        model: str = "",
        window_tokens: int | None = None,
        delays_seconds: Sequence[float] = DELAYS_SECONDS,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """The time-out of `client` is that of one answer, which a model may write on for minutes.

        Raises:
            BadOption: that time-out is one for counting tokens.
        """
        if client.timeout_seconds <= _LEAST_SECONDS:
            raise BadOption(f"no model writes a summary within {client.timeout_seconds:g} s; give it minutes")
        self.model = model
        self._client = client
        self._endpoint = endpoint
        self._window_tokens = window_tokens
        self._delays_seconds = delays_seconds
        self._sleep = sleep

    async def summarise(
        self, span: Span, bills: Bills | None = None, *, limit_tokens: int
    ) -> Summary | NoSummary:
        """A summary by the model, from the cached prefix where there is one."""
        bills = Bills() if bills is None else bills
        writer = self._writer(span, limit_tokens)
        if writer.reads_cache(span):
            told = prompts.in_place(span.tail, span.facts, limit_tokens=writer.limit_tokens)
            # A model that works on, or says something to the user, has to be shown the work as data.
            made = await self._asked(
                partial(writer.in_place, span, told),
                span,
                writer,
                bills,
                ends=_ENDS | {_Then.ONCE},
            )
            if made.then not in (_Then.AS_DATA, _Then.ONCE):
                return writer.summary(made)
        return writer.summary(await self._shown(span, writer, bills))

    async def redraft(
        self, span: Span, draft: str, missing: Sequence[str], bills: Bills, *, limit_tokens: int
    ) -> Summary | NoSummary:
        """The same once more, with what it left out; of a span in pieces, the last one is shown again."""
        writer = self._writer(span, limit_tokens)
        if writer.reads_cache(span):
            told = prompts.in_place(span.tail, span.facts, limit_tokens=writer.limit_tokens)
            body = writer.in_place(span, told, draft, prompts.again(missing), more=False)
        else:
            pieces = await asyncio.to_thread(writer.pieces, span)
            if not pieces:
                return NoSummary(reason="there is nothing to show")
            body = writer.shown(pieces[-1], draft, missing, is_last=True, more=False)
        return writer.summary(await self._once(body, span, writer, bills))

    def _writer(self, span: Span, limit_tokens: int) -> "_Writer":
        model = self.model or span.sent.model
        window = window_of(model)
        known = window.tokens if window is not None else _USUAL_WINDOW_TOKENS
        name = self.model or self._endpoint.model or model
        return _Writer(model, name, self._endpoint.spoken, self._window_tokens or known, limit_tokens)

    async def _shown(self, span: Span, writer: "_Writer", bills: Bills) -> _Text:
        """The summary of the span shown as data, piece after piece."""
        pieces = await asyncio.to_thread(writer.pieces, span)
        made = _Text(span.earlier, "the window of the summariser is too small for any piece of it")
        for number, piece in enumerate(pieces, start=1):
            show = partial(writer.shown, piece, made.text, span.facts, is_last=number == len(pieces))
            # What is told so far may be as long as all that it is told of, of which only a piece is shown.
            made = await self._asked(show, span, writer, bills)
            if made.problem is not None:
                break
        return made

    async def _asked(
        self,
        body: _Write,
        span: Span,
        writer: "_Writer",
        bills: Bills,
        *,
        ends: Set[_Then] = _ENDS,
    ) -> _Text:
        """What is answered to `body`; where that is no summary it is asked again, with more room if need be."""
        made = _Text("")
        before: set[_Then] = set()
        for delay in (0.0, *self._delays_seconds):
            if delay and made.then is not _Then.ROOM:
                await self._sleep(delay)
            made = await self._once(body(more=_Then.ROOM in before), span, writer, bills)
            is_done = made.problem is None or made.then in ends
            if is_done or (made.then is not _Then.LATER and made.then in before):
                break
            before.add(made.then)
        return made

    async def _once(self, body: bytes, span: Span, writer: "_Writer", bills: Bills) -> _Text:
        """What is answered to `body`."""
        bills.begin()
        try:
            answer = await self._answer(body)
        except UpstreamStatus as error:
            bills.waive()
            is_passing = error.status >= 500 or error.status in _PASSING or error.status < 400
            otherwise = _Then.AS_DATA if error.status in _REFUSES_THIS else _Then.NOTHING
            return _Text("", str(error), _Then.LATER if is_passing else otherwise)
        except UpstreamError as error:
            return _Text("", str(error))
        bills.settle(answer.usage)
        if answer.problem is not None:
            then = _Then.AS_DATA if answer.calls else _Then.ROOM if answer.cut_off else _Then.LATER
            return _Text("", answer.problem, then)
        return await asyncio.to_thread(writer.judged, answer.text, span)

    async def _answer(self, body: bytes) -> Answer:
        reply = await self._client.post_json(self._endpoint.url, body, self._endpoint.headers)
        return answer_of(self._endpoint.spoken, reply)


class _Said(msgspec.Struct):
    role: str
    content: str


class _Body(msgspec.Struct, omit_defaults=True):
    """A request in either format."""

    model: str
    messages: list[_Said]
    system: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _ResponsesBody(msgspec.Struct):
    """A Responses request; nobody asks for its response again, so it is not stored."""

    model: str
    instructions: str
    input: str
    max_output_tokens: int
    store: bool = False


class _Writer:
    """Writes the requests for one summary, and reads what came of them. They name the model as `name`."""

    def __init__(self, model: str, name: str, spoken: Format, window_tokens: int, limit_tokens: int) -> None:
        self._model = model
        self._name = name
        self._spoken = spoken
        self._window_tokens = window_tokens
        self.limit_tokens = min(limit_tokens, _MOST_SUMMARY_TOKENS, max(window_tokens // 8, 1))
        self._counter = counter_for(model)
        self._rules = rules_for(model)
        self._room_tokens = min(self.limit_tokens * _ROOM, _MOST_OUTPUT_TOKENS)

    def count(self, text: str) -> int:
        """As many tokens as a text may have."""
        return self._counter.text(text).upper

    def summary(self, made: _Text) -> Summary | NoSummary:
        """What is handed back."""
        if made.problem is not None:
            return NoSummary(reason=made.problem)
        return Summary(text=made.text, model=self._model)

    def judged(self, text: str, span: Span) -> _Text:
        """A text, or why it is no summary of `span`."""
        problem = problem_of(text, replaced_tokens=span.tokens, count=self.count)
        if problem is not None:
            return _Text("", problem)
        problem = hollow(text, span.head, span.earlier)
        return _Text(text) if problem is None else _Text("", problem, _Then.ONCE)

    def reads_cache(self, span: Span) -> bool:
        """Whether the request as it went out can be sent again, and would be read from a cache."""
        sent = span.sent
        is_same = sent.model == self._model and sent.format is self._spoken
        # A forced tool or a schema would be answered with that; without them, nothing is read from the cache.
        if not is_same or sent.schema is not None or sent.tool_choice not in _UNFORCED or _has_form(sent):
            return False
        is_kept = self._rules.caching in (Caching.AUTOMATIC, Caching.BOTH) or (
            self._rules.caching is Caching.MARKS and _is_marked(sent)
        )
        told = self.count(prompts.in_place(span.tail, span.facts, limit_tokens=self.limit_tokens))
        return is_kept and span.sent_tokens + told + self._output_tokens(sent) <= self._window_tokens

    def in_place(self, span: Span, told: str, *answered: str, more: bool) -> bytes:
        """The request as it went out, with `told` after it; and what was answered to that, and so on.

        `more`: with more room for the answer.
        """
        roles = ("user", "assistant")
        said = tuple(
            Message(role=roles[number % 2], parts=(Text(text),))
            for number, text in enumerate((told, *answered))
        )
        body = wire.write(span.sent, _appended(span.sent, said))
        names = frozenset(fields(body)) - _DROPPED
        room = self._output_tokens(span.sent) + (self._room_tokens if more else 0)
        return selected(body, names, **{self._limit_name(): room})

    def shown(self, piece: str, before: str, facts: Sequence[str], *, is_last: bool, more: bool) -> bytes:
        """A request that shows a piece of a conversation as data; `more`: with more room for the answer."""
        system = prompts.system(limit_tokens=self.limit_tokens)
        shown = prompts.shown(piece, before, facts, is_last=is_last)
        room = self._unasked_tokens() + (self._room_tokens if more else 0)
        if self._spoken is Format.RESPONSES:
            return msgspec.json.encode(
                _ResponsesBody(model=self._name, instructions=system, input=shown, max_output_tokens=room)
            )
        body = _Body(model=self._name, messages=[_Said("user", shown)])
        if self._spoken is Format.ANTHROPIC:
            body.system = system
        else:
            body.messages.insert(0, _Said("system", system))
        setattr(body, self._limit_name(), room)
        return msgspec.json.encode(body)

    def pieces(self, span: Span) -> list[str]:
        """The new messages as texts that fit the window; none where it is too small for any."""
        around = prompts.shown("", span.earlier, span.facts, is_last=False)
        taken = self.count(prompts.system(limit_tokens=self.limit_tokens)) + self.count(around)
        left = self._window_tokens - self._unasked_tokens() - self._room_tokens - taken
        # What goes around a message, and what a count may be off where texts meet.
        piece_tokens = int(left * 0.95) - 64
        if piece_tokens < _LEAST_PIECE_TOKENS:
            return []
        return prompts.pieces(span.new, piece_tokens=piece_tokens, count=self.count)

    def _limit_name(self) -> str:
        if self._spoken is Format.RESPONSES:
            return "max_output_tokens"
        is_openai = self._spoken is Format.CHAT and self._rules.provider == "openai"
        return "max_completion_tokens" if is_openai else "max_tokens"

    def _unasked_tokens(self) -> int:
        """How long an answer may be: a summary, and what a model thinks unasked where it may."""
        return self._room_tokens + (0 if self._limit_name() == "max_tokens" else _THOUGHT_TOKENS)

    def _output_tokens(self, sent: Request) -> int:
        """How long the answer to a request that went out may be; thinking, where it is on, stays on."""
        if sent.thinking in _NO_THINKING:
            return self._unasked_tokens()
        found = fields(sent.body)
        own = next((value(found[name]) for name in _OUTPUT_LIMITS if name in found), 0)
        budget = record(found.get("thinking")).get("budget_tokens", 0)
        asked = [number for number in (own, budget) if isinstance(number, int)]
        return max(*asked, sum(asked[1:]) + self._unasked_tokens(), self._unasked_tokens())


_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def _appended(sent: Request, said: tuple[Message, ...]) -> list[Edit]:
    """Edits that append messages to a request.

    In the Messages API only the assistant may speak after a system message. So if a conversation ends with one,
    the text of the first message becomes its last block: the whole prefix is still read from the cache.
    """
    reason, end = "a summary is asked for", len(sent.messages)
    edits: list[Edit] = []
    found = _last_system_message(sent)
    if found is not None:
        edits.append(Insert(place=found, parts=said[0].parts, reason=reason))
        said = said[1:]
    if said:
        edits.append(ReplaceMessages(start=end, end=end, messages=said, reason=reason))
    return edits


def _last_system_message(sent: Request) -> Place | None:
    """The end of the system message that an Anthropic conversation ends with; None if it ends otherwise.

    System messages without content only set parameters, and are not part of what is said.
    """
    if sent.format is not Format.ANTHROPIC:
        return None
    for index in reversed(range(len(sent.messages))):
        message = wire.message(sent.format, sent.messages[index])
        if message.role != "system":
            return None
        if message.parts:
            return Place(Area.MESSAGES, index, len(message.parts))
    return None


def _has_form(sent: Request) -> bool:
    """Whether the answer to a request is held to a form that is no plain text."""
    found = fields(sent.body)
    text_format = as_record(record(found.get("text")).get("format"))  # of Responses
    shaped = any(
        form.get("type", "text") != "text" for form in (record(found.get("response_format")), text_format)
    )
    # The older way to force a call names the function: {"name": …}.
    forced = isinstance(value(found.get("function_call")), dict)
    return shaped or forced or any(value(found.get(name)) is not None for name in _FORMS)


def _is_marked(sent: Request) -> bool:
    return wire.automatic_mark(sent) is not None or any(block.mark for block in wire.blocks(sent))
