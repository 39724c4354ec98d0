"""Edits of requests that were really sent."""

import gzip
import json
from pathlib import Path

import pytest

from foveate import wire
from foveate.errors import BadEdit, MalformedRequest
from foveate.values import Area, Edit, Format, Insert, Mark, MarkStyle, Place, ReplaceText, SetParameter, Text
from tests.edited_trees import Edited
from tests.json_tree import compare, scan

STYLES = {Format.CHAT: MarkStyle.CACHE_CONTROL, Format.RESPONSES: MarkStyle.BREAKPOINT}
STYLES |= {Format.ANTHROPIC: MarkStyle.CACHE_CONTROL, Format.BEDROCK: MarkStyle.CACHE_POINT}
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
                request = wire.read(json.dumps(json.loads(line)["request"], indent=1).encode())
            except MalformedRequest:
                continue
            style = STYLES.get(request.format)
            texts = [block for block in wire.blocks(request) if block.kind in TEXTS]
            messages = [block for block in texts if block.place.area is Area.MESSAGES]
            edits: list[Edit] = [SetParameter(path=("foveate", "x"), value=1, reason="")]
            edits += [ReplaceText(place=block.place, text="short", reason="") for block in messages[:1]]
            edits += [Insert(place=Place(Area.MESSAGES, 0), parts=(Text("first"),), reason="")]
            if style:
                edits += [Mark(place=block.place, reason="") for block in messages[-1:]]
            expected = Edited(request.format, request.body, style).apply(edits)

            compare(expected, scan(wire.write(request, edits, marks=style)))
            edited += 1
    assert edited > 300


def test_no_recorded_request_has_a_block_that_breaks_an_edit(shared_data: Path) -> None:
    """Every block is marked by itself: that works, or is refused by name."""
    refused = marked = 0
    with gzip.open(shared_data / "usage_pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % EVERY:
                continue
            try:
                request = wire.read(json.loads(line)["request"])
            except MalformedRequest:
                continue
            for block in wire.blocks(request)[-3:]:
                try:
                    written = wire.write(request, [Mark(place=block.place, reason="")])
                except BadEdit:
                    refused += 1
                    continue
                again = {b.place: b for b in wire.blocks(wire.read(written, request.format))}
                assert again[block.place].mark is not None
                assert again[block.place].said == block.said
                marked += 1
    assert marked > refused
