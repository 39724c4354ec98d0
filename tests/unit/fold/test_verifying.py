"""What is never taken for a summary, and what a summary leaves out."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foveate.fold.facts import facts_of
from foveate.fold.ranking import rank
from foveate.fold.verifying import missing_in, problem_of
from foveate.values import Message, Text

SUMMARY = "The user wants a parser for src/main.py. Next was to run the tests."


def count(text: str) -> int:
    return len(text) // 4


def problem(text: str, replaced_tokens: int = 10_000) -> str:
    return problem_of(text, replaced_tokens=replaced_tokens, count=count) or ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("<!DOCTYPE html><html><body>502 Bad Gateway</body></html>", "page"),
        ("\n<HTML><head><title>nginx</title>" + "x" * 5_000, "page"),
        ("```html\n<html>", "page"),
        ("<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>", "page"),
        ('{"error": {"message": "Overloaded"}}', "error"),
        ('{"type":"error","error":{"type":"overloaded_error"}}', "error"),
        ('```json\n{"error": "x"}\n```', "error"),
        ('{"detail": "Not Found"}', "error"),
        ("Internal Server Error", "error"),
        ("502 Bad Gateway", "error"),
        ("API Error: 529 {}", "error"),
        ("Error: rate limit exceeded, please try again later", "error"),
        ("upstream connect error or disconnect/reset before headers", "error"),
        ("Service Unavailable", "error"),
        ("Rate limit exceeded. Try again in 20 s.", "error"),
        ("Traceback (most recent call last):\n  File", "error"),
        ("I can't help with that.", "refusal"),
        ("I’m sorry, but I can’t assist with that request.", "refusal"),
        ("I cannot provide a summary of this conversation.", "refusal"),
        ("Sorry, I am unable to summarize this.", "refusal"),
        ("As an AI language model, I cannot do that.", "refusal"),
        ("I won't be able to continue with this.", "refusal"),
        ("I'm not able to help with this.", "refusal"),
        ("Unfortunately, I cannot comply with this request.", "refusal"),
        ("OK.", "nothing"),
        ("Understood, going on.", "nothing"),
    ],
)
def test_what_is_no_summary_is_named(text: str, why: str) -> None:
    assert why in problem(text)


@pytest.mark.parametrize(
    "text",
    [
        SUMMARY,
        "500 files were moved to src/old, and the tests pass again.",
        "404 pages now have a template of their own in templates/404.html.",
        "Server error handling was rewritten in src/app.py.",
        "Errors met: none. The user wants the parser to be faster.",
        "Goal: fix `Error: rate limit exceeded` in src/client.py.",
        "Sorry state of the tests: 12 of 40 fail in tests/test_api.py.",
        "The assistant said that it cannot help with the invoice; the user went on with the parser.",
        "Forbidden: touching /etc/hosts. Goal: a parser for logs.",
        '{"goal": "a faster parser", "open_tasks": ["run the tests"], "path": "src/main.py"}',
        "ユーザーは src/main.py のパーサーを速くしたい。次はテスト。",
    ],
)
def test_a_summary_that_speaks_of_errors_is_one(text: str) -> None:
    assert problem(text) == ""


def test_a_summary_that_is_longer_than_what_it_replaces_is_none() -> None:
    assert problem(SUMMARY, replaced_tokens=count(SUMMARY) + 1) == ""
    assert "longer" in problem(SUMMARY, replaced_tokens=count(SUMMARY))


def test_a_text_of_megabytes_is_refused_without_counting_it() -> None:
    def never(text: str) -> int:
        raise AssertionError(f"{len(text)} characters were counted")

    assert "longer" in (problem_of("so it went on " * 100_000, replaced_tokens=1_000, count=never) or "")


@settings(max_examples=60)
@given(st.text(max_size=3_000))
@example("I" + " a" * 1_500)
@example("sorry" + " " * 3_000)
def test_any_text_is_judged_at_once(text: str) -> None:
    assert isinstance(problem(text), str)


RULES = (
    "Never push to the main branch.",
    "You must keep Python 3.11 working.",
    "Do not touch config/prod.yaml.",
)
HISTORY = [
    Message(role="user", parts=(Text(f"Make the parser faster. {' '.join(RULES)}"),)),
    Message(role="assistant", parts=(Text("I look into src/parser.py and src/lexer.py."),)),
    Message(role="user", parts=(Text("Then src/parser.py first. The lexer later: src/lexer.py."),)),
]
RANKED = rank(facts_of(HISTORY), len(HISTORY))


def test_a_constraint_that_a_summary_drops_is_important() -> None:
    missing = missing_in(SUMMARY, RANKED, limit_tokens=400, count=count, most_tokens=800)

    assert set(RULES) <= set(missing.important)
    assert set(missing.important) <= set(missing.listed)


def test_what_a_summary_tells_is_not_missing() -> None:
    told = f"{SUMMARY} {' '.join(RULES)} It is about src/parser.py and src/lexer.py."
    missing = missing_in(told, RANKED, limit_tokens=400, count=count, most_tokens=800)

    assert not {*RULES, "src/parser.py", "src/lexer.py"} & set(missing.listed)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_list_never_makes_a_summary_longer_than_it_may_be(limit_tokens: int, most_tokens: int) -> None:
    missing = missing_in(SUMMARY, RANKED, limit_tokens=limit_tokens, count=count, most_tokens=most_tokens)

    listed = sum(count(fact) for fact in missing.listed)
    assert listed == 0 or count(SUMMARY) + listed <= most_tokens
