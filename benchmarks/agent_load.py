"""Load that looks like agents: each waits for its model and pauses, in sessions of ten turns.

Every request has the whole history. `run_agents` sends the load from separate processes; `slow_provider` runs
a model that takes some time to respond.
"""

import asyncio
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from benchmarks.gateway_processes import Server, cpu_seconds, start_process
from benchmarks.gateway_requests import KEY, MODEL
from benchmarks.harness import BadData

DIRECT = "direct"
MODEL_SECONDS, THINKING_SECONDS = 0.3, 0.1
_WARM_UP_SECONDS = 3.0
_PROCESSES = 2
_TURNS, _FIRST_WORDS = 10, 300
_REPLY = "ok " * 40
_READ_BYTES = 64 * 1024
_WORDS = [f"{chr(97 + first) * 2}{chr(97 + second) * 2}" for first in range(26) for second in range(26)]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an agent. `ended_at` is by the clock that all processes share."""

    ended_at: float
    seconds: float
    is_answered: bool
    turn: int
    """Number of the call in its session, from 0."""
    agent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Calls after the warm-up, and the server's CPU time of all calls."""

    calls: list[Call]
    cpu_us: float

    @property
    def per_second(self) -> float:
        """The sum of what each agent got between its first and its last response.

        The number of calls within a time depends on when the agents happened to start, by half a percent.
        """
        times_by_agent: dict[int, list[float]] = {}
        for call in self.calls:
            if call.is_answered:
                times_by_agent.setdefault(call.agent, []).append(call.ended_at)
        return sum(
            (len(times) - 1) / (times[-1] - times[0]) for times in times_by_agent.values() if len(times) > 1
        )

    @property
    def answered_share(self) -> float:
        return sum(call.is_answered for call in self.calls) / len(self.calls)

    def percentile_ms(self, share: float) -> float:
        milliseconds = sorted(1e3 * call.seconds for call in self.calls)
        return milliseconds[int(share * len(milliseconds))]


def run_agents(
    server: Server, agents: int, seconds: float, *, thinking_seconds: float = THINKING_SECONDS
) -> LoadResult:
    """Send the requests of `agents` agents to a server. The first seconds are not counted."""
    cpu = cpu_seconds(server.pid)
    with multiprocessing.get_context("spawn").Pool(_PROCESSES) as pool:
        shares = [
            (server.port, 1_000 * number, agents // _PROCESSES, seconds, thinking_seconds)
            for number in range(_PROCESSES)
        ]
        calls = sorted(
            (call for some in pool.starmap(_run_agents_here, shares) for call in some),
            key=lambda call: call.ended_at,
        )
    spent = cpu_seconds(server.pid) - cpu
    first = calls[0].ended_at + _WARM_UP_SECONDS if calls else 0.0
    counted = [call for call in calls if call.ended_at >= first]
    if not counted:
        raise BadData(f"{server.name} answered nothing within {seconds:g} s")
    return LoadResult(calls=counted, cpu_us=round(1e6 * spent / len(calls), 1))


def _run_agents_here(
    port: int, first_seed: int, agents: int, seconds: float, thinking_seconds: float
) -> list[Call]:
    import uvloop

    calls: list[Call] = []

    async def run_all() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(
            *(_run_agent(port, first_seed + index, until, thinking_seconds, calls) for index in range(agents))
        )

    uvloop.run(run_all())
    return calls


async def _run_agent(port: int, seed: int, until: float, thinking_seconds: float, calls: list[Call]) -> None:
    agent = _Agent(seed, until, thinking_seconds, calls)
    await asyncio.sleep(agent.chance.random() * (MODEL_SECONDS + THINKING_SECONDS))
    await asyncio.get_running_loop().create_connection(lambda: agent, "127.0.0.1", port)
    await agent.has_ended


class _Agent(asyncio.Protocol):
    """An agent at its connection, until a time.

    It shares the cores with the server that it measures, so it has callbacks: streams and tasks take a third
    more CPU.
    """

    def __init__(self, seed: int, until: float, thinking_seconds: float, calls: list[Call]) -> None:
        self.chance = random.Random(f"{seed} {until}")  # sessions of one measurement do not occur in another
        self.has_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seed = seed
        self._name = f"agent-{seed % 50}"
        self._until = until
        self._thinking_seconds = thinking_seconds
        self._calls = calls
        self._messages: list[str] = []
        self._turn = 0
        self._received = b""
        self._started_at = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.has_ended.done():
            self.has_ended.set_exception(exc or ConnectionError("the server closed the connection"))

    def _send_request(self) -> None:
        if time.monotonic() >= self._until:
            self.has_ended.set_result(None)
            self._transport.close()
            return
        if self._turn % _TURNS == 0:
            self._messages = [_make_opening(self.chance)]
        else:
            self._messages += [_REPLY_MESSAGE, _make_message("user", f"go on {self._turn}")]
        request = _make_request(self._messages, self._name)
        self._started_at = time.monotonic()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        status = _read_status(self._received)
        if status is None:
            return
        ended_at = time.monotonic()
        self._received = b""
        self._calls.append(
            Call(
                ended_at=ended_at,
                seconds=ended_at - self._started_at,
                is_answered=status == HTTPStatus.OK,
                turn=self._turn % _TURNS,
                agent=self._seed,
            )
        )
        self._turn += 1
        asyncio.get_running_loop().call_later(self._thinking_seconds, self._send_request)


def _read_status(response: bytes) -> int | None:
    """Return the status of a response; None unless it is complete."""
    head, has_head, body = response.partition(b"\r\n\r\n")
    if not has_head:
        return None
    _, is_sized, rest = head.lower().partition(b"content-length:")
    is_complete = len(body) >= int(rest.split(b"\r\n")[0]) if is_sized else body.endswith(b"0\r\n\r\n")
    return int(head[9:12]) if is_complete else None


def send_in_turn(server: Server, kind: str, *, seed: int, count: int) -> None:
    """Send requests one after another: one `repeated`, each a `new_session`, or each with `new_tokens`."""

    async def send_all() -> None:
        chance = random.Random(f"{kind} {seed}")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        messages = [_make_opening(random.Random("repeated") if kind == "repeated" else chance)]
        for turn in range(count):
            if kind == "new_session" or (kind == "new_tokens" and turn % _TURNS == 0):
                messages = [_make_opening(chance)]
            elif kind == "new_tokens":
                messages += [_REPLY_MESSAGE, _make_opening(chance)]
            writer.write(_make_request(messages, "agent"))
            if await _read_response(reader) != HTTPStatus.OK:
                raise BadData(f"{server.name} did not answer a request of the kind {kind}")
        writer.close()

    asyncio.run(send_all())


def _make_opening(chance: random.Random) -> str:
    return _make_message("user", " ".join(chance.choices(_WORDS, k=_FIRST_WORDS)))


def _make_message(role: str, content: str) -> str:
    return json.dumps({"role": role, "content": content})


_REPLY_MESSAGE = _make_message("assistant", _REPLY)


def _make_request(messages: Sequence[str], agent: str) -> bytes:
    body = f'{{"model": "{MODEL}", "max_tokens": 100, "messages": [{", ".join(messages)}]}}'
    head = (
        f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
        f"anthropic-version: 2023-06-01\r\nx-foveate-agent: {agent}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


async def _read_response(reader: asyncio.StreamReader) -> int:
    """Return the status of a response once it is complete."""
    response = b""
    while (status := _read_status(response)) is None:
        data = await reader.read(_READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        response += data
    return status


@contextmanager
def slow_provider(folder: Path, model_seconds: float = MODEL_SECONDS) -> Iterator[Server]:
    """Run a provider whose model takes some time."""
    log = folder / f"provider-{model_seconds:g}.log"
    with start_process([sys.executable, "-m", "benchmarks.agent_load", str(model_seconds)], log=log) as process:
        assert process.stdout is not None
        yield Server(DIRECT, int(process.stdout.readline()), process.pid, log)


class _ProviderConnection(asyncio.Protocol):
    def __init__(self, model_seconds: float) -> None:
        self._model_seconds = model_seconds
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, is_whole, body = self._received.partition(b"\r\n\r\n")
        if not is_whole:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) >= length:
            self._received = b""
            loop = asyncio.get_running_loop()
            loop.call_later(self._model_seconds, self._transport.write, _make_response(length))


@lru_cache(maxsize=256)  # in all sessions, a turn has the same size
def _make_response(size_bytes: int) -> bytes:
    reply = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": _REPLY}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": size_bytes // 4, "output_tokens": 40},
    }
    body = json.dumps(reply).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _serve(model_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(_ProviderConnection, model_seconds), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(float(sys.argv[1])))
