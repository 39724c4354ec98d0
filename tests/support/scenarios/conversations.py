"""Workers that match requests to sessions and process the responses, without a gateway."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from foveate import formats
from foveate.formats.response.answers import MAX_TEXT_CHARS, AnswerParts
from foveate.gateway.server.broadcast import RING_BYTES, WorkerBroadcast
from foveate.model import Format
from foveate.session.answer_digests import make_answer_records
from foveate.session.hash_chain import compute_chain
from foveate.session.matching import SessionMatch, SessionMatcher, observe_conversation
from foveate.session.recent_sessions import Broadcast, InFlightRequest
from foveate.session.store import AnswerUpdate, SessionStore, SessionUpdate, SessionWrite

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def model(text: str) -> Message:
    return {"role": "assistant", "content": text}


def tool_call(call_id: str) -> Message:
    block = {"type": "tool_use", "id": call_id, "name": "read", "input": {"path": "a"}}
    return {"role": "assistant", "content": [block]}


def tool_result(call_id: str, text: str) -> Message:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}


def request_body(messages: Sequence[Message], *, system: str = "", tools: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "system": system,
        "tools": [{"name": name, "input_schema": {}} for name in tools],
        "messages": list(messages),
    }


@dataclass(eq=False)
class SentRequest:
    """A request without a response yet."""

    worker: "Worker"
    session_match: SessionMatch
    flight: InFlightRequest
    api_format: Format
    scope: str = ""

    @property
    def id(self) -> str:
        """Id of its session."""
        return self.session_match.session.id

    async def answer(self, text: str = "", *, calls: Sequence[str] = (), response: str = "") -> None:
        """Process a successful response."""
        parts = AnswerParts(id=response, tool_calls=tuple(calls), text="".join(text.split())[:MAX_TEXT_CHARS])
        await self._finish(parts)

    async def fail(self) -> None:
        """Process an error response."""
        await self._finish(None)

    async def _finish(self, parts: AnswerParts | None) -> None:
        session = self.session_match.session
        rows = []
        if parts is not None:
            rows = make_answer_records(session, self.api_format, parts, session.seen_at, scope=self.scope)
        self.flight.finish(rows, is_answered=parts is not None)
        if self.session_match.is_changed:
            self.worker.unstored.append(SessionUpdate(session=session, turns=self.session_match.turns))
        if rows:
            self.worker.unstored.append(AnswerUpdate(rows=rows))
        if not self.worker.stores_late:
            await self.worker.store()


def start_workers(store: SessionStore, *, count: int = 2, ring_bytes: int = RING_BYTES) -> list["Worker"]:
    """Start workers of one machine, which store nothing before `Worker.store`."""
    rings = WorkerBroadcast.create(count, ring_bytes=ring_bytes)
    broadcasts = [WorkerBroadcast(rings.descriptor, number, ring_bytes=ring_bytes) for number in range(count)]
    rings.close()
    return [Worker(store, broadcast=broadcast, stores_late=True) for broadcast in broadcasts]


class Worker:
    """One process of a gateway."""

    def __init__(
        self,
        turns: SessionStore,
        *,
        has_others: bool = False,
        broadcast: Broadcast | None = None,
        stores_late: bool = False,
    ) -> None:
        """`stores_late`: nothing is stored before `store`."""
        self.turns = turns
        self.stores_late = stores_late
        self.unstored: list[SessionWrite] = []
        self.sessions = SessionMatcher(
            turns, has_other_workers=has_others or broadcast is not None, broadcast=broadcast
        )
        self._times = count(1)

    async def store(self) -> None:
        await self.turns.save(self.unstored)
        self.unstored = []

    async def send(
        self,
        body: Mapping[str, Any],
        *,
        agent: str = "agent",
        caller: str = "key",
        scope: str = "",
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        now: float | None = None,
        api_format: Format = Format.ANTHROPIC,
        connection: int = 0,
    ) -> SentRequest:
        request = formats.parse_request(body, api_format)
        conversation = observe_conversation(
            request,
            compute_chain(request),
            agent=agent,
            caller=caller,
            scope=scope,
            header=name,
            headers=headers,
            connection=connection,
        )
        session_match = await self.sessions.find(
            conversation, now=float(next(self._times)) if now is None else now
        )
        flight = self.sessions.begin(session_match, connection=connection)
        return SentRequest(self, session_match, flight, request.format, scope)

    async def send_and_answer(self, *messages: Message, answer: str = "Yes.", **options: Any) -> SentRequest:
        request = await self.send(request_body(messages), **options)
        await request.answer(answer)
        return request
