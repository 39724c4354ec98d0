"""Turns kept in memory, and processes that take turns at every question they ask."""

from collections.abc import Coroutine, Generator, Mapping, Sequence
from typing import Any, TypeVar

from foveate.session.chain import HASH_BYTES, Chain
from foveate.session.turns import CountRows, Move, Session, Turn
from foveate.tokens.memo import digest

Answer = TypeVar("Answer")


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


class InMemory:
    """Implements `Turns`. Others may get in before every answer; one answer is given in one go."""

    def __init__(self, *, pauses: bool = False) -> None:
        self.turns: dict[tuple[str, bytes], Turn] = {}
        self.sessions: dict[str, Session] = {}
        self.counted: dict[tuple[str, bytes, str], bytes] = {}
        self.asked: list[int] = []  # of each question for turns, of how many
        self.asked_for_counts: list[int] = []
        self._pauses = pauses

    async def known(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        await self._pause()
        self.asked.append(len(hashes))
        return {one: self.turns[agent, one] for one in hashes if (agent, one) in self.turns}

    async def session(self, session_id: str) -> Session | None:
        await self._pause()
        return self.sessions.get(session_id)

    async def keep(self, session: Session, turns: Sequence[Turn], *, after: bytes | None) -> bool:
        await self._pause()
        there = self.sessions.get(session.id)
        if (there.tip if there else None) != after:
            return False
        new_parent = session.parent_id if not there or there.parent_id != session.parent_id else None
        if new_parent is not None and new_parent not in self.sessions:
            return False
        if any((session.agent, turn.hash) in self.turns for turn in turns):
            return False
        self.sessions[session.id] = session
        self.turns |= {(session.agent, turn.hash): turn for turn in turns}
        return True

    async def keep_all(self, rows: Sequence[Move | CountRows]) -> bool:
        before = dict(self.sessions), dict(self.turns), dict(self.counted)
        for one in rows:
            if isinstance(one, CountRows):
                await self.keep_counts(one.agent, one.counts, one.counter)
            elif not await self.keep(one.session, one.turns, after=one.after):
                self.sessions, self.turns, self.counted = before
                return False
        return True

    async def counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        await self._pause()
        self.asked_for_counts.append(len(hashes))
        found = {one: self.counted.get((agent, one, counter)) for one in hashes}
        return {one: counted for one, counted in found.items() if counted is not None}

    async def keep_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        await self._pause()
        for one, counted in counts.items():
            self.counted[agent, one, counter] = counted

    async def _pause(self) -> None:
        if self._pauses:
            await _Pause()

    def path(self, session: Session) -> list[bytes]:
        """The hashes of all turns of a session, those that it has from its parent first."""
        before: list[bytes] = []
        if session.parent_id is not None and session.forked_at is not None:
            before = self.path(self.sessions[session.parent_id])
            before = before[: before.index(session.forked_at) + 1]
        own = [turn for turn in self.turns.values() if turn.session_id == session.id]
        own.sort(key=lambda turn: turn.position)
        assert [turn.position for turn in own] == list(range(len(before), len(before) + len(own)))
        return before + [turn.hash for turn in own]


def words(*said: str) -> Chain:
    """The chain of a conversation in which each message is a word."""
    hashes = [b"\0" * HASH_BYTES]
    for word in said:
        hashes.append(digest(hashes[-1], word.encode())[:HASH_BYTES])
    spellings = b"".join(digest(word.encode())[:HASH_BYTES] for word in said)
    return Chain(head=0, hashes=tuple(hashes[1:]), spellings=spellings)


def side_by_side(runs: Sequence[Coroutine[Any, Any, Answer]], order: Sequence[int]) -> list[Answer]:
    """What each gives; at every pause `order` says who is next, and when it ends they go on one by one."""
    waiting = dict(enumerate(runs))
    answers: dict[int, Answer] = {}
    turns = iter(order)
    while waiting:
        chosen = list(waiting)[next(turns, 0) % len(waiting)]
        try:
            waiting[chosen].send(None)
        except StopIteration as finished:
            answers[chosen] = finished.value
            del waiting[chosen]
    return [answers[number] for number in range(len(runs))]
