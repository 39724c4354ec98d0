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


class InMemorySessionStore:
    """Implements `Turns`."""

    def __init__(self) -> None:
        self.turns: dict[tuple[str, bytes], Turn] = {}
        self.sessions: dict[str, Session] = {}
        self.answers: dict[tuple[bytes, str], AnswerRecord] = {}
        self.counted: dict[tuple[str, bytes, str], bytes] = {}
        self.query_count = 0  # queries for sessions, turns or answers
        self.count_query_sizes: list[int] = []

    async def find_turns(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        self.query_count += 1
        return {item: self.turns[agent, item] for item in hashes if (agent, item) in self.turns}

    async def get_session(self, session_id: str) -> Session | None:
        self.query_count += 1
        return self.sessions.get(session_id)

    async def find_answers(self, digests: Sequence[bytes]) -> Sequence[tuple[AnswerRecord, Session]]:
        self.query_count += 1
        rows = [row for (digest, _), row in self.answers.items() if digest in digests]
        return [(row, self.sessions[row.session_id]) for row in rows if row.session_id in self.sessions]

    async def find_sessions_ending_at(
        self, agent: str, caller: str, last_hashes: Sequence[bytes]
    ) -> Sequence[Session]:
        self.query_count += 1
        own = [item for item in self.sessions.values() if item.agent == agent and item.caller in (None, caller)]
        return [item for item in own if item.tip in last_hashes]

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        for item in rows:
            if isinstance(item, CountUpdate):
                await self.save_counts(item.agent, item.counts, item.counter)
            elif isinstance(item, AnswerUpdate):
                self.answers |= {(row.digest, row.session_id): row for row in item.rows}
            else:
                self._move(item)

    def _move(self, move: SessionUpdate) -> None:
        current = self.sessions.get(move.session.id)
        if current is None or move.session.seen_at >= current.seen_at:
            self.sessions[move.session.id] = move.session
        for turn in move.turns:
            self.turns.setdefault((move.session.agent, turn.hash), turn)

    async def get_counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        self.count_query_sizes.append(len(hashes))
        counts = {item: self.counted.get((agent, item, counter)) for item in hashes}
        return {item: counted for item, counted in counts.items() if counted is not None}

    async def save_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        for item, counted in counts.items():
            self.counted[agent, item, counter] = counted


def words(*message_words: str) -> HashChain:
    """Return the hash chain of a conversation in which each message is a word."""
    hashes = [b"\0" * HASH_BYTES]
    for word in message_words:
        hashes.append(hash_bytes(hashes[-1], word.encode())[:HASH_BYTES])
    spellings = b"".join(hash_bytes(word.encode())[:HASH_BYTES] for word in message_words)
    return HashChain(leading_system_messages=0, hashes=tuple(hashes[1:]), spellings=spellings)
