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
TEXT_TYPES = ("text", "input_text", "output_text")
SAMPLE_STEP = 4


@pytest.mark.slow
def test_recorded_requests_keep_every_byte_outside_their_edits(shared_data: Path) -> None:
    edited = 0
    with gzip.open(shared_data / "usage_pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % SAMPLE_STEP:
                continue
            try:
                request = formats.parse_request(json.dumps(json.loads(line)["request"], indent=1).encode())
            except MalformedRequest:
                continue
            style = STYLES.get(request.format)
            texts = [block for block in formats.request_blocks(request) if block.kind in TEXT_TYPES]
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


def test_every_block_of_a_recorded_request_accepts_or_rejects_a_breakpoint(shared_data: Path) -> None:
    """Each block alone can have a breakpoint, or is rejected by name."""
    rejected = accepted = 0
    with gzip.open(shared_data / "usage_pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % SAMPLE_STEP:
                continue
            try:
                request = formats.parse_request(json.loads(line)["request"])
            except MalformedRequest:
                continue
            for block in formats.request_blocks(request)[-3:]:
                try:
                    edited = formats.apply_edits(request, [CacheBreakpoint(place=block.place, reason="")])
                except BadEdit:
                    rejected += 1
                    continue
                blocks_by_place = {
                    edited_block.place: edited_block
                    for edited_block in formats.request_blocks(formats.parse_request(edited, request.format))
                }
                assert blocks_by_place[block.place].breakpoint_ttl is not None
                assert blocks_by_place[block.place].canonical_json == block.canonical_json
                accepted += 1
    assert accepted > rejected
