"""Time to insert cache breakpoints into requests of 100 KB to 10 MB, compared with decoding and encoding.

The same is measured with one emoji that a client cut in half, which msgspec rejects and providers accept.

The time covers all work of a gateway on the bytes of a request that gets four cache breakpoints: Foveate scans
it and inserts the breakpoints into the original bytes; the peers decode all of it, set the same breakpoints,
and encode all of it.
"""

import json
import math
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import BadData, Report, Timings, time_side_by_side
from foveate import formats
from foveate.model import Area, CacheBreakpoint, Edit, Place

SEED = 20261115
# (bytes, messages); the figures are of the second.
SIZES = ((100_000, 50), (1_000_000, 500), (1_000_000, 2_000), (10_000_000, 5_000))
MAIN = (1_000_000, 500)
CACHE_CONTROL = {"type": "ephemeral"}

TEXT = """
def read(path: str) -> bytes:
    "The file."
    return open(path, "rb").read()
for line in lines:
\tif line.startswith('# '): yield line[2:]
{"name": "naïve café", "größe": 12.5, "漢字": ["試験", "🙂"], "path": "C:\\\\Users\\\\me"}
ERROR: test_edit failed: expected 'a\\tb' but got "a b" (exit code 1); see the log…
"""
WORDS = TEXT.split(" ")


FIGURES = (
    "time_of_json",
    "time_of_msgspec",
    "write_time_of_json",
    "blocks_seen_before_time_of_json",
    "cut_emoji_time_of_json",
    "growth_exponent",
    "ms",
)


def run(data: Path | None) -> Report:
    """Return Foveate's time as a share of the peers'."""
    if data is not None:
        raise BadData("this benchmark reads no recorded data")
    timings = {size: _time_edits(*size) for size in SIZES}
    main, cut = timings[MAIN], _time_edits_with_cut_emoji(*MAIN)
    small, large = timings[SIZES[0]], timings[SIZES[-1]]
    growth = math.log(large.median_seconds("foveate") / small.median_seconds("foveate")) / math.log(
        SIZES[-1][0] / SIZES[0][0]
    )
    return Report(
        figures={
            "time_of_json": round(1 / main.speedup("foveate", over="json"), 3),
            "time_of_msgspec": round(1 / main.speedup("foveate", over="msgspec"), 3),
            "write_time_of_json": round(1 / main.speedup("write", over="json"), 3),
            "blocks_seen_before_time_of_json": round(1 / main.speedup("blocks", over="json"), 3),
            "cut_emoji_time_of_json": round(
                1 / cut.speedup("foveate, a cut emoji", over="json, a cut emoji"), 3
            ),
            "growth_exponent": round(growth, 2),
            "ms": round(main.median_seconds("foveate") * 1000, 2),
        },
        peers={peer: {"ms": round(main.median_seconds(peer) * 1000, 2)} for peer in ("json", "msgspec")},
        rows=[
            {
                "bytes": size,
                "messages": messages,
                "what": name,
                "ms": round(taken.median_seconds(name) * 1000, 2),
            }
            for (size, messages), taken in (*timings.items(), (MAIN, cut))
            for name in taken.seconds
        ],
    )


def _time_edits(size_bytes: int, messages: int) -> Timings:
    body = json.dumps(_make_session(size_bytes, messages), ensure_ascii=False).encode()
    places = _places(messages)
    edits: list[Edit] = [CacheBreakpoint(place=place, reason="bench") for place in places]
    request = formats.parse_request(body)
    contenders: dict[str, Callable[[], object]] = {
        "foveate": lambda: formats.apply_edits(formats.parse_request(body), edits),
        "json": partial(_round_trip, body, json.loads, _dump, places),
        "msgspec": partial(_round_trip, body, msgspec.json.decode, msgspec.json.encode, places),
        "write": lambda: formats.apply_edits(request, edits),
        "blocks": lambda: formats.request_blocks(request),
    }
    ours = json.loads(formats.apply_edits(request, edits))
    theirs = json.loads(_round_trip(body, json.loads, _dump, places))
    assert ours == theirs, "the contenders do not say the same"
    return time_side_by_side(contenders, rounds=5 if size_bytes > 2_000_000 else 11)


def _time_edits_with_cut_emoji(size_bytes: int, messages: int) -> Timings:
    body = json.dumps(_make_session(size_bytes, messages), ensure_ascii=False).encode()
    half = len(body) // 2
    body = body[:half] + body[half:].replace("🙂".encode(), rb"\ud83d", 1)
    places = _places(messages)
    edits: list[Edit] = [CacheBreakpoint(place=place, reason="bench") for place in places]
    contenders: dict[str, Callable[[], bytes]] = {
        "foveate, a cut emoji": lambda: formats.apply_edits(formats.parse_request(body), edits),
        "json, a cut emoji": partial(_round_trip, body, json.loads, _dump, places),
    }
    ours, theirs = (json.loads(contender()) for contender in contenders.values())
    assert ours == theirs, "the contenders do not say the same"
    return time_side_by_side(contenders, rounds=11)


def _places(messages: int) -> list[Place]:
    tail = Place(Area.MESSAGES, messages - 1, 0)
    return [Place(Area.TOOLS, 19), Place(Area.SYSTEM, 0), Place(Area.MESSAGES, messages // 2, 0), tail]


def _round_trip(
    body: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], places: list[Place]
) -> bytes:
    request = decode(body)
    for place in places:
        listed = request[place.area]
        block = listed[place.index] if place.block is None else listed[place.index]["content"][place.block]
        block["cache_control"] = CACHE_CONTROL
    return encode(request)


def _dump(request: Any) -> bytes:
    return json.dumps(request).encode()


def _make_session(size_bytes: int, messages: int) -> dict[str, Any]:
    """Return a coding agent's request: tool calls and results, code, escapes, several scripts."""
    dice = random.Random(SEED)
    share = size_bytes * 2 // messages - 350
    content: list[dict[str, Any]] = []
    for turn in range(messages // 2):
        name = f"toolu_{turn:06}"
        call = {"type": "tool_use", "id": name, "name": "read", "input": {"path": f"src/{turn}.py"}}
        plan = {"type": "text", "text": _text(dice, share // 8)}
        result = {"type": "tool_result", "tool_use_id": name, "content": _text(dice, share * 3 // 4)}
        content.append({"role": "assistant", "content": [plan, call]})
        content.append({"role": "user", "content": [result]})
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 8192,
        "system": [{"type": "text", "text": _text(dice, size_bytes // 100)}],
        "tools": [
            {"name": f"tool_{number}", "description": _text(dice, 200), "input_schema": schema}
            for number in range(20)
        ],
        "messages": content,
    }


def _text(dice: random.Random, length: int) -> str:
    return " ".join(dice.choices(WORDS, k=max(1, length // 7)))[:length]
