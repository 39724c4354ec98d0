"""Which session a request belongs to: found by the hash chain of its messages, or named by a header.

A request that goes on from the tip of a session is of that session, and so is one that says again what the
session has said, or less. One that goes on from an earlier turn is a fork: a child of its own. So two sessions
with the same beginning are one until they differ. A named one may say what others have said: it then stands on
their turns, and is a child of theirs too.

Whatever is kept is kept whole and only where nothing came in between; else all is looked at again. Ids are made
of what makes a session new, so that two processes that see it first at the same time mean the same one.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from foveate.session.chain import HASH_BYTES, Chain
from foveate.session.turns import Session, Turn, Turns
from foveate.tokens.memo import Memo, digest

# Of a session that goes on, the last turns are asked for first: an answer, and the results of a few calls.
_LAST = 8
_KEPT_TIPS = 8 * 1024
# How many places of a chain are asked for at once where its known part ends further back.
_PLACES = 8
# How many hashes are asked for at once where each of them is.
_AT_ONCE = 500
# What says nothing new of a session that was seen so lately is not written down.
_LATELY_SECONDS = 60.0
# So long a fork waits for what it stands on, which is kept once it is answered.
_ARRIVES_SECONDS = 600.0
# Each time somebody else was quicker, so that many requests of one session would have to come at once.
_ATTEMPTS = 16
# From this attempt on nothing is taken for granted, such as that a turn is known with all before it.
_DOUBTFUL = 2


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a request as it is with it, and how many of the request's messages were `known` before."""

    session: Session
    known: int
    is_new: bool
    is_fork: bool


class _Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How far a chain is known: its last known turn, and the positions of those that are not."""

    turn: Turn | None
    known: int
    missing: Sequence[int]


class Tips:
    """Sessions as this process last kept them, by their tips, so that who goes on from one asks nothing first.

    What is remembered may be old: it is only tried, and keeping it is refused where it no longer holds.
    """

    def __init__(self) -> None:
        self._kept: Memo[Session] = Memo(_KEPT_TIPS)
        self._left: Memo[_Left] = Memo(_KEPT_TIPS)

    def last_of(self, agent: str, chain: Chain) -> tuple[int, Session | None]:
        """The last place of a chain that is a session's tip, of those that are looked at first; -1 for none."""
        for at in range(len(chain) - 1, max(-1, len(chain) - 1 - _LAST), -1):
            if (found := self._kept.get((agent, chain.hashes[at]))) is not None:
                return at, found
        return -1, None

    def put(self, session: Session) -> None:
        """Remember a session that was just kept."""
        self._kept.put((session.agent, session.tip), session)

    def leave(self, session: Session, new: Sequence[Turn], then: Session) -> "_Left":
        """A session is about to go on from its tip with `new` turns: who goes on otherwise makes a fork.

        `then` is the session once it has.
        """
        key = session.agent, session.tip
        self._kept.forget(key)
        pending = _Left(session, tuple([turn.hash for turn in new]), then)
        self._left.put(key, pending)
        return pending

    def begin(self, session: Session) -> "_Left":
        """Remember a new session whose write is pending, so that its next request need not wait for it."""
        pending = _Left(session, (), session)
        self._left.put((session.agent, session.tip), pending)
        return pending

    def has_left(self, session: Session) -> bool:
        """Whether a session is about to go on from its tip."""
        return self._left.get((session.agent, session.tip)) is not None

    def about_to_be(self, agent: str, chain: Chain) -> "tuple[int, _Left | None]":
        """The last place of a chain that will be a session's tip once what is under way is kept; or -1."""
        for at in range(len(chain) - 2, max(-1, len(chain) - 1 - _LAST), -1):
            left = self._left.get((agent, chain.hashes[at]))
            if left is not None:
                last = at + len(left.new)
                goes_on = last < len(chain) - 1 and chain.hashes[at + 1 : last + 1] == left.new
                return (last, left) if goes_on else (-1, None)
        return -1, None

    def parted(self, agent: str, chain: Chain) -> "tuple[int, _Left | None]":
        """The last place that a chain shares with a session that is about to go on otherwise.

        -1 where there is none, or where it says the same.
        """
        for at in range(len(chain) - 2, max(-1, len(chain) - 1 - _LAST), -1):
            left = self._left.get((agent, chain.hashes[at]))
            if left is not None:
                said = zip(chain.hashes[at + 1 :], left.new, strict=False)
                shared = next((number for number, (one, other) in enumerate(said) if one != other), -1)
                return (at + shared, left) if shared >= 0 else (-1, None)
        return -1, None

    def arrived(self, pending: "_Left | None", session: Session, *, is_kept: bool) -> None:
        """A pending write is done, as it was meant to be or otherwise; `session` is what is stored now."""
        if pending is not None:
            self.end(pending, is_kept=is_kept)
        if not self.has_left(session):
            self.put(session)

    def end(self, pending: "_Left", *, is_kept: bool) -> None:
        """Wake those that wait for a pending write, and forget it."""
        pending.is_kept = is_kept
        pending.arrived.set()
        key = pending.session.agent, pending.session.tip
        if self._left.get(key) is pending:
            self._left.forget(key)


class _Left:
    """A session that is about to go on from its tip: it `is_kept` so or is being; then it has `arrived`."""

    def __init__(self, session: Session, new: tuple[bytes, ...], then: Session) -> None:
        self.session = session
        self.new = new
        self.then = then
        self.arrived = asyncio.Event()
        self.is_kept = False


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """The session that a request is taken to be of, by what this process remembers.

    Where it `is_news`, it is to be kept with its `new` turns; `after` is the tip that it had. A fork, and what
    goes on before that is kept, stands on what the session that it is `behind` is about to say. `pending` is
    this write, for those that follow it; a session that a header names (`named`, its id) has none.
    """

    found: Found
    new: Sequence[Turn]
    after: bytes | None
    is_news: bool = True
    behind: "_Left | None" = None
    pending: "_Left | None" = None
    named: str | None = None
    has_new_parent: bool = False


def guess(agent: str, chain: Chain, tips: Tips, *, now: float, forks: bool = True) -> Guess | None:
    """The session that a request goes on from, as this process knows it; None where it has to be looked for.

    Nobody is asked: what goes on from where a session was left is taken for that session, and what begins for a
    new one. Other processes may know better, so it is to be confirmed before the client can go on. Without
    `forks` what goes on from where a session is about to leave has to be looked for too.
    """
    request = _Request(agent=agent, chain=chain, now=now, named=None)
    at, there = tips.last_of(agent, chain)
    behind: _Left | None = None
    if there is None and len(chain) != 1 and forks:
        at, behind = tips.about_to_be(agent, chain)
        there = None if behind is None else behind.then
    if there is None and len(chain) != 1:
        at, left = tips.parted(agent, chain) if forks else (-1, None)
        if left is None:
            return None
        turn = Turn(hash=chain.hashes[at], position=at, session_id=left.session.id)
        reached = _Reached(turn=turn, known=at + 1, missing=range(at + 1, len(chain)))
        found = request.fork(turn, at + 1, frozenset())
        new = request.turns(reached, found)
        return Guess(
            found=found,
            new=new,
            after=None,
            behind=left,
            pending=tips.begin(found.session),
            has_new_parent=True,
        )
    if there is None:
        found = request.first(frozenset())
        first = Turn(hash=chain.hashes[0], position=0, session_id=found.session.id)
        return Guess(found=found, new=(first,), after=None, pending=tips.begin(found.session))
    if behind is None and at + 1 == len(chain) and there.seen_at <= now < there.seen_at + _LATELY_SECONDS:
        found = Found(session=there, known=at + 1, is_new=False, is_fork=False)
        return Guess(found=found, new=(), after=there.tip, is_news=False)
    turn = Turn(hash=there.tip, position=at, session_id=there.id)
    reached = _Reached(turn=turn, known=at + 1, missing=range(at + 1, len(chain)))
    found = request.decided(reached, there, frozenset())
    new = request.turns(reached, found)
    pending = tips.leave(there, new, found.session) if new else None
    return Guess(found=found, new=new, after=there.tip, behind=behind, pending=pending)


async def look_up(
    agent: str, chain: Chain, turns: Turns, tips: Tips, *, now: float, header_id: str | None = None
) -> Guess:
    """The session of a request by what is stored of it. Reads only, so no request waits for a writer.

    Another process may not have stored an earlier turn yet. Ids are made of what makes a session new, so the
    session is found all the same, with fewer known turns.
    """
    request = _Request.of(agent, chain, now, header_id)
    if not chain and header_id is None:
        return Guess(found=request.first(frozenset()), new=(), after=None, is_news=False)
    there, found, new = await _decided(request, turns, frozenset(), doubtful=False)
    for _ in range(_ATTEMPTS if found.is_fork else 0):
        # Another process may have moved the tip between reading the turns and the session: look again.
        seen_id = found.session.id
        there, found, new = await _decided(request, turns, frozenset(), doubtful=False)
        if found.session.id == seen_id:
            break
    session = found.session
    parent_id = there.parent_id if there is not None and not found.is_new else None
    has_new_parent = session.parent_id != parent_id
    was_seen_lately = there is not None and there.seen_at <= now < there.seen_at + _LATELY_SECONDS
    pending: _Left | None = None
    if header_id is None and there is not None and new and not found.is_new:
        pending = tips.leave(there, new, session)
    elif header_id is None and found.is_new:
        pending = tips.begin(session)
    return Guess(
        found=found,
        new=new,
        after=there.tip if there is not None and not found.is_new else None,
        is_news=bool(new) or found.is_new or has_new_parent or not was_seen_lately,
        pending=pending,
        named=request.named,
        has_new_parent=has_new_parent,
    )


async def confirm(guessed: Guess, chain: Chain, turns: Turns, tips: Tips) -> Found:
    """The session of a request, kept with its new turns: the one that was guessed, or what it is in truth."""
    session = guessed.found.session
    if not guessed.is_news:
        return guessed.found
    found, pending = guessed.found, guessed.pending
    try:
        stands = guessed.behind is None or await _stands(guessed.behind)
        is_kept = stands and await turns.keep(session, guessed.new, after=guessed.after)
        if not is_kept:
            request = _Request(agent=session.agent, chain=chain, now=session.seen_at, named=guessed.named)
            found = await _found(request, turns)
    except BaseException:
        if pending is not None:
            tips.end(pending, is_kept=False)
        raise
    if guessed.named is None:
        tips.arrived(pending, found.session, is_kept=is_kept)
    return found


async def _stands(left: _Left) -> bool:
    """Whether a session went on as it was about to."""
    with suppress(TimeoutError):
        await asyncio.wait_for(left.arrived.wait(), _ARRIVES_SECONDS)
    return left.is_kept


async def find(
    agent: str,
    chain: Chain,
    turns: Turns,
    *,
    now: float,
    header_id: str | None = None,
    tips: Tips | None = None,
) -> Found:
    """The session of a request with that chain, kept in `turns` with all turns of it that are new.

    A session that a header names is that agent's session of this name, whatever its messages are. A request
    without any message is of a session of its own, which is not kept unless it is named. With `tips` of the
    same `turns`, a session that goes on as it did last costs one question.
    """
    request = _Request.of(agent, chain, now, header_id)
    if not chain and header_id is None:
        return request.first(frozenset())
    if tips is None or header_id is not None:
        return await _found(request, turns)
    guessed = guess(agent, chain, tips, now=now, forks=False)
    if guessed is not None:
        return await confirm(guessed, chain, turns, tips)
    found = await _found(request, turns)
    tips.put(found.session)
    return found


async def _found(request: "_Request", turns: Turns) -> Found:
    taken: set[str] = set()
    for attempt in range(_ATTEMPTS):
        there, found, new = await _decided(request, turns, taken, doubtful=attempt >= _DOUBTFUL)
        after = there.tip if there is not None and not found.is_new else None
        if await turns.keep(found.session, new, after=after) or not (new or found.is_new):
            break
        if found.is_new:
            taken.add(found.session.id)
    return found


async def _decided(
    request: "_Request", turns: Turns, taken: Set[str], *, doubtful: bool
) -> tuple[Session | None, Found, list[Turn]]:
    """The session that is stored, if any; the session of the request; and the turns that are new."""
    reached = await _reached(request.agent, request.chain.hashes, turns, doubtful=doubtful)
    if doubtful and request.named and reached.turn and not await turns.session(reached.turn.session_id):
        # The session was forgotten, and its turns were not: nobody can stand on it.
        reached = replace(reached, turn=replace(reached.turn, session_id=request.named))
    holder = request.named or (reached.turn.session_id if reached.turn else None)
    there = await turns.session(holder) if holder else None
    found = request.decided(reached, there, taken)
    return there, found, request.turns(reached, found)


def named_id(agent: str, name: str) -> str:
    """The id of the session that an agent's client calls by a name."""
    return session_id("named", agent, name)


def session_id(*made_of: str | bytes) -> str:
    """The id of the session that is told by all of these."""
    parts = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in made_of]
    return digest(b"session", *parts)[:HASH_BYTES].hex()


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request it is, what it says, and the id of its session where a header names one."""

    agent: str
    chain: Chain
    now: float
    named: str | None

    @classmethod
    def of(cls, agent: str, chain: Chain, now: float, header_id: str | None) -> "_Request":
        """A request whose session a header may name."""
        named = None if header_id is None else named_id(agent, header_id)
        return cls(agent=agent, chain=chain, now=now, named=named)

    def decided(self, reached: _Reached, there: Session | None, taken: Set[str]) -> Found:
        """Its session; `there` is the named one, or else the one that the last known turn is of.

        Ids in `taken` belong to sessions that are only half forgotten, and cannot be those of new ones.
        """
        turn, known = reached.turn, reached.known
        if there is not None:
            goes_on = self.named is not None or (turn is not None and turn.hash == there.tip)
            if goes_on or known == len(self.chain):
                return self._of(self._standing(there, turn), known, goes_on=goes_on)
        if turn is None:
            return self.first(taken)
        if self.named is not None:
            session = self._standing(self._new(self.named), turn)
            return Found(session=session, known=known, is_new=True, is_fork=False)
        if there is None:  # the session was forgotten, and its turns were not
            return Found(session=self._new(turn.session_id), known=known, is_new=True, is_fork=False)
        return self.fork(turn, known, taken)

    def turns(self, reached: _Reached, found: Found) -> list[Turn]:
        """Those that are new, as turns of the session that was found."""
        hashes, own_id = self.chain.hashes, found.session.id
        return [Turn(hash=hashes[at], position=at, session_id=own_id) for at in reached.missing]

    def first(self, taken: Set[str]) -> Found:
        """A session of which no turn is known."""
        session = self._new(self.named or _free(taken, "first", self.agent, *self.chain.hashes[:1]))
        return Found(session=session, known=0, is_new=True, is_fork=False)

    def _of(self, there: Session, known: int, *, goes_on: bool) -> Found:
        moves = goes_on and len(self.chain) > 0
        session = Session(
            id=there.id,
            agent=there.agent,
            tip=self.chain.hashes[-1] if moves else there.tip,
            messages=len(self.chain) if moves else there.messages,
            created_at=there.created_at,
            seen_at=max(there.seen_at, self.now),
            parent_id=there.parent_id,
            forked_at=there.forked_at,
        )
        return Found(session=session, known=known, is_new=False, is_fork=False)

    def _standing(self, session: Session, turn: Turn | None) -> Session:
        """A session with the one whose turns it goes on from: one that is named may do so from anybody's."""
        if turn is None or turn.session_id == session.id:
            return session
        return replace(session, parent_id=turn.session_id, forked_at=turn.hash)

    def fork(self, turn: Turn, known: int, taken: Set[str]) -> Found:
        """A child, told by the last turn that it shares with its parent and the first that is its own."""
        own_id = _free(taken, "fork", self.agent, *self.chain.hashes[known - 1 : known + 1])
        session = replace(self._new(own_id), parent_id=turn.session_id, forked_at=turn.hash)
        return Found(session=session, known=known, is_new=True, is_fork=True)

    def _new(self, own_id: str) -> Session:
        return Session(
            id=own_id,
            agent=self.agent,
            tip=self.chain.hashes[-1] if self.chain else b"",
            messages=len(self.chain),
            created_at=self.now,
            seen_at=self.now,
        )


def _free(taken: Set[str], *made_of: str | bytes) -> str:
    """The first id of those that are told by these which is not `taken`."""
    for number in range(len(taken)):
        if (found := session_id(*made_of, number.to_bytes(2, "little"))) not in taken:
            return found
    return session_id(*made_of, len(taken).to_bytes(2, "little"))


async def _reached(agent: str, hashes: Sequence[bytes], turns: Turns, *, doubtful: bool) -> _Reached:
    if not doubtful:
        last, seen = await _last_known(agent, hashes, turns)
        missing: Sequence[int] = range(last + 1, len(hashes))
    else:
        seen = await _each_known(agent, hashes, turns)
        last = max((at for at, one in enumerate(hashes) if one in seen), default=-1)
        missing = [at for at, one in enumerate(hashes) if one not in seen]
    return _Reached(turn=seen[hashes[last]] if last >= 0 else None, known=last + 1, missing=missing)


async def _each_known(agent: str, hashes: Sequence[bytes], turns: Turns) -> Mapping[bytes, Turn]:
    seen: dict[bytes, Turn] = {}
    for start in range(0, len(hashes), _AT_ONCE):
        seen.update(await turns.known(agent, hashes[start : start + _AT_ONCE]))
    return seen


async def _last_known(agent: str, hashes: Sequence[bytes], turns: Turns) -> tuple[int, Mapping[bytes, Turn]]:
    """The position of the last known turn, -1 for none; a turn is known with all before it."""
    if not hashes:
        return -1, {}
    places: Sequence[int] = sorted({0, *range(max(0, len(hashes) - _LAST), len(hashes))})
    known, unknown = -1, len(hashes)
    seen: dict[bytes, Turn] = {}
    while places:
        seen.update(await turns.known(agent, [hashes[at] for at in places]))
        known = max((at for at in places if hashes[at] in seen), default=known)
        unknown = min((at for at in places if at > known and hashes[at] not in seen), default=unknown)
        places = _between(known, unknown)
    return known, seen


def _between(known: int, unknown: int) -> Sequence[int]:
    """Places that share out what lies between; all of it where that is little."""
    gap = unknown - known - 1
    count = min(gap, _PLACES)
    return [known + (number * (gap + 1)) // (count + 1) for number in range(1, count + 1)]
