"""Find the session that a request belongs to.

A client may name its conversation (`naming.py`): then the name alone decides. Without a name, a request goes
on with the session

1. whose answer it sends back: the response that it names as previous, or the last of its messages that a model
   wrote, by the ids of its tool calls or by its text;
2. whose last request it continues word for word, if there is only one such session.

Both hold within one caller only (agent, key and program); a response that is named, within one agent. A request
without any answer in it begins a session, unless its client says that it retries one that failed. A request
that goes on from an earlier answer of a session is a fork, a child of its own. If in doubt a conversation is
split rather than merged.

A process decides by what it remembers, then by what is stored. The decision is final: what is stored later only
follows it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from foveate.session.answers import MAX_MESSAGES, AnswerMarks, answers_sent_back, response_mark
from foveate.session.chain import Chain
from foveate.session.conversation import Conversation
from foveate.session.ids import new_id
from foveate.session.recent_sessions import Flight, RecentSessions
from foveate.session.turns import Answer, Session, Turn, Turns
from foveate.tokens.memo import Memo
from foveate.tokens.threads import run_in_thread
from foveate.wire.answer_parts import is_from_model
from foveate.wire.large_json import LARGE_BYTES

_MAX_IN_VAIN = 8 * 1024
# A session may end so many messages before a request does: an answer and the results of its calls follow.
_LAST_MESSAGES = 32
# A session is stored again without news after this time.
_SEEN_AGAIN_SECONDS = 60.0
# By then another worker has stored the answer that it has just passed on; later if the store is busy.
_OTHERS_SECONDS = (0.05, 0.2)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a request as it is with it.

    `known` is how many of its messages may have been seen before; if it is new, in the session `known_from`.
    `turns` are those that may be new, and `is_changed` says whether there is anything to store. A request that
    `is_aside` has another system prompt and history than its session: agents ask for titles and the like under
    the name of the conversation.
    """

    session: Session
    known: int
    is_new: bool
    known_from: str | None = None
    is_fork: bool = False
    is_changed: bool = True
    is_aside: bool = False
    turns: Sequence[Turn] = ()


class _Choice(msgspec.Struct, frozen=True):
    """The session that a request goes on with or forks from; None if it begins one.

    `known` is how many messages of a new session have been said before, in the session `known_from`.
    """

    session: Session | None
    forked_at: bytes | None = None
    known: int = 0
    known_from: str | None = None


_NEW = _Choice(None)


class Sessions:
    """Finds the sessions of requests, and remembers them for the next ones.

    `has_others`: other processes serve requests with the same store.
    """

    def __init__(
        self,
        turns: Turns,
        *,
        has_others: bool = False,
        make_id: Callable[[], str] = new_id,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._turns = turns
        self._has_others = has_others
        self._make_id = make_id
        self._sleep = sleep
        self._recent = RecentSessions()
        self._in_vain: Memo[bool] = Memo(_MAX_IN_VAIN)

    async def find(self, request: Conversation, *, now: float) -> Found:
        """Return the session of a request. Nothing is remembered of it before `begin`.

        Raises:
            MalformedRequest: a message cannot be read.
            StoreUnavailable: the store has to be asked, and cannot be reached.
        """
        if request.named is not None:
            there = self._recent.session(request.named) or await self._turns.session(request.named)
            has_history = there is None and request.has_answer_before(len(request.chain))
            known = await self._last_known(request) if has_history else None
            found = self._named(request, request.named, there, now, known=known.position + 1 if known else 0)
            return replace(found, known_from=known.session_id if known else None)
        choice = await self._choose(request)
        if choice.session is None:
            begun = self._begun(request, self._make_id(), now)
            found = self._found(request, begun, 0, choice.known, is_new=True)
            return replace(found, known_from=choice.known_from)
        if choice.forked_at is not None:
            fork = replace(
                self._begun(request, self._make_id(), now),
                parent_id=choice.session.id,
                forked_at=choice.forked_at,
            )
            return self._found(request, fork, 0, choice.known or len(request.chain), is_new=True, is_fork=True)
        return self._going_on(request, choice.session, now)

    def named(self, request: Conversation, *, now: float) -> Found:
        """Return the session that a client names, without the store."""
        assert request.named is not None
        return self._named(request, request.named, self._recent.session(request.named), now)

    def begin(self, found: Found) -> Flight:
        """Remember that a request of a session is being sent."""
        return self._recent.begin(found.session)

    def end(self, session: Session, flight: Flight, rows: Sequence[Answer], *, is_answered: bool) -> None:
        """Remember how a request of a session was answered."""
        self._recent.end(session, flight, rows, is_answered=is_answered)

    def _named(
        self, request: Conversation, id_: str, there: Session | None, now: float, *, known: int = 0
    ) -> Found:
        if there is None:
            begun = replace(self._begun(request, id_, now), parent_id=request.parent_id)
            return self._found(request, begun, 0, known, is_new=True)
        return self._going_on(request, there, now)

    def _going_on(self, request: Conversation, there: Session, now: float) -> Found:
        is_continued = request.continues(there) or there.tip == request.tip
        known = there.messages if is_continued else 0
        is_aside = not request.continues(there) and self._is_aside(request, there)
        session = replace(
            there,
            tip=there.tip if is_aside else request.tip,
            messages=there.messages if is_aside else len(request.chain),
            setting=there.setting if is_aside or request.named is None else request.setting(),
            seen_at=max(there.seen_at, now),
            parent_id=there.parent_id or request.parent_id,
            caller=_caller(request) if there.caller is None else there.caller,
        )
        was_seen = there.tip == request.tip and there.seen_at <= now < there.seen_at + _SEEN_AGAIN_SECONDS
        if was_seen and there.caller is not None:
            session = there
        found = self._found(request, session, known, known or len(request.chain), is_new=False)
        return replace(found, is_changed=session is not there, is_aside=is_aside)

    def _is_aside(self, request: Conversation, there: Session) -> bool:
        """Return whether a request has another prompt than the rest of its named session, and no more messages.

        The first request of a session may be one aside: a longer conversation takes its place.
        """
        is_longer = len(request.chain) > there.messages
        return request.named is not None and not is_longer and there.setting not in (None, request.setting())

    def _begun(self, request: Conversation, id_: str, now: float) -> Session:
        return Session(
            id=id_,
            agent=request.agent,
            tip=request.tip,
            messages=len(request.chain),
            created_at=now,
            seen_at=now,
            caller=_caller(request),
            setting=request.setting(),
            first_messages=len(request.chain),
        )

    def _found(
        self,
        request: Conversation,
        session: Session,
        stored: int,
        known: int,
        *,
        is_new: bool,
        is_fork: bool = False,
    ) -> Found:
        hashes = () if request.is_partial else request.chain.hashes[stored:]
        turns = [Turn(hash=one, position=stored + at, session_id=session.id) for at, one in enumerate(hashes)]
        return Found(
            session=session,
            known=known,
            is_new=is_new,
            is_fork=is_fork,
            is_changed=bool(request.chain) or request.named is not None,
            turns=turns,
        )

    async def _choose(self, request: Conversation) -> _Choice:
        if request.previous:
            return await self._choose_by_response(request)
        answers = answers_sent_back(
            request.agent, request.caller, request.format, request.chain, request.messages
        )
        size_bytes = sum(map(len, request.messages[-MAX_MESSAGES:]))
        if size_bytes >= LARGE_BYTES:
            answers = iter(await run_in_thread(partial(tuple[AnswerMarks, ...], answers), size_bytes))
        latest = next(answers, None)
        if latest is None:
            return self._repeated_beginning(request)
        rows = self._recent.answers(latest.exact[:1])
        choice = self._chosen(request, rows, is_cut=latest.is_cut) if rows else None
        if choice is None and not self._has_others:
            choice = self._by_end(request, self._remembered_ends(request)) or self._like_another(request)
        if choice is not None and self._is_certain(request, latest, choice):
            return choice
        sent_back = [latest, *answers]
        waits = list(self._waits(latest.exact[:1]))
        while True:
            choice = await self._stored(request, sent_back, is_last=not waits)
            if choice.session is not None or not waits:
                return choice
            await self._sleep(waits.pop(0))

    async def _choose_by_response(self, request: Conversation) -> _Choice:
        marks = [response_mark(request.agent, request.previous, request.scope)]
        rows = self._recent.answers(marks) or await self._answered(marks)
        for seconds in self._waits(marks) if not rows else ():
            await self._sleep(seconds)
            rows = await self._answered(marks)
            if rows:
                break
        return self._chosen(request, rows) if rows else _NEW

    def _waits(self, marks: Sequence[bytes]) -> Sequence[float]:
        """Return how long to wait for an answer that another worker may be about to store; once for each."""
        if not self._has_others or not marks or self._in_vain.get(marks[0]):
            return ()
        self._in_vain.put(marks[0], True)
        return _OTHERS_SECONDS

    def _is_certain(self, request: Conversation, latest: AnswerMarks, choice: _Choice) -> bool:
        """Return whether the store need not be asked: the request goes on with the one session that it can be.

        Sessions with the same words may have got the same text from other processes.
        """
        session = choice.session
        if not self._has_others or session is None:
            return True
        is_going_on = choice.forked_at is None and session.tip != request.tip
        return latest.is_unique and is_going_on and session.setting == request.setting()

    async def _stored(self, request: Conversation, answers: Sequence[AnswerMarks], *, is_last: bool) -> _Choice:
        """Choose by what is stored; a session that got another answer only if this `is_last` to be tried."""
        rows = await self._answered([mark for each in answers for mark in each.all])
        for each in answers:
            choice = self._by_answer(request, each, rows)
            if choice is not None:
                return choice
        choice = _by_short_answer(answers, rows)
        if choice is not None:
            return choice
        ends = await self._turns.ending_at(request.agent, request.caller, _last_hashes(request.chain))
        sessions = {one.id: one for one in self._remembered_ends(request)}
        sessions |= {one.id: self._recent.latest(one) for one, _ in ends}
        choice = self._by_end(request, list(sessions.values()))
        if self._has_others and choice is not None and choice.session is not None:
            was_answered = {one.id: is_answered for one, is_answered in ends}
            id_ = choice.session.id
            if was_answered.get(id_) or self._recent.is_answered(choice.session):
                # The client has changed the answer, or another process is about to store a better session.
                if not is_last:
                    return _NEW
                choice = choice if id_ in was_answered else None  # otherwise it went on in another process
        return choice or await self._forked(request)

    async def _answered(self, marks: Sequence[bytes]) -> list[tuple[Answer, Session]]:
        """Return answers as they are stored or remembered."""
        remembered = self._recent.answers(marks)
        seen = {(row.mark, row.session_id) for row, _ in remembered}
        stored = await self._turns.answered(marks)
        more = [(row, self._recent.latest(one)) for row, one in stored if (row.mark, one.id) not in seen]
        return remembered + more

    def _by_answer(
        self, request: Conversation, marks: AnswerMarks, rows: Sequence[tuple[Answer, Session]]
    ) -> _Choice | None:
        for number, mark in enumerate(marks.exact):
            exact = [(row, one) for row, one in rows if row.mark == mark]
            if exact and (number == 0 or len(exact) == 1):
                return self._chosen(request, exact, is_cut=marks.is_cut)
        loose = {one.id: (row, one) for row, one in rows if row.mark in marks.loose}
        if len(loose) != 1:
            return None
        ((row, one),) = loose.values()
        return _Choice(one) if one.tip == row.tip or request.continues(one) else None

    def _chosen(
        self, request: Conversation, rows: Sequence[tuple[Answer, Session]], *, is_cut: bool = False
    ) -> _Choice:
        """Choose among sessions that got an answer which the request sends back.

        Several such sessions are the same word for word so far, unless the answer `is_cut`. Other processes may
        be about to choose one of them too.
        """
        if len(rows) > 1:
            setting = request.setting()
            rows = [(row, one) for row, one in rows if one.setting == setting] or rows
        going_on = [one for row, one in rows if one.tip == row.tip or request.continues(one)]
        if len(going_on) == 1 or (going_on and not is_cut and not self._has_others):
            return _Choice(max(going_on, key=lambda one: (one.messages, one.seen_at)))
        repeated = [one for _, one in rows if one.tip == request.tip and not self._recent.is_waiting(one)]
        if len(repeated) == 1 and not going_on:
            return _Choice(repeated[0])
        row, latest = max(rows, key=lambda each: each[1].seen_at)
        return _Choice(latest, forked_at=row.tip)

    def _repeated_beginning(self, request: Conversation) -> _Choice:
        """Choose the session that began with the same request and failed, if the client retries it."""
        failed = [one for one in self._recent.ending_at(request.caller, request.tip) if self._failed(one)]
        if request.is_retry and len(failed) == 1 and failed[0].setting == request.setting():
            return _Choice(failed[0])
        return _NEW

    def _like_another(self, request: Conversation) -> _Choice | None:
        """Begin a session if another one began with the same request: then the store knows nothing of it."""
        alike = self._recent.ending_at(request.caller, request.tip)
        began = [one for one in alike if one.first_messages == len(request.chain) and one.parent_id is None]
        return _Choice(None, known=len(request.chain), known_from=began[0].id) if began else None

    def _remembered_ends(self, request: Conversation) -> list[Session]:
        """Return those remembered sessions of which the request has all messages that end last in it."""
        ends = (self._recent.ending_at(request.caller, tip) for tip in _last_hashes(request.chain))
        return next(filter(None, ends), [])

    def _by_end(self, request: Conversation, sessions: Sequence[Session]) -> _Choice | None:
        """Choose the session that the request continues word for word, if there is one only."""
        repeated = [one for one in sessions if one.tip == request.tip]
        if repeated:
            is_retried = request.is_retry and len(repeated) == 1 and self._failed(repeated[0])
            return _Choice(repeated[0]) if is_retried else None
        ending = [one for one in sessions if request.continues(one)]
        longest = max((one.messages for one in ending), default=0)
        same = [one for one in ending if one.messages == longest]
        if len(same) != 1:
            return _NEW if same else None
        (one,) = same
        is_alike = one.setting in (None, request.setting()) or request.has_answer_before(longest)
        return _Choice(one) if is_alike else None

    def _failed(self, session: Session) -> bool:
        """Return whether the last request of a session is known to have had no answer."""
        return not self._recent.is_waiting(session) and not self._recent.is_answered(session)

    async def _forked(self, request: Conversation) -> _Choice:
        """Choose the session that the request forks from: they share an answer that it got after it began."""
        turn = await self._last_known(request)
        if turn is None:
            return _NEW
        known = turn.position + 1
        owner = self._recent.session(turn.session_id) or await self._turns.session(turn.session_id)
        if owner is None or owner.caller not in (None, request.caller):
            return _Choice(None, known=known, known_from=turn.session_id)
        is_shared = any(is_from_model(raw) for raw in request.messages[owner.first_messages : known])
        if is_shared:
            return _Choice(owner, turn.hash, known)
        return _Choice(None, known=known, known_from=turn.session_id)

    async def _last_known(self, request: Conversation) -> Turn | None:
        """Return the last of the request's last messages that is stored."""
        known = await self._turns.known(request.agent, _last_hashes(request.chain))
        return max(known.values(), key=lambda turn: turn.position, default=None)


def _by_short_answer(answers: Sequence[AnswerMarks], rows: Sequence[tuple[Answer, Session]]) -> _Choice | None:
    """Choose the session whose last answer was this short text, if the request has an earlier one of it too."""
    latest, *earlier = answers
    ending = {one.id: one for row, one in rows if row.mark in latest.short and one.tip == row.tip}
    if len(ending) != 1:
        return None
    ((id_, one),) = ending.items()
    others = {mark for each in earlier for mark in each.loose}
    return _Choice(one) if any(row.mark in others and row.session_id == id_ for row, _ in rows) else None


def _caller(request: Conversation) -> str:
    """Return the caller of a session; none if it has a name, which alone leads to it."""
    return request.caller if request.named is None else ""


def _last_hashes(chain: Chain) -> tuple[bytes, ...]:
    """Return the hashes at which a session may end that the chain goes on from, the last one first."""
    return chain.hashes[: -_LAST_MESSAGES - 1 : -1]
