"""Workers that find the sessions of requests and are told the answers, without a gateway around them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from foveate import wire
from foveate.session.answers import answer_rows
from foveate.session.chain import chain_of
from foveate.session.conversation import conversation_of
from foveate.session.recent_sessions import Flight
from foveate.session.sessions import Found, Sessions
from foveate.session.turns import Answers, Move, Turns
from foveate.values import Format
from foveate.wire.answer_parts import MAX_TEXT_CHARS, AnswerParts

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def model(text: str) -> Message:
    return {"role": "assistant", "content": text}


def tool_call(call_id: str) -> Message:
    """What a model says that calls a tool."""
    block = {"type": "tool_use", "id": call_id, "name": "read", "input": {"path": "a"}}
    return {"role": "assistant", "content": [block]}


def tool_result(call_id: str, text: str) -> Message:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}


def body_of(messages: Sequence[Message], *, system: str = "", tools: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "system": system,
        "tools": [{"name": name, "input_schema": {}} for name in tools],
        "messages": list(messages),
    }


@dataclass(eq=False)
class Sent:
    """A request that was sent and is not answered yet."""

    worker: "Worker"
    found: Found
    flight: Flight
    spoken: Format
    scope: str = ""

    @property
    def id(self) -> str:
        """The id of its session."""
        return self.found.session.id

    async def answered(self, text: str = "", *, calls: Sequence[str] = (), response: str = "") -> None:
        """The upstream answers it."""
        parts = AnswerParts(id=response, tool_calls=tuple(calls), text="".join(text.split())[:MAX_TEXT_CHARS])
        await self._over(parts)

    async def failed(self) -> None:
        """The upstream answers it with an error."""
        await self._over(None)

    async def _over(self, parts: AnswerParts | None) -> None:
        session, turns = self.found.session, self.worker.turns
        rows = []
        if parts is not None:
            rows = answer_rows(session, self.spoken, parts, session.seen_at, scope=self.scope)
        self.worker.sessions.end(session, self.flight, rows, is_answered=parts is not None)
        if self.found.is_changed:
            await turns.keep([Move(session=session, turns=self.found.turns)])
        if rows:
            await turns.keep([Answers(rows=rows)])


class Worker:
    """One process of a gateway."""

    def __init__(self, turns: Turns, *, has_others: bool = False) -> None:
        self.turns = turns
        self.waited = 0
        self.while_waiting: Callable[[], Awaitable[None]] | None = None

        async def sleep(_: float) -> None:
            self.waited += 1
            if self.while_waiting is not None:
                await self.while_waiting()

        self.sessions = Sessions(turns, has_others=has_others, sleep=sleep)
        self._times = count(1)

    async def ask(
        self,
        body: Mapping[str, Any],
        *,
        agent: str = "agent",
        caller: str = "key",
        scope: str = "",
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        now: float | None = None,
        spoken: Format = Format.ANTHROPIC,
    ) -> Sent:
        """Have a request sent."""
        request = wire.read(body, spoken)
        conversation = conversation_of(
            request, chain_of(request), agent=agent, caller=caller, scope=scope, header=name, headers=headers
        )
        found = await self.sessions.find(conversation, now=float(next(self._times)) if now is None else now)
        return Sent(self, found, self.sessions.begin(found), request.format, scope)

    async def say(self, *messages: Message, answer: str = "Yes.", **more: Any) -> Sent:
        """Have messages sent and answered."""
        sent = await self.ask(body_of(messages), **more)
        await sent.answered(answer)
        return sent
