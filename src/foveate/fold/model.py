"""Summaries by a model over HTTP, in Anthropic's format or that of chats.

Where the agent's own model writes it, the whole request is sent once more, as it went out, with one instruction
after it: all but that is then read from the provider's cache. Otherwise the model is shown the span as data, in
pieces where its window is too small for all of it, each with the summary of those before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from foveate import wire
from foveate.budget.windows import window_of
from foveate.cache.rules import Caching, rules_for
from foveate.errors import UpstreamError, UpstreamStatus
from foveate.fold import prompts
from foveate.fold.answers import Answer, answer_of
from foveate.fold.summariser import NoSummary, Span, Summary, Usages
from foveate.fold.verifying import problem_of
from foveate.tokens import counter_for
from foveate.upstream import Client
from foveate.values import Format, Message, ReplaceMessages, Request, Text
from foveate.wire.body import fields, record, selected, value

DELAYS_SECONDS = (1.0, 4.0, 16.0)
"""How long to wait before each retry."""

_USUAL_WINDOW_TOKENS = 16_384
# What is asked for is a number of words. The answer may be longer; what is cut off is lost.
_ROOM = 2
_MOST_OUTPUT_TOKENS = 8_192
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
     "max_tokens", "max_completion_tokens")
)  # fmt: skip

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is: the whole address of the route, the format that it takes, and headers with the key."""

    url: str
    spoken: Format
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Text:
    """What was written after some tries, or why nothing was."""

    text: str
    usages: Usages
    problem: str | None = None
    again_as_data: bool = False  # another way of asking may do better


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
        self.model = model
        self._client = client
        self._endpoint = endpoint
        self._window_tokens = window_tokens
        self._delays_seconds = delays_seconds
        self._sleep = sleep

    async def summarise(self, span: Span, *, limit_tokens: int) -> Summary | NoSummary:
        """A summary by the model, from the cached prefix where there is one."""
        writer = self._writer(span, limit_tokens)
        usages: Usages = ()
        if writer.reads_cache(span):
            told = prompts.in_place(span.tail, span.facts, limit_tokens=writer.limit_tokens)
            made = await self._asked(writer.in_place(span, told), span.tokens, writer.count)
            if not made.again_as_data:
                return writer.summary(made)
            usages = made.usages
        return writer.summary(await self._shown(span, writer, usages))

    async def redraft(
        self, span: Span, draft: str, missing: Sequence[str], *, limit_tokens: int
    ) -> Summary | NoSummary:
        """The same once more, with what it left out; of a span in pieces, the last one is shown again."""
        writer = self._writer(span, limit_tokens)
        if writer.reads_cache(span):
            told = prompts.in_place(span.tail, span.facts, limit_tokens=writer.limit_tokens)
            body = writer.in_place(span, told, draft, prompts.again(missing))
        else:
            pieces = await asyncio.to_thread(writer.pieces, span)
            if not pieces:
                return NoSummary(reason="there is nothing to show")
            body = writer.shown(pieces[-1], draft, missing, is_last=True)
        return writer.summary(await self._asked(body, span.tokens, writer.count, retries=0))

    def _writer(self, span: Span, limit_tokens: int) -> "_Writer":
        model = self.model or span.sent.model
        window = window_of(model)
        known = window.tokens if window is not None else _USUAL_WINDOW_TOKENS
        return _Writer(model, self._endpoint.spoken, self._window_tokens or known, limit_tokens)

    async def _shown(self, span: Span, writer: "_Writer", usages: Usages) -> _Text:
        """The summary of the span shown as data, piece after piece."""
        pieces = await asyncio.to_thread(writer.pieces, span)
        made = _Text(span.earlier, usages, "the window of the summariser is too small for any piece of it")
        for number, piece in enumerate(pieces, start=1):
            body = writer.shown(piece, made.text, span.facts, is_last=number == len(pieces))
            # What is told so far may be as long as all that it is told of, of which only a piece is shown.
            made = await self._asked(body, span.tokens, writer.count, usages=made.usages)
            if made.problem is not None:
                break
        return made

    async def _asked(
        self,
        body: bytes,
        replaced_tokens: int,
        count: Callable[[str], int],
        *,
        usages: Usages = (),
        retries: int | None = None,
    ) -> _Text:
        """What is answered to `body`, asked again where that is no summary."""
        delays = [0.0, *self._delays_seconds[:retries]]
        problem, definite, again_as_data = "", False, False
        for delay in delays:
            if delay:
                await self._sleep(delay)
            try:
                answer = await self._answer(body)
            except UpstreamStatus as error:
                problem = str(error)
                definite = 400 <= error.status < 500 and error.status not in _PASSING
                again_as_data = error.status in _REFUSES_THIS
            except UpstreamError as error:
                problem = str(error)
                usages += (None,)
            else:
                usages += (answer.usage,)
                said = answer.problem or await asyncio.to_thread(
                    problem_of, answer.text, replaced_tokens=replaced_tokens, count=count
                )
                if said is None:
                    return _Text(answer.text, usages)
                # A model that works rather than sums up has to be shown the work as data, and no tools.
                problem, definite, again_as_data = said, answer.calls, answer.calls
            if definite:
                break
        return _Text("", usages, problem, again_as_data)

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


class _Writer:
    """Writes the requests for one summary, and reads what came of them."""

    def __init__(self, model: str, spoken: Format, window_tokens: int, limit_tokens: int) -> None:
        self._model = model
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
            return NoSummary(reason=made.problem, usages=made.usages)
        return Summary(text=made.text, model=self._model, usages=made.usages)

    def reads_cache(self, span: Span) -> bool:
        """Whether the request as it went out can be sent again, and would be read from a cache."""
        sent = span.sent
        is_same = sent.model == self._model and sent.format is self._spoken
        # A forced tool or a schema would be answered with that; without them, nothing is read from the cache.
        if not is_same or sent.schema is not None or sent.tool_choice not in _UNFORCED:
            return False
        is_kept = self._rules.caching in (Caching.AUTOMATIC, Caching.BOTH) or (
            self._rules.caching is Caching.MARKS and _is_marked(sent)
        )
        told = self.count(prompts.in_place(span.tail, span.facts, limit_tokens=self.limit_tokens))
        return is_kept and span.sent_tokens + told + self._output_tokens(sent) <= self._window_tokens

    def in_place(self, span: Span, told: str, *answered: str) -> bytes:
        """The request as it went out, with `told` after it; and what was answered to that, and so on."""
        roles = ("user", "assistant")
        said = tuple(
            Message(role=roles[number % 2], parts=(Text(text),))
            for number, text in enumerate((told, *answered))
        )
        end = len(span.sent.messages)
        edit = ReplaceMessages(start=end, end=end, messages=said, reason="a summary is asked for")
        body = wire.write(span.sent, (edit,))
        names = frozenset(fields(body)) - _DROPPED
        return selected(body, names, **{self._limit_name(): self._output_tokens(span.sent)})

    def shown(self, piece: str, before: str, facts: Sequence[str], *, is_last: bool) -> bytes:
        """A request that shows a piece of a conversation as data."""
        system = prompts.system(limit_tokens=self.limit_tokens)
        said = _Said("user", prompts.shown(piece, before, facts, is_last=is_last))
        body = _Body(model=self._model, messages=[said])
        if self._spoken is Format.ANTHROPIC:
            body.system = system
        else:
            body.messages.insert(0, _Said("system", system))
        setattr(body, self._limit_name(), self._unasked_tokens())
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
        is_openai = self._spoken is Format.CHAT and self._rules.provider == "openai"
        return "max_completion_tokens" if is_openai else "max_tokens"

    def _unasked_tokens(self) -> int:
        """How long an answer may be: a summary, and what a model thinks unasked where it may."""
        return self._room_tokens + (_THOUGHT_TOKENS if self._limit_name() == "max_completion_tokens" else 0)

    def _output_tokens(self, sent: Request) -> int:
        """How long the answer to a request that went out may be; thinking, where it is on, stays on."""
        if sent.thinking in _NO_THINKING:
            return self._unasked_tokens()
        found = fields(sent.body)
        own = next((value(found[name]) for name in _OUTPUT_LIMITS if name in found), 0)
        budget = record(found.get("thinking")).get("budget_tokens", 0)
        asked = [number for number in (own, budget) if isinstance(number, int)]
        return max(*asked, sum(asked[1:]) + self._unasked_tokens(), self._unasked_tokens())


_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")


def _is_marked(sent: Request) -> bool:
    return wire.automatic_mark(sent) is not None or any(block.mark for block in wire.blocks(sent))
