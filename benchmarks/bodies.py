"""Delay of other requests and memory growth while a gateway reads a large body, compared with LiteLLM.

One process requests the server's health every two milliseconds while another sends a body. `<body>_wait_ms` is
the longest wait for a response, as the median of three trials, minus the longest wait without a body.
`<body>_seconds` is the response time of the body itself, and `<body>_kept_mb` is the growth of the server's
memory some seconds later. `--only foveate` leaves LiteLLM out.
"""

import http.client
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from benchmarks.gateway_processes import Server, foveate, litellm, resident_bytes, upstream
from benchmarks.gateway_requests import KEY, MODEL
from benchmarks.harness import BadData, Cell, Report

MEGABYTE = 1024 * 1024
TRIALS, QUICK_TRIALS = 3, 1
OURS, PEER = "foveate", "litellm"
CONTENDERS = (OURS, PEER)
_HEALTH = {OURS: "/health", PEER: "/health/liveliness"}
_PAUSE_SECONDS, _SETTLE_SECONDS = 0.002, 4.0

FIGURES = ("<body>_kept_mb", "<body>_seconds", "<body>_status", "<body>_wait_ms")


def run(_data: Path | None, *, quick: bool = False, only: str = "") -> Report:
    """Send every kind of body to each contender, or only to those in `only`."""
    if only and only not in CONTENDERS:
        raise BadData(f"--only takes one of {', '.join(CONTENDERS)}, not {only}")
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory(prefix="foveate-bench-") as name, upstream(Path(name)) as provider:
        if only != PEER:
            with foveate(Path(name), provider.port, is_default=True) as server:
                rows += _measure(server, QUICK_TRIALS if quick else TRIALS)
        if only != OURS:
            with litellm(Path(name), provider.port) as server:
                rows += _measure(server, QUICK_TRIALS)
    figures = {str(row["contender"]): _figures(rows, str(row["contender"])) for row in rows}
    return Report(figures=figures.pop(OURS, {}), peers=figures, rows=rows)


def _figures(rows: list[dict[str, Cell]], contender: str) -> dict[str, float]:
    names = ("wait_ms", "seconds", "kept_mb", "status")
    own = [row for row in rows if row["contender"] == contender]
    return {f"{row['body']}_{name}": float(row[name] or 0) for row in own for name in names}


def _request(**members: object) -> bytes:
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    return json.dumps(body | members).encode()


def _chat_body(*texts: str) -> bytes:
    roles = ("user", "assistant")
    return _request(messages=[{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)])


def _image(number: int) -> bytes:
    source = {"type": "base64", "media_type": "image/png", "data": f"{number:08d}" + "QUJD" * (7 * MEGABYTE)}
    return _request(messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])


# New text in each trial: caches would make repeated text faster.
BODIES: Mapping[str, Callable[[int], bytes]] = {
    "words_30mb": lambda number: _chat_body(f"{number} " + "lorem ipsum dolor " * (30 * MEGABYTE // 18)),
    "one_word_30mb": lambda number: _chat_body(str(number) + "x" * (30 * MEGABYTE)),
    "escapes_30mb": lambda number: _chat_body(f"{number}" + "漢" * (5 * MEGABYTE)),
    "image_28mb": _image,
    "messages_20000": lambda number: _chat_body(*(f"{number} {at} " + "word " * 300 for at in range(20_000))),
    "messages_2000": lambda number: _chat_body(*(f"{number} {at} " + "word " * 300 for at in range(2_000))),
    "messages_1000000": lambda _: _request(messages=[{"role": "user", "content": "a"}] * 1_000_000),
    "tools_2000": lambda number: _request(
        tools=[
            {
                "name": f"t{at}",
                "description": f"{number} " + "word " * 2_000,
                "input_schema": {"type": "object"},
            }
            for at in range(2_000)
        ]
    ),
    "numbers_300000": lambda number: _request(metadata={"ids": [number, *range(300_000)]}),
    "levels_5000000": lambda _: b'{"metadata":' + b"[" * 5_000_000 + b"]" * 5_000_000 + b"," + _request()[1:],
    "blanks_30mb": lambda _: _request()[:-1] + b" " * (30 * MEGABYTE) + b"}",
}


def _measure(server: Server, trials: int) -> list[dict[str, Cell]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    probe = context.Process(target=_probe, args=(server.port, _HEALTH[server.name], theirs), daemon=True)
    probe.start()

    def longest_wait() -> float:
        ours.send(None)
        return float(ours.recv())

    rows: list[dict[str, Cell]] = []
    try:
        _response_status(server, _request())
        longest_wait()
        time.sleep(2)
        idle = longest_wait()
        for name, body in BODIES.items():
            print(f"{server.name} {name} …", file=sys.stderr, flush=True)
            before = resident_bytes(server.pid)
            waits: list[float] = []
            status = seconds = 0.0
            for number in range(trials):
                data = body(number)
                longest_wait()
                started = time.monotonic()
                status = _response_status(server, data)
                seconds = time.monotonic() - started
                waits.append(longest_wait())
            time.sleep(_SETTLE_SECONDS)
            growth_bytes = max(0, resident_bytes(server.pid) - before)
            rows.append(
                {
                    "contender": server.name,
                    "body": name,
                    "wait_ms": round(1e3 * max(0.0, median(waits) - idle), 1),
                    "seconds": round(seconds, 2),
                    "kept_mb": round(growth_bytes / MEGABYTE, 1),
                    "status": status,
                }
            )
    finally:
        probe.terminate()
        probe.join()
    return rows


def _response_status(server: Server, body: bytes) -> int:
    """Return the status of the response to a body; 0 if there is none within two minutes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    headers = {
        "authorization": f"Bearer {KEY}",
        "anthropic-version": "2023-06-01",
        "content-type": "application/json",
    }
    try:
        connection.request("POST", "/v1/messages", body, headers)
        with connection.getresponse() as response:
            response.read()
            return response.status
    except OSError:
        return 0
    finally:
        connection.close()


def _probe(port: int, path: str, pipe: Connection) -> None:
    """Request the server's health repeatedly, and report the longest wait since the last report."""
    request = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    longest = 0.0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            if pipe.poll():
                pipe.recv()
                pipe.send(longest)
                longest = 0.0
            started = time.perf_counter()
            connection.sendall(request)
            received = b""
            while b"\r\n\r\n" not in received:
                chunk = connection.recv(65_536)
                if not chunk:
                    raise BadData("the server closed the connection of the health check")
                received += chunk
            longest = max(longest, time.perf_counter() - started)
            time.sleep(_PAUSE_SECONDS)
