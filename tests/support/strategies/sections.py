"""Random sections, ladders and counters that are hard to cut."""

import functools
from typing import Any

from hypothesis import strategies as st

import foveate
from foveate.budget import Item, Keep, Priority, Section
from foveate.budget.ladder import BUILT_IN_LADDERS
from foveate.model import TokenCount
from foveate.tokens.offline_counters import counter_for, estimating_counter_for
from foveate.tokens.text_meter import TextCounter
from tests.support.strategies.texts import any_texts

CODE = 'def f(x):\n    """Docs."""\n    return {"a": [x, 1.5, None]}  # …\n\n\n'
PROSE = "The quick brown fox jumps over the lazy dog, and never looks back. "
CJK = "静かな湖畔の森の影から、もう起きちゃいかがと郭公が鳴く。"
FAMILY = "👨‍👩‍👧‍👦"

_blocks = st.sampled_from(
    (CODE, PROSE, CJK, FAMILY, "🇩🇪🇫🇷", "e\u0301" * 3, "क्षि", "\n", "\r\n\r\n", " ",
     "x", "- item\n", "{}", "0123456789", "...", '"a": 1,\n', "\t\t")
)  # fmt: skip
_built = st.lists(st.tuples(_blocks, st.integers(1, 12)), max_size=8).map(
    lambda blocks: "".join(text * times for text, times in blocks)
)
# Thousands of characters without a boundary, or long; repeated, so that Hypothesis need not generate it.
_huge = st.sampled_from(
    ("x" * 20_000, "漢字" * 8_000, FAMILY * 1_500, PROSE * 400, CODE * 300,
     "\u0301" * 9_000, "🇩🇪" * 4_500, "- " * 9_000)
)  # fmt: skip
# Like usual sections: some paragraphs with safe boundaries, and ends that merge with what follows.
_paragraphs = st.builds(
    lambda blocks, end: "".join(blocks) + end,
    st.lists(st.sampled_from((PROSE, CODE, CJK, f"{PROSE}\n\n")), min_size=2, max_size=20),
    st.sampled_from(("", ".", "\n", "):", "...", "'", " ", "!\n\n", "}", "7", "漢")),
)
texts = st.one_of(_paragraphs, _paragraphs, _built, _built, any_texts, _huge)
items = st.lists(
    st.one_of(any_texts, _built, st.builds(Item, _built, st.floats(-5, 5) | st.none())), max_size=12
)

_common_names = st.sampled_from(("logs", "context", "mandates", "system", "tools", "history"))
names = st.one_of(
    _common_names,
    _common_names,
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=5),
)
caps = st.none() | st.integers(0, 400)
shares = st.none() | st.floats(0, 1)
keeps = st.none() | st.sampled_from(Keep)
priorities = st.sampled_from(Priority)


@st.composite
def sections(draw: st.DrawFn, required: bool = True) -> list[Section]:
    """Sections with different names; `required`: some may be required."""
    contents: st.SearchStrategy[dict[str, Any]] = st.one_of(
        texts.map(lambda text: {"text": text}), items.map(lambda items: {"items": items})
    )
    allowed = priorities if required else priorities.filter(lambda priority: priority is not Priority.REQUIRED)
    return [
        Section(
            name,
            **draw(contents),
            priority=draw(allowed),
            max_tokens=draw(caps),
            share=draw(shares),
            keep=draw(keeps),
            enabled=draw(st.booleans() | st.just(True)),
        )
        for name in draw(st.lists(names, unique=True, max_size=6))
    ]


ladders = st.one_of(
    st.sampled_from(tuple(BUILT_IN_LADDERS)),
    st.lists(
        st.sampled_from(
            (
                {"last_lines": 2, "of": "logs"},
                {"drop": "mandates"},
                {"replace": "*", "with": "[{items} items gone]"},
                {"truncate": ["history", "s*"]},
                {"truncate": "lowest"},
                {"drop": "lowest"},
            )
        ),
        min_size=1,
        max_size=4,
    ),
)
limits = st.integers(1, 60) | st.integers(1, 3_000) | st.integers(1, 40_000)


@st.composite
def cases(draw: st.DrawFn, required: bool = True) -> tuple[list[Section], int]:
    """Sections and a limit: any, or one between the required sections and all of them."""
    some = draw(sections(required))
    if draw(st.booleans()):
        return some, draw(limits)
    enabled = [section for section in some if section.enabled]
    min_size_ = sum(_rough(section) for section in enabled if section.priority is Priority.REQUIRED)
    max_size_ = sum(map(_rough, enabled))
    return some, max(round(min_size_ + draw(st.floats(0, 1.1)) * (max_size_ - min_size_)), 1)


def _rough(section: Section) -> int:
    tokens = foveate.count(section.text).tokens + 1
    return tokens if section.max_tokens is None else min(tokens, section.max_tokens)


class Odd:
    """A counter whose counts do not add up; a longer text can have fewer tokens."""

    def text(self, text: str) -> TokenCount:
        if not text:
            return TokenCount(0, True, 0)
        tokens = len(text) // 3 + 7 * (len(text) % 2)
        return TokenCount(tokens, False, tokens + len(text) // 5 + 11)


# Exact and inexact ones, with and without safe boundaries.
COUNTERS = (
    "gpt-4o",
    "gpt-4",
    "claude-sonnet-4-5",
    "gemini-2.5-flash",
    "mistral-7b",
    "mixtral-8x7b",  # the only bundled vocabulary without safe boundaries
    "qwen3-32b",
    "nobody/knows",
    "estimated",
    "odd",
)


@functools.cache
def counter_named(name: str) -> TextCounter:
    """Load one of `COUNTERS`."""
    if name == "odd":
        return Odd()
    return estimating_counter_for("gpt-4o") if name == "estimated" else counter_for(name)
