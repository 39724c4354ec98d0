"""A conversation: what was said, to which model, what fills its window, and what it has cost."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from uuid import uuid4

from foveate.budget.limits import DEFAULT_TOKENS
from foveate.budget.windows import window_of
from foveate.chat.bills import Bills, Spent, is_main, spent_in
from foveate.chat.bodies import Speaking, Whose, body_of, scope_of
from foveate.chat.door import Arriving, asked
from foveate.chat.failures import Failure, broken, empty, failure_of, internal
from foveate.chat.looking import Look, look_of
from foveate.chat.reading import Kind, Said, StreamedAnswer, whole_answer
from foveate.chat.setting import Setting
from foveate.chat.turns import Turn, answered
from foveate.chat.turns import asked as question
from foveate.cost.ledger import Entry
from foveate.engine.exchange import Exchange
from foveate.engine.steps.overflow import subject_of
from foveate.fold.folding import Folded
from foveate.fold.journal import Outcome
from foveate.gateway.app import Gateway
from foveate.gateway.asks import REQUEST_ID
from foveate.tokens.bpe import without_surrogates
from foveate.values import Usage

MAX_TOKENS = 4096
"""How long an answer may be, unless somebody says otherwise."""

# Of a small window, so much is for the answer at most.
_ANSWER_SHARE = 4
# Stands where nothing was said yet, so that it can be seen what goes with the first words.
_FIRST_WORDS = "Hello"
_STREAM = "text/event-stream"
_CUT_SHORT = frozenset(("length", "max_tokens", "max_output_tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a question came to. `is_stopped`: by the user; `is_cut_short`: it was as long as it might be.

    `entry` is its bill, None where there is none.
    """

    text: str = ""
    thoughts: str = ""
    calls: tuple[str, ...] = ()
    is_stopped: bool = False
    is_cut_short: bool = False
    failure: Failure | None = None
    entry: Entry | None = None
    request_id: str = ""

    @property
    def has_words(self) -> bool:
        """Whether there is something in it to go on from; no provider takes an answer of blanks."""
        return bool(self.text.strip() or self.calls)

    @property
    def usage(self) -> Usage | None:
        """What was billed."""
        return self.entry.usage if self.entry is not None else None

    @property
    def dollars(self) -> Decimal | None:
        """What it cost; None where that is not known."""
        return self.entry.dollars if self.entry is not None else None


class Talk:
    """A conversation with one model at a time, as one agent."""

    def __init__(
        self,
        gateway: Gateway,
        setting: Setting,
        bills: Bills,
        speaking: Speaking,
        *,
        agent: str,
        max_tokens: int | None = None,
    ) -> None:
        self._gateway = gateway
        self._setting = setting
        self._bills = bills
        self._max_tokens = max_tokens
        self._arriving: Arriving | None = None
        self._folding: asyncio.Task[Folded | None] | None = None
        self.speaking = speaking
        self.agent = agent
        self.turns: tuple[Turn, ...] = ()
        self.session = _new_session()
        self._known_as: set[str] = set()
        """What the engine calls this session, by which its bills are found."""
        self._requests: set[str] = set()
        """Its requests; each is a session by itself to the engine where the store is away."""

    @property
    def spent(self) -> Spent:
        """What this session has cost so far."""
        return spent_in(self.entries)

    @property
    def answers_spent(self) -> Spent:
        """The same of its answers alone, of whose prompts the hit ratio tells."""
        return spent_in(filter(is_main, self.entries))

    @property
    def entries(self) -> list[Entry]:
        """Every bill of this session."""
        return self._bills.of(self._known_as | self._requests)

    @property
    def session_id(self) -> str:
        """What the engine calls this session; what it is asked by, as long as it has not heard of it."""
        return min(self._known_as, default=self.session)

    def notes(self) -> list[str]:
        """What is to be told of the last requests."""
        return self._bills.notes()

    def max_tokens(self) -> int:
        """How long the next answer may be."""
        if self._max_tokens is not None:
            return self._max_tokens
        own = self._setting.now().agents(self.agent).window_tokens
        known = window_of(self.speaking.model)
        window = own or (known.tokens if known is not None else DEFAULT_TOKENS)
        return max(1, min(MAX_TOKENS, window // _ANSWER_SHARE))

    def switch(self, model: str) -> Speaking:
        """Talk to another model from now on; what was said goes along.

        Raises:
            BadOption: it cannot be reached; then all stays as it is.
        """
        self.speaking = self._setting.speak(model)
        return self.speaking

    def reset(self) -> None:
        """Begin anew: another session, in which nothing was said."""
        self._setting.begin_anew()
        self.turns = ()
        self.session = _new_session()
        self._known_as, self._requests = set(), set()

    def stop(self) -> None:
        """Stop what is under way, if anything is."""
        if self._arriving is not None:
            self._arriving.stop()
        if self._folding is not None:
            self._folding.cancel()

    async def ask(self, text: str, show: Callable[[Said], None] = lambda _: None) -> Answer:
        """The answer to a question, shown as it comes; with a failure in it, the question is not kept.

        What came of an answer that was stopped or broke off is kept, and so is its question.
        """
        turns = (*self.turns, question(without_surrogates(text)))
        try:
            answer = await self._answer(turns, show)
        except Exception as error:  # noqa: BLE001 - the border of a conversation: nothing said in it may be lost
            return Answer(failure=internal(error))
        if answer.has_words:
            is_cut = answer.is_stopped or answer.failure is not None
            words = answer.text if answer.text.strip() else "".join(f"[called {name}]" for name in answer.calls)
            self.turns = (*turns, answered(words, is_cut=is_cut))
        return answer

    async def _answer(self, turns: tuple[Turn, ...], show: Callable[[Said], None]) -> Answer:
        speaking = self.speaking
        body = body_of(turns, speaking, max_tokens=self.max_tokens())
        heard: list[Said] = []

        def hear(said: Said) -> None:
            heard.append(said)
            show(said)

        async with asked(self._gateway, scope_of(speaking, self._whose()), body) as arriving:
            self._arriving = arriving
            try:
                stream = await _heard(arriving, speaking, hear, has_history=len(turns) > 1)
            finally:
                self._arriving = None
        request_id = arriving.headers.get(REQUEST_ID, "")
        if isinstance(stream, Failure):
            return Answer(failure=stream, request_id=request_id)
        if request_id:
            self._requests.add(request_id)
            await self._bills.booked(request_id)
            self._know(self._bills.last)
        answer = Answer(
            text=_joined(heard, Kind.TEXT),
            thoughts=_joined(heard, Kind.THOUGHT),
            calls=tuple(said.text for said in heard if said.kind is Kind.CALL),
            is_stopped=arriving.is_stopped and not arriving.is_whole,
            is_cut_short=stream is not None and stream.told.stop_reason in _CUT_SHORT,
            entry=next((entry for entry in self.entries if entry.call.id == request_id), None),
            request_id=request_id,
        )
        return replace(answer, failure=_failure_in(answer, stream, is_whole=arriving.is_whole))

    async def look(self, *, focus: str = "") -> Look:
        """What would be sent next, by the same way that a question goes.

        Raises:
            FoveateError: it would be refused.
        """
        return look_of(await self._previewed(focus), max_tokens=self.max_tokens())

    async def compact(self) -> Folded | None:
        """What became of folding all but the last exchange; None where it is not one to fold.

        Raises:
            FoveateError: it would be refused.
        """
        self._setting.compact()
        work = (await self._previewed()).work
        fold_now = self._gateway.engine.fold_now
        if fold_now is None or work is None or work.chain is None or work.count is None or not self.turns:
            return None
        options = work.options
        work.options = replace(
            options,
            fold=replace(options.fold, tail_keep_tokens=1, min_turns_between=0, extractive=True),
            window_tokens=work.window_tokens or max(DEFAULT_TOKENS, 2 * work.count.tokens),
        )
        self._folding = asyncio.ensure_future(fold_now(work, subject_of(work, must_fit=True)))
        try:
            with self._bills.untold_folds():
                return await self._folding
        except asyncio.CancelledError:
            if not self._folding.cancelled():
                raise
            return Folded(outcome=Outcome.FAILED, reason="it was stopped")
        finally:
            self._folding = None

    async def _previewed(self, focus: str = "") -> Exchange:
        turns = self.turns or (question(_FIRST_WORDS),)
        body = body_of(turns, self.speaking, max_tokens=self.max_tokens())
        exchange = await self._gateway.previewed(scope_of(self.speaking, self._whose(focus)), body)
        self._know(exchange)
        return exchange

    def _know(self, exchange: Exchange | None) -> None:
        work = exchange.work if exchange is not None else None
        if work is not None and work.found is not None:
            self._known_as.add(work.session_id)

    def _whose(self, focus: str = "") -> Whose:
        return Whose(agent=self.agent, session=self.session, focus=focus)


async def _heard(
    arriving: Arriving, speaking: Speaking, hear: Callable[[Said], None], *, has_history: bool
) -> StreamedAnswer | Failure | None:
    """What an answer told of itself by its end; None of one that did not stream, and why, where it is none."""
    await arriving.begun()
    if not 200 <= arriving.status < 300:
        body = b"".join([piece async for piece in arriving.pieces()])
        if arriving.is_stopped or not arriving.status:
            return StreamedAnswer(speaking.spoken)  # nothing of it came
        return failure_of(arriving.status, arriving.headers, body, speaking, has_history=has_history)
    if not arriving.headers.get("content-type", "").startswith(_STREAM):
        body = b"".join([piece async for piece in arriving.pieces()])
        for said in whole_answer(speaking.spoken, body):
            hear(said)
        return None
    stream = StreamedAnswer(speaking.spoken)
    async for piece in arriving.pieces():
        for said in stream.feed(piece):
            hear(said)
    for said in stream.end():
        hear(said)
    return stream


def _failure_in(answer: Answer, stream: StreamedAnswer | None, *, is_whole: bool) -> Failure | None:
    if answer.is_stopped:
        return None
    error = None if stream is None else stream.told.error
    if error is not None or not is_whole:
        return broken(error, has_words=answer.has_words)
    return None if answer.has_words else empty()


def _joined(heard: list[Said], kind: Kind) -> str:
    return "".join(said.text for said in heard if said.kind is kind)


def _new_session() -> str:
    return f"chat-{uuid4().hex}"
