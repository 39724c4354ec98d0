"""Sessions and turns stored in memory, and chains of short conversations."""

from collections.abc import Mapping, Sequence

from foveate.caching import hash_bytes
from foveate.session.hash_chain import HASH_BYTES, HashChain
from foveate.session.store import (
    AnswerRecord,
    AnswerUpdate,
    CountUpdate,
    Session,
    SessionUpdate,
    SessionWrite,
    Turn,
)


class InMemory:
    """Implements `Turns`."""

    def __init__(self) -> None:
        self.turns: dict[tuple[str, bytes], Turn] = {}
        self.sessions: dict[str, Session] = {}
        self.answers: dict[tuple[bytes, str], AnswerRecord] = {}
        self.counted: dict[tuple[str, bytes, str], bytes] = {}
        self.asked = 0  # how often it was asked for sessions, turns or answers
        self.asked_for_counts: list[int] = []

    async def find_turns(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        self.asked += 1
        return {one: self.turns[agent, one] for one in hashes if (agent, one) in self.turns}

    async def get_session(self, session_id: str) -> Session | None:
        self.asked += 1
        return self.sessions.get(session_id)

    async def find_answers(self, digests: Sequence[bytes]) -> Sequence[tuple[AnswerRecord, Session]]:
        self.asked += 1
        rows = [row for (mark, _), row in self.answers.items() if mark in digests]
        return [(row, self.sessions[row.session_id]) for row in rows if row.session_id in self.sessions]

    async def find_sessions_ending_at(
        self, agent: str, caller: str, tips: Sequence[bytes]
    ) -> Sequence[tuple[Session, bool]]:
        self.asked += 1
        own = [one for one in self.sessions.values() if one.agent == agent and one.caller in (None, caller)]
        answered = {(row.session_id, row.tip) for row in self.answers.values()}
        return [(one, (one.id, one.tip) in answered) for one in own if one.tip in tips]

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        for one in rows:
            if isinstance(one, CountUpdate):
                await self.save_counts(one.agent, one.counts, one.counter)
            elif isinstance(one, AnswerUpdate):
                self.answers |= {(row.digest, row.session_id): row for row in one.rows}
            else:
                self._move(one)

    def _move(self, move: SessionUpdate) -> None:
        there = self.sessions.get(move.session.id)
        if there is None or move.session.seen_at >= there.seen_at:
            self.sessions[move.session.id] = move.session
        for turn in move.turns:
            self.turns.setdefault((move.session.agent, turn.hash), turn)

    async def get_counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        self.asked_for_counts.append(len(hashes))
        found = {one: self.counted.get((agent, one, counter)) for one in hashes}
        return {one: counted for one, counted in found.items() if counted is not None}

    async def save_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        for one, counted in counts.items():
            self.counted[agent, one, counter] = counted


def words(*said: str) -> HashChain:
    """The chain of a conversation in which each message is a word."""
    hashes = [b"\0" * HASH_BYTES]
    for word in said:
        hashes.append(hash_bytes(hashes[-1], word.encode())[:HASH_BYTES])
    spellings = b"".join(hash_bytes(word.encode())[:HASH_BYTES] for word in said)
    return HashChain(leading_system_messages=0, hashes=tuple(hashes[1:]), spellings=spellings)
