"""Sessions and turns stored in memory, and chains of short conversations."""

from collections.abc import Mapping, Sequence

from foveate.session.chain import HASH_BYTES, Chain
from foveate.session.turns import Answer, Answers, CountRows, Move, Session, Stored, Turn
from foveate.tokens.memo import digest


class InMemory:
    """Implements `Turns`."""

    def __init__(self) -> None:
        self.turns: dict[tuple[str, bytes], Turn] = {}
        self.sessions: dict[str, Session] = {}
        self.answers: dict[tuple[bytes, str], Answer] = {}
        self.counted: dict[tuple[str, bytes, str], bytes] = {}
        self.asked = 0  # how often it was asked for sessions, turns or answers
        self.asked_for_counts: list[int] = []

    async def known(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        self.asked += 1
        return {one: self.turns[agent, one] for one in hashes if (agent, one) in self.turns}

    async def session(self, session_id: str) -> Session | None:
        self.asked += 1
        return self.sessions.get(session_id)

    async def answered(self, marks: Sequence[bytes]) -> Sequence[tuple[Answer, Session]]:
        self.asked += 1
        rows = [row for (mark, _), row in self.answers.items() if mark in marks]
        return [(row, self.sessions[row.session_id]) for row in rows if row.session_id in self.sessions]

    async def ending_at(self, agent: str, caller: str, tips: Sequence[bytes]) -> Sequence[tuple[Session, bool]]:
        self.asked += 1
        own = [one for one in self.sessions.values() if one.agent == agent and one.caller in (None, caller)]
        answered = {(row.session_id, row.tip) for row in self.answers.values()}
        return [(one, (one.id, one.tip) in answered) for one in own if one.tip in tips]

    async def keep(self, rows: Sequence[Stored]) -> None:
        for one in rows:
            if isinstance(one, CountRows):
                await self.keep_counts(one.agent, one.counts, one.counter)
            elif isinstance(one, Answers):
                self.answers |= {(row.mark, row.session_id): row for row in one.rows}
            else:
                self._move(one)

    def _move(self, move: Move) -> None:
        there = self.sessions.get(move.session.id)
        if there is None or move.session.seen_at >= there.seen_at:
            self.sessions[move.session.id] = move.session
        for turn in move.turns:
            self.turns.setdefault((move.session.agent, turn.hash), turn)

    async def counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        self.asked_for_counts.append(len(hashes))
        found = {one: self.counted.get((agent, one, counter)) for one in hashes}
        return {one: counted for one, counted in found.items() if counted is not None}

    async def keep_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        for one, counted in counts.items():
            self.counted[agent, one, counter] = counted


def words(*said: str) -> Chain:
    """The chain of a conversation in which each message is a word."""
    hashes = [b"\0" * HASH_BYTES]
    for word in said:
        hashes.append(digest(hashes[-1], word.encode())[:HASH_BYTES])
    spellings = b"".join(digest(word.encode())[:HASH_BYTES] for word in said)
    return Chain(head=0, hashes=tuple(hashes[1:]), spellings=spellings)
