"""Delay of other requests and memory growth while a gateway reads a large body, compared with LiteLLM.

One process requests the server's health every two milliseconds while another sends a body. `<body>_wait_ms` is
the longest wait for a response, as the median of three trials, minus the longest wait without a body.
`<body>_seconds` is the response time of the body itself, and `<body>_kept_mb` is the growth of the server's
memory after at most 15 seconds; `total_kept_mb` is that of all bodies together. Foveate sends its requests
over TLS. `--only` takes contenders and bodies: `--only foveate,image_28mb`.
"""

import gzip
import http.client
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gateway_processes import (
    Server,
    foveate,
    litellm,
    make_certificate,
    resident_bytes,
    upstream,
)
from benchmarks.gateway_requests import CHAT_MODEL, KEY, MODEL
from benchmarks.harness import BadData, Cell, Report

MEGABYTE = 1024 * 1024
TRIALS, QUICK_TRIALS = 3, 1
OURS, PEER = "foveate", "litellm"
CONTENDERS = (OURS, PEER)
_HEALTH = {OURS: "/health", PEER: "/health/liveliness"}
_PAUSE_SECONDS = 0.002
# Memory is returned within seconds, or not at all.
_SETTLE_SECONDS, _SETTLED_MB = 15.0, 50.0

FIGURES = ("<body>_kept_mb", "<body>_seconds", "<body>_status", "<body>_wait_ms")


def run(_data: Path | None, *, quick: bool = False, only: str = "") -> Report:
    """Send every kind of body to each contender, or only those in `only`."""
    names = only.split(",") if only else []
    if unknown := set(names) - {*CONTENDERS, *BODIES}:
        known = ", ".join((*CONTENDERS, *BODIES))
        raise BadData(f"--only takes some of {known}, not {', '.join(sorted(unknown))}")
    contenders = [name for name in CONTENDERS if name in names] or CONTENDERS
    bodies = {name: body for name, body in BODIES.items() if name in names} or dict(BODIES)
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory(prefix="foveate-bench-") as name:
        folder = Path(name)
        if OURS in contenders:
            certificate = make_certificate(folder)
            with (
                upstream(folder, certificate) as provider,
                foveate(folder, provider.port, is_default=True, certificate=certificate) as server,
            ):
                rows += _measure(server, bodies, QUICK_TRIALS if quick else TRIALS)
        if PEER in contenders:
            messages = {name: body for name, body in bodies.items() if body.is_anthropic}
            with upstream(folder) as provider, litellm(folder, provider.port) as server:
                rows += _measure(server, messages, QUICK_TRIALS)
    figures = {str(row["contender"]): _figures(rows, str(row["contender"])) for row in rows}
    return Report(figures=figures.pop(OURS, {}), peers=figures, rows=rows)


def _figures(rows: list[dict[str, Cell]], contender: str) -> dict[str, float]:
    names = ("wait_ms", "seconds", "kept_mb", "status")
    own = [row for row in rows if row["contender"] == contender]
    return {f"{row['body']}_{name}": float(row[name] or 0) for row in own for name in names if name in row}


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A kind of body. `make` takes the number of the trial, because caches would make repeated text faster."""

    make: Callable[[int], bytes]
    path: str = "/v1/messages"
    headers: Mapping[str, str] = field(default_factory=dict)
    connections: int = 1

    @property
    def is_anthropic(self) -> bool:
        """LiteLLM gets only these."""
        return self.path == "/v1/messages" and not self.headers and self.connections == 1


def _request(**members: object) -> bytes:
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    return json.dumps(body | members).encode()


def _chat_body(*texts: str, **members: object) -> bytes:
    roles = ("user", "assistant")
    return _request(
        messages=[{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)], **members
    )


def _blocks_body(*blocks: object) -> bytes:
    return _request(messages=[{"role": "user", "content": blocks}])


def _texts(number: int, count: int) -> list[str]:
    return [f"{number} {at} " + "word " * 300 for at in range(count)]


def _base64(number: int) -> str:
    return f"{number:08d}" + "QUJD" * (7 * MEGABYTE)


def _image(number: int) -> bytes:
    return _blocks_body(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _base64(number)}}
    )


def _tool(at: int, description: str, properties: Mapping[str, object]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"name": f"t{at}", "description": description, "input_schema": schema}


def _schema(number: int, at: int) -> dict[str, object]:
    return {f"p{key}": {"type": "string", "description": f"{number} {at} " + "word " * 48} for key in range(40)}


def _tool_results(number: int) -> bytes:
    calls = [{"type": "tool_use", "id": f"c{at}", "name": "t", "input": {"at": at}} for at in range(20_000)]
    results = [
        {"type": "tool_result", "tool_use_id": f"c{at}", "content": f"{number} {at} " + "word " * 200}
        for at in range(20_000)
    ]
    return _request(
        messages=[
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": results},
        ]
    )


def _nested(levels: int) -> object:
    return [] if levels == 1 else [_nested(levels - 1)]


_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"
_GEMINI = "/v1beta/models/gemini-2.5-pro:generateContent"


def _chat(*contents: object) -> bytes:
    messages = [{"role": ("user", "assistant")[at % 2], "content": it} for at, it in enumerate(contents)]
    return json.dumps({"model": CHAT_MODEL, "messages": messages}).encode()


def _responses(*contents: object) -> bytes:
    items = [{"role": ("user", "assistant")[at % 2], "content": it} for at, it in enumerate(contents)]
    return json.dumps({"model": CHAT_MODEL, "input": items}).encode()


def _gemini(*parts: object) -> bytes:
    contents = [{"role": ("user", "model")[at % 2], "parts": [part]} for at, part in enumerate(parts)]
    return json.dumps({"contents": contents}).encode()


def _form(number: int) -> bytes:
    part = b'--limit\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    fields = part % (b"purpose", b"batch") + part % (b"file", _base64(number).encode())
    return fields + b"--limit--\r\n"


# Sent first: the first request in a format loads a vocabulary.
_SMALL_BODIES = {"/v1/messages": _request(), _CHAT: _chat("Hello"), _RESPONSES: _responses("Hello")} | {
    _GEMINI: _gemini({"text": "Hello"})
}

BODIES: Mapping[str, Body] = {
    "words_30mb": Body(
        make=lambda number: _chat_body(f"{number} " + "lorem ipsum dolor " * (30 * MEGABYTE // 18))
    ),
    "one_word_30mb": Body(make=lambda number: _chat_body(str(number) + "x" * (30 * MEGABYTE))),
    "escapes_30mb": Body(make=lambda number: _chat_body(f"{number}" + "漢" * (5 * MEGABYTE))),
    "non_ascii_28mb": Body(
        make=lambda number: _chat_body(f"{number}%").replace(b"%", "漢字 ".encode() * (4 * MEGABYTE))
    ),
    "image_28mb": Body(make=_image),
    "images_28mb_at_once": Body(make=_image, connections=10),
    "gzip_28mb": Body(
        make=lambda number: gzip.compress(_image(number), 1), headers={"content-encoding": "gzip"}
    ),
    "messages_20000": Body(make=lambda number: _chat_body(*_texts(number, 20_000))),
    "messages_2000": Body(make=lambda number: _chat_body(*_texts(number, 2_000))),
    "messages_1000000": Body(make=lambda _: _request(messages=[{"role": "user", "content": "a"}] * 1_000_000)),
    "tool_results_20000": Body(make=_tool_results),
    "blocks_100000": Body(
        make=lambda number: _blocks_body(*({"type": "text", "text": f"{number} {at}"} for at in range(100_000)))
    ),
    "tools_2000": Body(
        make=lambda number: _request(
            tools=[_tool(at, f"{number} " + "word " * 2_000, {}) for at in range(2_000)]
        )
    ),
    "schemas_2000": Body(
        make=lambda number: _request(tools=[_tool(at, "", _schema(number, at)) for at in range(2_000)])
    ),
    "numbers_300000": Body(make=lambda number: _request(metadata={"ids": [number, *range(300_000)]})),
    "levels_99": Body(make=lambda number: _request(metadata={"ids": [number, *[_nested(96)] * 3_000]})),
    "levels_5000000": Body(
        make=lambda _: b'{"metadata":' + b"[" * 5_000_000 + b"]" * 5_000_000 + b"," + _request()[1:]
    ),
    "blanks_30mb": Body(make=lambda _: _request()[:-1] + b" " * (30 * MEGABYTE) + b"}"),
    "form_28mb": Body(
        make=_form, path="/v1/files", headers={"content-type": "multipart/form-data; boundary=limit"}
    ),
    "chat_image_28mb": Body(
        make=lambda number: _chat(
            [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(number)}"}}]
        ),
        path=_CHAT,
    ),
    "chat_messages_20000": Body(make=lambda number: _chat(*_texts(number, 20_000)), path=_CHAT),
    "responses_image_28mb": Body(
        make=lambda number: _responses(
            [{"type": "input_image", "image_url": f"data:image/png;base64,{_base64(number)}"}]
        ),
        path=_RESPONSES,
    ),
    "responses_messages_20000": Body(make=lambda number: _responses(*_texts(number, 20_000)), path=_RESPONSES),
    "gemini_image_28mb": Body(
        make=lambda number: _gemini({"inlineData": {"mimeType": "image/png", "data": _base64(number)}}),
        path=_GEMINI,
    ),
    "gemini_messages_20000": Body(
        make=lambda number: _gemini(*({"text": text} for text in _texts(number, 20_000))), path=_GEMINI
    ),
}


def _measure(server: Server, bodies: Mapping[str, Body], trials: int) -> list[dict[str, Cell]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    probe = context.Process(target=_probe, args=(server.port, _HEALTH[server.name], theirs), daemon=True)
    probe.start()

    def longest_wait() -> float:
        ours.send(None)
        return float(ours.recv())

    rows: list[dict[str, Cell]] = []
    try:
        for path in {body.path for body in bodies.values()} & _SMALL_BODIES.keys():
            _response_status(server, Body(make=lambda _: b"", path=path), _SMALL_BODIES[path])
        longest_wait()
        time.sleep(2)
        idle = longest_wait()
        at_start = resident_bytes(server.pid)
        for name, body in bodies.items():
            print(f"{server.name} {name} …", file=sys.stderr, flush=True)
            before = resident_bytes(server.pid)
            waits: list[float] = []
            status = seconds = 0.0
            for number in range(trials):
                data = body.make(number)
                longest_wait()
                started = time.monotonic()
                status = _send_at_once(server, body, data)
                seconds = time.monotonic() - started
                waits.append(longest_wait())
            rows.append(
                {
                    "contender": server.name,
                    "body": name,
                    "wait_ms": round(1e3 * max(0.0, median(waits) - idle), 1),
                    "seconds": round(seconds, 2),
                    "kept_mb": _settled_growth_mb(server, before),
                    "status": status,
                }
            )
        rows.append(
            {"contender": server.name, "body": "total", "kept_mb": _settled_growth_mb(server, at_start)}
        )
    finally:
        probe.terminate()
        probe.join()
    return rows


def _settled_growth_mb(server: Server, before_bytes: int) -> float:
    """Return the growth of the server's memory, once it is small or has had time to shrink."""
    end = time.monotonic() + _SETTLE_SECONDS
    while True:
        time.sleep(0.5)
        growth_mb = max(0, resident_bytes(server.pid) - before_bytes) / MEGABYTE
        if growth_mb <= _SETTLED_MB or time.monotonic() > end:
            return round(growth_mb, 1)


def _send_at_once(server: Server, body: Body, data: bytes) -> int:
    """Send a body on each of its connections, and return the highest status, or 0 if a response is missing."""
    with ThreadPoolExecutor(body.connections) as executor:
        statuses = list(executor.map(lambda _: _response_status(server, body, data), range(body.connections)))
    return max(statuses) if all(statuses) else 0


def _response_status(server: Server, body: Body, data: bytes) -> int:
    """Return the status of the response to a body; 0 if there is none within two minutes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    headers = {
        "authorization": f"Bearer {KEY}",
        "anthropic-version": "2023-06-01",
        "content-type": "application/json",
        **body.headers,
    }
    try:
        connection.request("POST", body.path, data, headers)
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
