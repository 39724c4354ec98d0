"""Edits of recorded requests."""

import gzip
import json
from pathlib import Path

import pytest

from foveate import formats
from foveate.errors import BadEdit, MalformedRequest
from foveate.model import (
    Area,
    BreakpointStyle,
    CacheBreakpoint,
    Edit,
    Format,
    InsertParts,
    Place,
    ReplaceText,
    SetParameter,
    Text,
)
from tests.support.oracles.edited_tree import EditedTree
from tests.support.oracles.json_tree import compare, scan

STYLES = {Format.CHAT: BreakpointStyle.CACHE_CONTROL, Format.RESPONSES: BreakpointStyle.PROMPT_CACHE_BREAKPOINT}
STYLES |= {Format.ANTHROPIC: BreakpointStyle.CACHE_CONTROL, Format.BEDROCK: BreakpointStyle.CACHE_POINT}
TEXTS = ("text", "input_text", "output_text")
EVERY = 4


@pytest.mark.slow
def test_recorded_requests_keep_every_byte_that_no_edit_means(shared_data: Path) -> None:
    edited = 0
    with gzip.open(shared_data / "usage_pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % EVERY:
                continue
            try:
                request = formats.parse_request(json.dumps(json.loads(line)["request"], indent=1).encode())
            except MalformedRequest:
                continue
            style = STYLES.get(request.format)
            texts = [block for block in formats.request_blocks(request) if block.kind in TEXTS]
            messages = [block for block in texts if block.place.area is Area.MESSAGES]
            edits: list[Edit] = [SetParameter(path=("foveate", "x"), value=1, reason="")]
            edits += [ReplaceText(place=block.place, text="short", reason="") for block in messages[:1]]
            edits += [InsertParts(place=Place(Area.MESSAGES, 0), parts=(Text("first"),), reason="")]
            if style:
                edits += [CacheBreakpoint(place=block.place, reason="") for block in messages[-1:]]
            expected = EditedTree(request.format, request.body, style).apply(edits)

            compare(expected, scan(formats.apply_edits(request, edits, breakpoint_style=style)))
            edited += 1
    assert edited > 300


def test_no_recorded_request_has_a_block_that_breaks_an_edit(shared_data: Path) -> None:
    """Each block alone can have a breakpoint, or is rejected by name."""
    refused = marked = 0
    with gzip.open(shared_data / "usage_pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % EVERY:
                continue
            try:
                request = formats.parse_request(json.loads(line)["request"])
            except MalformedRequest:
                continue
            for block in formats.request_blocks(request)[-3:]:
                try:
                    written = formats.apply_edits(request, [CacheBreakpoint(place=block.place, reason="")])
                except BadEdit:
                    refused += 1
                    continue
                again = {
                    b.place: b for b in formats.request_blocks(formats.parse_request(written, request.format))
                }
                assert again[block.place].breakpoint_ttl is not None
                assert again[block.place].canonical_json == block.canonical_json
                marked += 1
    assert marked > refused
