"""Recorded calls of provider APIs: request, route and reported usage."""

import base64
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.harness import BadData
from foveate.model import Format

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
PAIRS = "usage_pairs.jsonl.gz"
COUNTED_CALLS = "count_tokens.jsonl.gz"

Body = Mapping[str, Any]

# The first that matches the path gives the format; None stands for routes with several formats.
_ROUTES: tuple[tuple[str, Format | None], ...] = (
    (r"/messages(/count_tokens)?$|:(stream)?rawPredict$", Format.ANTHROPIC),
    (r"/chat/completions$|/v[12]/chat$", Format.CHAT),
    (r"/responses(/input_tokens)?$", Format.RESPONSES),
    (r":(generateContent|streamGenerateContent|countTokens)$", Format.GEMINI),
    (r"/converse(-stream)?$", Format.BEDROCK),
    (r"/invoke(-with-response-stream)?$|/count-tokens$", None),
)
_MODEL_IN_PATH = re.compile(r"/(?:model|models|deployments)/([^/]+?)(?::[a-z]+[A-Za-z]*)?(?:/|$)")
_MESSAGES = {"messages", "input", "contents", "generateContentRequest"}
# Usage fields of the input; the parts of a tuple add up, and the first tuple that is present counts.
_INPUT_TOKEN_FIELDS = (
    ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    ("prompt_tokens",),
    ("promptTokenCount",),
    ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens"),
    ("totalTokens",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One recorded call.

    `source` is the repository that recorded it. `has_messages`: it gives a model messages to read, and not, for
    example, texts to embed. `format` is None if the route allows several, `billed` if the provider reported
    nothing.
    """

    source: str
    provider: str
    host: str
    route: str
    model: str
    format: Format | None
    has_messages: bool
    body: Body
    input_tokens: int | None


def read_pairs(data: Path | None) -> list[RecordedCall]:
    """Return the calls and their usage in `data`, a folder or a file; by default those next to the project.

    Raises:
        BadData: there is no such file, or it does not contain recorded calls.
    """
    path = data or DATA
    files = _pairs_in(path) if path.is_dir() else [path]
    return [
        _make_call(row, provider=str(row["provider"]), usage=row["usage"])
        for file in files
        for row in _rows(file, needs=("uri", "provider", "usage"))
    ]


def read_counted(data: Path | None) -> list[RecordedCall]:
    """Return calls of the providers' counting endpoints; empty if `data` has no such file.

    Raises:
        BadData: the file does not contain recorded calls.
    """
    path = (data or DATA) / COUNTED_CALLS
    if not path.is_file():
        return []
    return [
        _make_call(row, provider="counting endpoints", usage=row["response"])
        for row in _rows(path, needs=("uri", "response"))
    ]


def _rows(path: Path, *, needs: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield every recorded call in `path`; invalid lines are reported and skipped."""
    passed_over = found = 0
    for line in _lines(path):
        try:
            row = json.loads(line)
        except ValueError:
            row = {}
        whole = isinstance(row, dict) and isinstance(row.get("request"), dict)
        if not whole or any(name not in row for name in needs):
            passed_over += 1
            continue
        found += 1
        yield row
    if not found:
        raise BadData(f"there is no recorded call in {path}")
    if passed_over:
        print(f"{path}: {passed_over} lines are no recorded calls", file=sys.stderr)


def _lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _pairs_in(folder: Path) -> list[Path]:
    """Find the files of pairs in a folder, whatever their names."""
    return sorted(folder.glob("*pairs*.jsonl*")) or [folder / PAIRS]


def _make_call(row: Mapping[str, Any], *, provider: str, usage: object) -> RecordedCall:
    uri = urlsplit(str(row["uri"]))
    route = next(
        ((pattern, api_format) for pattern, api_format in _ROUTES if re.search(pattern, uri.path)), None
    )
    path_model = _MODEL_IN_PATH.search(uri.path)
    body, api_format = _unwrap(row["request"], route[1] if route else None)
    model = row.get("model") or (unquote(path_model[1]) if path_model else "") or body.get("model") or ""
    return RecordedCall(
        source=str(row.get("repo") or ""),
        provider=provider,
        host=uri.hostname or "",
        route=_kind(uri.path),
        model=str(model).removeprefix("models/"),
        format=api_format,
        has_messages=route is not None and body.keys() & _MESSAGES != set(),
        body=body,
        input_tokens=_input_tokens(usage),
    )


def _kind(path: str) -> str:
    """Return the last word of a route, which names the operation."""
    return re.split(r"[/:]", path.rstrip("/"))[-1]


def _unwrap(body: Body, api_format: Format | None) -> tuple[Body, Format | None]:
    """Return the request inside a call of Bedrock's counting endpoint, or `body` unchanged."""
    wrapped = body.get("input")
    if api_format is not None or not isinstance(wrapped, dict):
        return body, api_format
    if isinstance(wrapped.get("converse"), dict):
        return wrapped["converse"], Format.BEDROCK
    invoked = wrapped.get("invokeModel")
    if not isinstance(invoked, dict):
        return body, api_format
    try:
        inner = json.loads(base64.b64decode(str(invoked.get("body")), validate=True))
    except ValueError:
        return body, api_format
    return (inner, None) if isinstance(inner, dict) else (body, api_format)


def _input_tokens(usage: object) -> int | None:
    usage_fields: dict[str, Any] = usage if isinstance(usage, dict) else {}
    counts = (
        usage_fields.get("billed_units") or usage_fields
    )  # Cohere: billed units, as opposed to what the model reads
    for first, *more in _INPUT_TOKEN_FIELDS:
        if isinstance(counts.get(first), int | float):
            return int(counts[first] + sum(counts.get(name) or 0 for name in more)) or None
    return None
