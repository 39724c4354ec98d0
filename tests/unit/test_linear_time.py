"""Functions that parse text take linear time for any text.

Each is run on text that is slow for many parsers, and on repeated fragments of its own syntax.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

import foveate
from foveate.compaction.facts.extract import extract_facts
from foveate.compaction.facts.mentions import MentionIndex
from foveate.compaction.summarize.verify import find_problem, shares_content
from foveate.config.document import parse_document
from foveate.config.dotenv import parse_env
from foveate.engine.redaction import redact_keys
from foveate.errors import FoveateError
from foveate.formats import parse_request
from foveate.formats.json_text.parse import to_bytes
from foveate.formats.response.event_streams import JsonListSplitter, SseSplitter
from foveate.memory.parsing import parse_notes
from foveate.memory.privacy import Gate
from foveate.memory.search.words import split_words
from foveate.memory.views.page import split_passages
from foveate.model import Format, Message, Text
from foveate.prompt_cache.misses.field_diff import compare_texts
from foveate.prompt_cache.rejections import classify_rejection
from tests.support.oracles.time_growth import superlinear_ratio
from tests.support.strategies.regex_attacks import Attack, attacks

_SIZE = 2**13
_CHUNK = 700
_GATE = Gate()
_COMBINING_MARKS = ("\u0301\u0316", "\u0f73", "ﬀ\u0327\u0301")
_SENTENCES = (
    ", no emojis",
    "why never ",
    "do not ",
    "must ",
    "error: ",
    "ValueError: a ",
    "don't ",
    "我必须",
    "？",
)
_WORDS = (
    ":1",
    "a/b.py:1",
    "a/",
    "\\a",
    "C:\\a",
    "v1.",
    "a-1-",
    "http://a/",
    "A Bc ",
    "`a`",
    "“a”",
    "1,",
    "@a/",
)
_NOTES = (
    ":PROPERTIES:\n",
    ":a: b\n",
    "#+begin_src\n",
    "> ",
    "- [ ] a\n",
    "a\n===\n",
    "<div>\n",
    "#private ",
    " - a",
)


def _extract_facts(role: str) -> Callable[[str], object]:
    return lambda text: extract_facts((Message(role=role, parts=(Text(text),)),))


def _parse_notes(path: str) -> Callable[[str], object]:
    return lambda text: _GATE.redact(parse_notes(f"{text}\n- #private\n{text}", path=path))


def _split_events(splitter: Callable[[], SseSplitter | JsonListSplitter]) -> Callable[[str], object]:
    def run(text: str) -> None:
        data, splits = text.encode(), splitter()
        for start in range(0, len(data), _CHUNK):
            splits.feed(data[start : start + _CHUNK])
        splits.end()

    return run


def _count_tokens(model: str) -> Callable[[str], object]:
    return lambda text: foveate.count(text, model)


def _chat(text: str) -> bytes:
    return to_bytes({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]})


_READERS: dict[str, tuple[Callable[[str], object], Sequence[str]]] = {
    "facts of a user": (_extract_facts("user"), (*_SENTENCES, *_WORDS)),
    "facts of a model": (_extract_facts("assistant"), (*_SENTENCES, *_WORDS)),
    "facts of a tool": (_extract_facts("tool"), (*_SENTENCES, *_WORDS)),
    "mentions in a summary": (MentionIndex, (*_SENTENCES, *_WORDS, *_COMBINING_MARKS)),
    "content of a summary": (lambda text: shares_content(text, [text]), (*_WORDS, *_COMBINING_MARKS)),
    "problems of a summary": (
        lambda text: find_problem(text, replaced_tokens=10**9, count=len),
        ("as an ai ", "sorry, ", "I can't ", "```a\n", "{"),
    ),
    "redaction": (redact_keys, ("sk-", "sk-aaaaaa", "bearer ", "://a:", "api_key=", "?key=")),
    "notes in Org": (_parse_notes("a.org"), (*_NOTES, "* a :b:\n", "#+a: b\n", "[[a][b]]")),
    "notes in Markdown": (_parse_notes("a.md"), (*_NOTES, "# a #b\n", "[a](b)", "[a]: b\n", "<!-- ")),
    "words of notes": (split_words, (*_COMBINING_MARKS, "日本", "ไทย")),
    "passages of notes": (lambda text: list(split_passages(text)), ("a. ", "🇩🇪")),
    "changes of a text": (
        lambda text: compare_texts(f"{text}a{text}", f"{text}b{text}"),
        ("2026-11-16 ", "12:", *_COMBINING_MARKS),
    ),
    "a provider's rejection": (
        lambda text: classify_rejection(400, to_bytes({"error": {"message": text}})),
        ("cache_control",),
    ),
    "a file of variables": (lambda text: parse_env(text, "x"), ('A="\n', "A='b\n", "A=b\n", 'A="\\')),
    "a file of settings": (
        lambda text: parse_document(text.encode(), "x"),
        ("a: b\n", "- ", "{", "[", "&a ", "*a ", "? "),
    ),
    "events": (_split_events(SseSplitter), ("data: a\n", "data: a\r\n\r\n", "\r", ":")),
    "a list of objects": (_split_events(JsonListSplitter), ("[{", '{"a":"', "\\", "},{")),
    "a request": (lambda text: parse_request(_chat(text), Format.CHAT), ("\\ud83d", '\\"')),
    "a body": (lambda text: parse_request(text.encode(), Format.CHAT), ('{"a":', "[", '"\\', "\\ud83d")),
    "tokens of GPT": (_count_tokens("gpt-4o"), _COMBINING_MARKS),
    "tokens of Claude": (_count_tokens("claude-sonnet-4-5"), _COMBINING_MARKS),
    "tokens of Gemini": (_count_tokens("gemini-2.5-pro"), _COMBINING_MARKS),
    "tokens of Qwen": (_count_tokens("qwen3-32b"), _COMBINING_MARKS),
    "tokens of an unknown model": (_count_tokens("nobody-1"), _COMBINING_MARKS),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", _READERS)
def test_a_text_is_read_in_linear_time(reader: str) -> None:
    read_text, fragments = _READERS[reader]

    def run(text: str) -> None:
        with suppress(FoveateError):
            read_text(text)

    run("a")  # one-time loading is not measured
    inputs = [*attacks(), *(Attack("", unit, after) for unit in fragments for after in ("", " =", "?  "))]
    ratios = {attack: superlinear_ratio(run, attack.text, max_size=_SIZE) for attack in inputs}

    assert {attack: ratio for attack, ratio in ratios.items() if ratio is not None} == {}
