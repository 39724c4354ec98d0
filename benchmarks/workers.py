"""Load that one, two, four and eight workers sustain, on both databases, compared with LiteLLM's proxy.

48 agents each wait 300 ms for their model and pause for 100 ms, in sessions of ten turns that send the whole
history each time. `direct` is the same load without a gateway. A figure such as `sqlite_4_share` is the share
of that load that four workers on SQLite sustain, and `sqlite_4_p99_times_direct` is the factor by which the
99th percentile is longer. `--only direct,sqlite-4` runs some of the contenders.
"""

import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.databases import new_database, new_file, running_postgres
from benchmarks.gateway_processes import Server, cpu_seconds, foveate, litellm, start_process
from benchmarks.gateway_requests import KEY, MODEL
from benchmarks.harness import BadData, Cell, Report

AGENTS, PROCESSES = 48, 2
MODEL_SECONDS, THINKING_SECONDS = 0.3, 0.1
SECONDS, QUICK_SECONDS, WARM_UP_SECONDS = 25.0, 8.0, 3.0
WORKERS = (1, 2, 4, 8)
DIRECT, PEER = "direct", "litellm"
CONTENDERS = (DIRECT, *(f"{kind}-{count}" for kind in ("sqlite", "postgres") for count in WORKERS), PEER)
_TURNS, _FIRST_WORDS = 10, 300
_REPLY = "ok " * 40
_WORDS = [f"{chr(97 + first) * 2}{chr(97 + second) * 2}" for first in range(26) for second in range(26)]

FIGURES = (
    "<contender>_cpu_ms",
    "<contender>_p50_ms",
    "<contender>_p99_ms",
    "<contender>_p99_times_direct",
    "<contender>_per_second",
    "<contender>_share",
)

# End of a call (by the clock that all processes share), its duration, and whether it succeeded.
Call = tuple[float, float, bool]


def run(_data: Path | None, *, quick: bool = False, only: str = "") -> Report:
    """Run every contender in turn; `only` selects some by name."""
    chosen = [name.strip() for name in only.split(",") if name.strip()] or list(CONTENDERS)
    if unknown := set(chosen) - set(CONTENDERS):
        raise BadData(f"--only takes {', '.join(CONTENDERS)}, not {', '.join(sorted(unknown))}")
    rows: list[dict[str, Cell]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foveate-bench-")))
        server = None
        if any(name.startswith("postgres") for name in chosen):
            server = stack.enter_context(running_postgres())
        with _provider(folder) as provider:
            for name in [DIRECT, *(other for other in CONTENDERS if other in chosen and other != DIRECT)]:
                if name.startswith("postgres") and server is None:
                    continue
                print(f"{name} …", file=sys.stderr, flush=True)
                with _contender(name, folder, provider, server) as contender:
                    rows.append(_measure(name, contender, QUICK_SECONDS if quick else SECONDS))
    direct = rows[0]
    figures: dict[str, float] = {}
    for row in rows:
        key = str(row["contender"]).replace("-", "_")
        row["share"] = round(float(row["per_second"] or 0) / float(direct["per_second"] or 1), 4)
        row["p99_times_direct"] = round(float(row["p99_ms"] or 0) / float(direct["p99_ms"] or 1), 3)
        names = ("per_second", "share", "p50_ms", "p99_ms", "p99_times_direct", "cpu_ms")
        figures |= {f"{key}_{name}": float(row[name] or 0) for name in names}
    return Report(figures=figures, peers={PEER: _peer(rows)}, rows=rows)


def _peer(rows: Sequence[dict[str, Cell]]) -> dict[str, object]:
    found = [row for row in rows if row["contender"] == PEER]
    return {name: value for name, value in found[0].items() if name != "contender"} if found else {}


@contextmanager
def _contender(name: str, folder: Path, provider: Server, postgres: object | None) -> Iterator[Server]:
    kind, _, count = name.partition("-")
    if name == DIRECT:
        yield provider
    elif name == PEER:
        with litellm(folder, provider.port) as running:
            yield running
    else:
        url = new_file(str(folder)) if kind == "sqlite" else new_database(postgres)
        more = f"store: {{url: {json.dumps(url)}}}\n"
        workers = int(count)
        with foveate(folder, provider.port, name=name, workers=workers, is_default=True, more=more) as running:
            yield running


def _measure(name: str, server: Server, seconds: float) -> dict[str, Cell]:
    """Measure one contender; the first seconds are not counted."""
    context = multiprocessing.get_context("spawn")
    started, cpu = time.monotonic(), cpu_seconds(server.pid)
    with context.Pool(PROCESSES) as pool:
        shares = [(server.port, number, AGENTS // PROCESSES, seconds) for number in range(PROCESSES)]
        calls: list[Call] = sorted(call for some in pool.starmap(_agents, shares) for call in some)
    spent = cpu_seconds(server.pid) - cpu
    first = calls[0][0] + WARM_UP_SECONDS if calls else started
    counted = [call for call in calls if call[0] >= first]
    if not counted:
        raise BadData(f"{name} answered nothing within {seconds:g} s")
    milliseconds = sorted(call[1] for call in counted)
    return {
        "contender": name,
        "per_second": round(sum(call[2] for call in counted) / (counted[-1][0] - first), 1),
        "answered": round(sum(call[2] for call in counted) / len(counted), 4),
        "p50_ms": round(1e3 * milliseconds[len(milliseconds) // 2], 1),
        "p99_ms": round(1e3 * milliseconds[int(0.99 * len(milliseconds))], 1),
        "cpu_ms": round(1e3 * spent / len(calls), 2),
    }


def _agents(port: int, number: int, agents: int, seconds: float) -> list[Call]:
    """Return the calls of some agents, in a separate process."""
    import uvloop

    calls: list[Call] = []

    async def all_agents() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(_agent(port, 1_000 * number + index, until, calls) for index in range(agents)))

    uvloop.run(all_agents())
    return calls


async def _agent(port: int, seed: int, until: float, calls: list[Call]) -> None:
    chance = random.Random(seed)
    await asyncio.sleep(chance.random() * (MODEL_SECONDS + THINKING_SECONDS))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages: list[dict[str, str]] = []
    turn = 0
    while time.monotonic() < until:
        if turn % _TURNS == 0:
            messages = [{"role": "user", "content": " ".join(chance.choices(_WORDS, k=_FIRST_WORDS))}]
        else:
            messages.append({"role": "assistant", "content": _REPLY})
            messages.append({"role": "user", "content": f"go on {turn}"})
        turn += 1
        body = json.dumps({"model": MODEL, "max_tokens": 100, "messages": messages}).encode()
        started = time.monotonic()
        writer.write(
            f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
            f"anthropic-version: 2023-06-01\r\nx-foveate-agent: agent-{seed % 50}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        status = await _read_response(reader)
        ended = time.monotonic()
        calls.append((ended, ended - started, status == 200))
        await asyncio.sleep(THINKING_SECONDS)
    writer.close()


async def _read_response(reader: asyncio.StreamReader) -> int:
    """Return the status of a response once it is complete."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, is_sized, rest = head.partition(b"content-length:")
    if is_sized:
        await reader.readexactly(int(rest.split(b"\r\n")[0]))
    else:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return int(head[9:12])


@contextmanager
def _provider(folder: Path) -> Iterator[Server]:
    """Run a provider whose model takes some time."""
    log = folder / "provider.log"
    with start_process([sys.executable, "-m", "benchmarks.workers"], log=log) as process:
        assert process.stdout is not None
        yield Server(DIRECT, int(process.stdout.readline()), process.pid, log)


class _SlowProvider(asyncio.Protocol):
    """One connection to the slow provider."""

    def __init__(self) -> None:
        self._received = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, is_whole, body = bytes(self._received).partition(b"\r\n\r\n")
        if not is_whole:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) >= length:
            self._received.clear()
            asyncio.get_running_loop().call_later(MODEL_SECONDS, self._transport.write, _make_response(length))


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


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_SlowProvider, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve())
