"""Malformed requests in every API format, from recorded and built-in requests."""

import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import brotli
import zstandard
from hypothesis import strategies as st

from tests.support.strategies.malformed_requests import VALID_REQUESTS
from tests.support.strategies.mutated_json import corrupt, corruptions, mutate, mutations, parse, write

GEMINI = "/v1beta/models/gemini-2.5-pro:generateContent"
CLAUDE_ON_BEDROCK = "/model/anthropic.claude-opus-4-5-20251101-v1:0"
_CONTENTS = {
    "contents": [
        {
            "role": "user",
            "parts": [{"text": "Hello"}, {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}],
        },
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"path": "a"}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"is": 1}}}]},
    ],
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "tools": [{"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT", "properties": {}}}]}],
    "generationConfig": {"maxOutputTokens": 9, "temperature": 0.5, "thinkingConfig": {"thinkingBudget": 5}},
}
_CONVERSE = {
    "messages": [
        {"role": "user", "content": [{"text": "Hello"}, {"cachePoint": {"type": "default"}}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "look", "input": {"a": 1}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "A"}]}}]},
    ],
    "system": [{"text": "Be brief."}],
    "inferenceConfig": {"maxTokens": 9},
    "toolConfig": {"tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}]},
}
_CLAUDE = VALID_REQUESTS["/v1/messages"]
_INVOKE = {"anthropic_version": "bedrock-2023-05-31"} | {
    name: value for name, value in _CLAUDE.items() if name not in ("model", "stream")
}
_BATCH = {"requests": [{"custom_id": "a", "params": _CLAUDE}, {"custom_id": "b", "params": _CLAUDE}]}

Seed = tuple[str, Any]
"""A path, and a JSON body for it."""

BUILT_IN: Sequence[Seed] = (
    *VALID_REQUESTS.items(),
    ("/v1/messages", {**_CLAUDE, "stream": True, "thread": {"type": "create"}}),
    ("/v1/messages", {**_CLAUDE, "thread": {"type": "continue", "previous_message_id": "msg_1"}}),
    ("/v1/responses", {**VALID_REQUESTS["/v1/responses"], "stream": True, "previous_response_id": "resp_1"}),
    ("/v1/responses/input_tokens", VALID_REQUESTS["/v1/responses"]),
    ("/v1/messages/batches", _BATCH),
    ("/v1/batches", {"input_file_id": "f", "endpoint": "/v1/chat/completions", "completion_window": "24h"}),
    (GEMINI, _CONTENTS),
    (GEMINI.replace(":generate", ":streamGenerate") + "?alt=sse", _CONTENTS),
    (GEMINI.replace("generateContent", "countTokens"), {"contents": _CONTENTS["contents"]}),
    ("/openai/deployments/gpt-4.1/chat/completions?api-version=1", VALID_REQUESTS["/v1/chat/completions"]),
    ("/openai/v1/responses", VALID_REQUESTS["/v1/responses"]),
    (f"{CLAUDE_ON_BEDROCK}/converse", _CONVERSE),
    (f"{CLAUDE_ON_BEDROCK}/converse-stream", _CONVERSE),
    (f"{CLAUDE_ON_BEDROCK}/invoke", _INVOKE),
    ("/v1/projects/p/locations/global/publishers/google/models/gemini-2.5-pro:generateContent", _CONTENTS),
    ("/v1/projects/p/locations/us-east5/publishers/anthropic/models/claude-opus-4-5:rawPredict", _INVOKE),
)
_FORM_FIELDS: Mapping[str, bytes] = {"model": b"whisper-1", "file": b"\x00RIFF\r\n--", "purpose": b"batch"}
_FORMS = ("/v1/audio/transcriptions", "/v1/files", "/v1/images/edits")
_MAX_SEED_BYTES = 6_000
_MAX_RECORDED = 400


@cache
def recorded_seeds(folder: Path) -> Sequence[Seed]:
    """Return short requests of real clients, spread over all recordings, if there are any."""
    found: list[Seed] = []
    for name in ("usage_pairs.jsonl.gz", "usage_pairs_more.jsonl.gz", "count_tokens.jsonl.gz"):
        path = folder / name
        if path.is_file():
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines]
            found += [seed for row in rows if (seed := _seed(row)) is not None]
    return found[:: max(1, len(found) // _MAX_RECORDED)]


def _seed(row: Mapping[str, Any]) -> Seed | None:
    if not isinstance(row.get("request"), dict) or len(json.dumps(row["request"])) > _MAX_SEED_BYTES:
        return None
    return _path(unquote(urlsplit(row["uri"]).path)), row["request"]


def _path(path: str) -> str:
    """Return the path at the gateway: some hosts serve the APIs below a prefix."""
    for known in ("/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"):
        if path.endswith((known, known.removeprefix("/v1"))) and not path.startswith("/openai/deployments"):
            return known
    return path.replace("%3A", ":")


def multipart_form(
    fields: Sequence[tuple[str, bytes]], boundary: bytes, *, line: bytes, is_closed: bool
) -> bytes:
    parts = [
        b"--" + boundary + line + b'content-disposition: form-data; name="' + name.encode() + b'"'
        + (b'; filename="a.wav"' if name == "file" else b"") + line + line + value + line
        for name, value in fields
    ]  # fmt: skip
    return b"".join(parts) + (b"--" + boundary + b"--" + line if is_closed else b"")


_BOUNDARIES = (b"x", b"----WebKitFormBoundary7MA4", b"", b"a" * 80, b"x y", b'"q"', b"--", b"\xff")
_forms = st.builds(
    lambda path, fields, boundary, line, is_closed, named: (
        path,
        multipart_form(fields, boundary, line=line, is_closed=is_closed),
        "multipart/form-data; boundary=" + (named or boundary.decode("latin-1")),
    ),
    st.sampled_from(_FORMS),
    st.lists(st.sampled_from(sorted(_FORM_FIELDS.items())), max_size=4),
    st.sampled_from(_BOUNDARIES),
    st.sampled_from((b"\r\n", b"\n", b"\r")),
    st.booleans(),
    st.sampled_from(("", "", "", '"x"', 'x; boundary="y"', '"')),
)


def _json_request(
    seed: Seed, todo: Sequence[Any], how: tuple[int, int] | None, content_type: str
) -> tuple[str, bytes, str]:
    path, body = seed
    return path, corrupt(write(mutate(parse(json.dumps(body)), todo)), how), content_type


_PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip, zstd": lambda data: zstandard.ZstdCompressor().compress(gzip.compress(data, mtime=0)),
}
_ENCODINGS = (
    "",
    "gzip",
    "deflate",
    "br",
    "zstd",
    "gzip, zstd",
    "identity",
    "x-gzip",
    "gzip,,",
    "aws-chunked",
    "\xff",
)


@dataclass(frozen=True)
class FuzzedRequest:
    """A request; `body` is what its client means, `wire` the bytes that it sends.

    `body` is None if it is undefined: wrongly compressed, or cut off.
    """

    path: str
    wire: bytes
    body: bytes | None
    packed: bytes
    is_complete: bool


def _headers(agent: str, path: str) -> list[str]:
    anthropic = ["anthropic-version: 2023-06-01", "x-api-key: sk-x"]
    openai = ["authorization: Bearer sk-x"]
    return [
        f"x-foveate-agent: {agent}",
        "host: gateway",
        *(anthropic if path.startswith("/v1/mess") else openai),
    ]


def _frame_body(packed: bytes, framing: str, cuts: Sequence[int]) -> tuple[list[str], bytes, bool]:
    """Return the headers of a framing, the bytes after the head, and whether the body is complete."""
    places = sorted({cut % (len(packed) + 1) for cut in cuts} | {0, len(packed)})
    pieces = [packed[start:end] for start, end in pairwise(places) if end > start]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    match framing:
        case "chunked":
            return ["transfer-encoding: chunked"], chunks + b"0\r\n\r\n", True
        case "chunked_extension":
            chunks = b"".join(b'%X;a="b"\r\n%b\r\n' % (len(piece), piece) for piece in pieces)
            return ["transfer-encoding: chunked"], chunks + b"0\r\nx-foveate-agent: other\r\n\r\n", True
        case "no_last_chunk":
            return ["transfer-encoding: chunked"], chunks, False
        case "bad_chunk":
            return ["transfer-encoding: chunked"], chunks + b"-1\r\n", False
        case "long_length":
            return [f"content-length: {len(packed) + 9}"], packed, False
        case _:
            return [f"content-length: {len(packed)}"], packed, True


@st.composite
def fuzzed_requests(draw: st.DrawFn, seeds: Sequence[Seed], agent: Callable[[], str]) -> FuzzedRequest:
    """Requests of any format with up to a few errors."""
    types = st.sampled_from(("application/json", "application/json", "", "text/plain", "application/x-ndjson"))
    path, body, kind = draw(
        st.builds(_json_request, st.sampled_from(seeds), mutations, corruptions, types) | _forms
        if draw(st.integers(0, 9)) == 0
        else st.builds(_json_request, st.sampled_from(seeds), mutations, st.none() | corruptions, types)
    )
    encoding = draw(st.sampled_from(_ENCODINGS)) if draw(st.integers(0, 3)) == 0 else ""
    is_packed = draw(st.integers(0, 4)) > 0
    packer = _PACKERS.get(encoding)
    packed = packer(body) if packer is not None and is_packed else body
    is_known = is_packed if packer is not None else encoding in ("", "identity")
    if packer is not None and is_packed and draw(st.integers(0, 4)) == 0:
        packed, is_known = corrupt(packed, draw(corruptions.filter(bool))), False
    framings = ("length", "length", "length", "chunked", "chunked_extension", "no_last_chunk", "bad_chunk",
                "long_length")  # fmt: skip
    framing = draw(st.sampled_from(framings))
    lines, data, is_complete = _frame_body(packed, framing, draw(st.lists(st.integers(0, 2**16), max_size=5)))
    head = [f"POST {path} HTTP/1.1", *_headers(agent(), path), "connection: close", *lines]
    head += [f"content-type: {kind}"] if kind else []
    head += [f"content-encoding: {encoding}"] if encoding else []
    return FuzzedRequest(
        path=path,
        wire="\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + data,
        body=body if is_known and is_complete else None,
        packed=packed,
        is_complete=is_complete,
    )
