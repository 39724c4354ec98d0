"""Malformed responses of providers: errors in their JSON, their events or their HTTP."""

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from tests.support.strategies.mutated_json import (
    Members,
    Mutation,
    corrupt,
    corruptions,
    mutate,
    mutations,
    parse,
    set_token_numbers,
    write,
)
from tests.support.strategies.response_seeds import COMPLETE, RESPONSES, STREAMED

_ERRORS: Sequence[Any] = (
    {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    {"error": {"message": "no", "type": "server_error", "code": 500}},
    {"type": "error", "code": "x", "message": "no"},
    {"type": "response.failed", "response": {**RESPONSES, "status": "failed", "error": {"code": "x"}}},
    {"error": "a text"},
    {"internalServerException": {"message": "no"}},
    {"error": []},
    "[DONE]",
    "",
    "null",
    "{",
)
# Usage that no provider can mean.
_ABSURD: Sequence[bytes] = (
    b"-1", b"1000000000000", b"NaN", b"1e400", b"9" * 400, b"-0", b"1.5", b'"9"', b"null", b"[]", b"{}",
    b"true", b"9007199254740991", b"9223372036854775807", b"-9223372036854775808", b"0", b"1e15", b"1e-400",
)  # fmt: skip

_END_LINES = (b"\n", b"\r\n", b"\r")
_CONTENT_TYPES = (
    "application/json", "text/event-stream; charset=utf-8", "text/event-stream", "TEXT/EVENT-STREAM",
    "application/vnd.amazon.eventstream", "text/plain", "", "application/json; charset=\xff",
    "text/event-stream, application/json",
)  # fmt: skip
_STATUSES = (
    "200 OK", "200", "201 Created", "204 No Content", "206 Partial", "304 Not Modified", "301 Moved", "400 Bad",
    "401 No", "402 Pay", "404 Not Found", "413 Large", "418 Tea", "422 X", "429 Slow", "499 Gone", "500 Broken",
    "503 Busy", "529 Overloaded", "599 Last",
)  # fmt: skip
_BAD_STATUSES = ("000 Zero", "099 Low", "600 High", "999 Max", "99999 Long", "x", "-1 Below", "101 Switching")
_HEADERS = (
    "x-foveate-agent: other", "X_Foveate_Cost: 1", "connection: x-own", "x-own: 1", "set-cookie: a=b",
    "retry-after: -1", "retry-after: 1e400", "keep-alive: timeout=999999999999999999", "keep-alive: timeout=",
    "anthropic-ratelimit-unified-5h-utilization: NaN", "anthropic-ratelimit-unified-5h-reset: 1e400",
    "anthropic-ratelimit-unified-status: \xff", "anthropic-ratelimit-unified-5h-utilization: -9",
    "x-codex-primary-used-percent: 1e999", "x-codex-primary-reset-at: -1", "x-ratelimit-remaining-tokens: x",
    "request-id: " + "r" * 5_000, "content-type: text/plain", "x: \xe9\xff", "x-empty:", "server: a\tb",
    "content-encoding: gzip", "content-encoding: zstd", "content-encoding: x", "trailer: x", "vary: *",
    "alt-svc: h3", "strict-transport-security: max-age=1", "transfer-encoding: identity",
)  # fmt: skip


@dataclass(frozen=True)
class FuzzedResponse:
    """Bytes that an upstream sends in pieces, and what a correct client reads.

    `body` is None if the framing is wrong, so that no client can know the body. With `closes`, the upstream
    closes the connection after it.
    """

    pieces: Sequence[bytes]
    status: int | None
    body: bytes | None
    closes: bool
    is_stream: bool


def _event(data: bytes, name: str, end: bytes, style: int) -> bytes:
    """Write a server-sent event in one of the spellings that the format allows."""
    lines = [b"event: " + name.encode()] if name else []
    if style % 5 == 1:
        lines.append(b"data:" + data)
    elif style % 5 == 2 and b", " in data:
        first, rest = data.split(b", ", 1)
        lines += [b"data: " + first + b",", b"data: " + rest]
    elif style % 5 == 3:
        lines = [b": comment", b"data: " + data, b"id: 1", b"retry: 5"]
    else:
        lines.append(b"data: " + data)
    return end.join((*lines, b"", b""))


def event_stream_frame(name: str, payload: bytes) -> bytes:
    """Write one frame of an AWS event stream."""
    headers = b""
    for header_name, text in (
        (":event-type", name),
        (":content-type", "application/json"),
        (":message-type", "event"),
    ):
        value = text.encode("utf-8", "replace")
        headers += (
            bytes((len(header_name),)) + header_name.encode() + b"\x07" + struct.pack(">H", len(value)) + value
        )
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    checked = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return checked + struct.pack(">I", zlib.crc32(checked))


def stream_body(name: str, documents: Sequence[Any], *, end: bytes = b"\n", style: int = 0) -> bytes:
    """Write a stream in the format of a provider."""
    if name == "bedrock":
        return b"".join(map(_frame_document, documents))
    if name == "gemini" and style % 7 == 6:
        return b"[" + b",\r\n".join(map(_text, documents)) + b"]"
    return b"".join(_event(_text(document), _event_name(name, document), end, style) for document in documents)


def _frame_document(document: Any) -> bytes:
    if not isinstance(document, Members) or not document:
        return event_stream_frame("chunk", _text(document))
    key, value = document[0]
    return event_stream_frame(json.loads(key), write(value))


def _text(document: Any) -> bytes:
    return document.encode() if isinstance(document, str) else write(document)


def _event_name(name: str, document: Any) -> str:
    if name not in ("anthropic", "responses") or not isinstance(document, list):
        return ""
    found = [value for key, value in (pair for pair in document if isinstance(pair, tuple)) if key == b'"type"']
    return found[0] if found and isinstance(found[0], str) and found[0].isprintable() else ""


def _parse(document: Any) -> Any:
    return document if isinstance(document, str) else parse(json.dumps(document))


_EVENT_MUTATIONS: Mapping[str, Callable[[list[Any], int, int], list[Any]]] = {
    "drop": lambda events, at, _: events[:at] + events[at + 1 :],
    "twice": lambda events, at, _: events[: at + 1] + events[at:],
    "error": lambda events, at, n: [*events[:at], _parse(_ERRORS[n % len(_ERRORS)]), *events[at:]],
    "swap": lambda events, at, _: [*events[at:], *events[:at]],
    "cut": lambda events, at, _: events[:at],
    "flood": lambda events, at, n: events[:at] + events[at : at + 1] * (1 + n % 300) + events[at + 1 :],
    "reverse": lambda events, *_: events[::-1],
}
_NUMBERS = st.integers(0, 2**16)
_Pair = tuple[int, int]


@dataclass(frozen=True)
class _ResponsePlan:
    """How to build a response; small, so that failures shrink."""

    api_format: str
    streams: bool
    json_mutations: Sequence[tuple[int, list[Mutation]]]
    absurd: Sequence[_Pair]
    events: Sequence[tuple[str, int, int]]
    style: int
    end: int
    broken: _Pair | None
    status: str
    content_type: str | None
    headers: Sequence[str]
    framing: str
    cuts: Sequence[int]
    garbage: bytes


def _body(plan: _ResponsePlan) -> bytes:
    seed = STREAMED[plan.api_format] if plan.streams else [COMPLETE[plan.api_format]]
    documents = [_parse(document) for document in seed]
    for where, variant in plan.absurd:
        documents = [
            document
            if isinstance(document, str)
            else set_token_numbers(document, where, _ABSURD[variant % len(_ABSURD)])
            for document in documents
        ]
    for at, todo in plan.json_mutations:
        chosen = at % len(documents)
        if not isinstance(documents[chosen], str):
            documents[chosen] = mutate(documents[chosen], todo)
    if not plan.streams:
        return corrupt(write(documents[0]), plan.broken)
    for name, at, variant in plan.events:
        documents = _EVENT_MUTATIONS[name](documents, at % (len(documents) + 1), variant)
    end = _END_LINES[plan.end % len(_END_LINES)]
    return corrupt(stream_body(plan.api_format, documents, end=end, style=plan.style), plan.broken)


def _default_content_type(plan: _ResponsePlan) -> str:
    if not plan.streams:
        return "application/json"
    return "application/vnd.amazon.eventstream" if plan.api_format == "bedrock" else "text/event-stream"


_BODILESS = (204, 304)
_MAX_BYTES_AT_ONCE = 16 * 1024
_HEAD_END = b"\r\n\r\n"


def _encode_chunks(pieces: Sequence[bytes], *, extension: bytes = b"") -> list[bytes]:
    return [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]


def build_response(plan: _ResponsePlan) -> FuzzedResponse:
    """Return the bytes of a response, and what a correct client reads of them."""
    body = _body(plan)
    status = int(plan.status.split()[0]) if plan.status[:3].isdigit() else None
    is_known = plan.status in _STATUSES
    kind = _default_content_type(plan) if plan.content_type is None else plan.content_type
    lines = [f"HTTP/1.1 {plan.status}", *([f"content-type: {kind}"] if kind else []), *plan.headers]
    is_bodiless = status in _BODILESS
    pieces = _cut(body, plan.cuts)
    read: bytes | None = b"" if is_bodiless else body
    closes, after = False, plan.garbage
    match plan.framing:
        case "length":
            lines.append(f"content-length: {len(body)}")
        case "chunked" | "chunked_extension":
            lines.append("transfer-encoding: chunked")
            extension = b";x=y" if plan.framing == "chunked_extension" else b""
            pieces = [*_encode_chunks(pieces, extension=extension), b"0\r\n\r\n"]
        case "trailer":
            lines.append("transfer-encoding: chunked")
            pieces = [*_encode_chunks(pieces), b"0\r\nx-trailer: y\r\n\r\n"]
        case "close":
            closes, after = True, b""
        case "gzip":
            packed = gzip.compress(body, mtime=0)
            lines += [f"content-length: {len(packed)}", "content-encoding: gzip"]
            pieces, read = _cut(packed, plan.cuts), b"" if is_bodiless else packed
        case "short_length":
            size = len(body) // 2 if len(body) < _MAX_BYTES_AT_ONCE else len(body)
            lines.append(f"content-length: {size}")
            pieces, closes, read = [body], True, b"" if is_bodiless else body[:size]
        case "long_length":
            lines.append(f"content-length: {len(body) + 5}")
            closes, read, after = True, b"" if is_bodiless else None, b""
        case "two_lengths":
            lines += [f"content-length: {len(body)}", f"content-length: {len(body) + 1}"]
            closes, read = True, None
        case "length_and_chunks":
            lines += [f"content-length: {len(body)}", "transfer-encoding: chunked"]
            closes, read = True, None
        case "no_last_chunk":
            lines.append("transfer-encoding: chunked")
            pieces, closes, read, after = _encode_chunks(pieces), True, b"" if is_bodiless else None, b""
        case "bad_chunk":
            lines.append("transfer-encoding: chunked")
            pieces, closes, read = [*_encode_chunks(pieces), b"zz\r\n"], True, b"" if is_bodiless else None
        case "bad_length":
            lines.append("content-length: -1")
            closes, read = True, None
        case "early_close":
            lines.append(f"content-length: {len(body) + 1}")
            pieces, closes, after = pieces[: len(pieces) // 2], True, b""
            read = b"" if is_bodiless else None
    if any("transfer-encoding" in line for line in plan.headers):
        read, closes = None, True
    if closes:  # otherwise the next request may be sent on it at the same moment
        lines.append("connection: close")
    head = "\r\n".join(lines).encode("latin-1") + _HEAD_END
    sent = [head, *([] if is_bodiless else pieces)]
    # What arrives later could be taken for the response to the next request: HTTP/1.1 cannot tell.
    after = after if len(body) < _MAX_BYTES_AT_ONCE else b""
    sent[-1] += after
    return FuzzedResponse(
        pieces=sent,
        status=status if is_known else None,
        body=read if is_known else None,
        closes=closes or bool(after) or not is_known,
        is_stream=plan.streams,
    )


def valid_response(api_format: str) -> FuzzedResponse:
    """Return a complete response with nothing wrong in it."""
    body = json.dumps(COMPLETE[api_format]).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d" % len(body)
    return FuzzedResponse(
        pieces=[head + _HEAD_END + body], status=200, body=body, closes=False, is_stream=False
    )


def _cut(body: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({cut % (len(body) + 1) for cut in cuts} | {0, len(body)})
    return [body[start:end] for start, end in pairwise(places) if end > start]


_FRAMINGS = (
    "length", "chunked", "chunked_extension", "trailer", "close", "gzip", "short_length", "long_length",
    "two_lengths", "length_and_chunks", "no_last_chunk", "bad_chunk", "bad_length", "early_close",
)  # fmt: skip


@st.composite
def response_plans(draw: st.DrawFn, api_format: str, *, streams: bool) -> _ResponsePlan:
    """Plans of responses; most have one error, so that the rest is processed."""
    pairs = st.tuples(_NUMBERS, _NUMBERS)
    wrong = draw(st.sets(st.sampled_from(("json", "absurd", "events", "bytes", "status", "http")), max_size=3))
    is_http = "http" in wrong
    statuses = st.sampled_from(_STATUSES) | st.sampled_from(_BAD_STATUSES)
    return _ResponsePlan(
        api_format=api_format,
        streams=streams,
        json_mutations=draw(st.lists(st.tuples(_NUMBERS, mutations), max_size=3)) if "json" in wrong else (),
        absurd=draw(st.lists(pairs, min_size=1, max_size=4)) if "absurd" in wrong else (),
        events=draw(
            st.lists(st.tuples(st.sampled_from(sorted(_EVENT_MUTATIONS)), _NUMBERS, _NUMBERS), max_size=4)
        )
        if "events" in wrong
        else (),
        style=draw(st.integers(0, 34)),
        end=draw(st.integers(0, 2)),
        broken=draw(corruptions) if "bytes" in wrong else None,
        status=draw(statuses) if "status" in wrong else "200 OK",
        content_type=draw(st.none() | st.sampled_from(_CONTENT_TYPES)) if is_http else None,
        headers=draw(st.lists(st.sampled_from(_HEADERS), max_size=4, unique=True)) if is_http else (),
        framing=draw(st.sampled_from(_FRAMINGS)) if is_http else draw(st.sampled_from(_FRAMINGS[:5])),
        cuts=draw(st.lists(_NUMBERS, max_size=12)),
        garbage=draw(st.sampled_from((b"", b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")))
        if is_http
        else b"",
    )
