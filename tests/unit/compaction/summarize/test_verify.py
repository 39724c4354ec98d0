from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveate.compaction.facts.extract import RankedFact, extract_facts, rank_facts, read_conversation
from foveate.compaction.summarize.verify import (
    check_relevance,
    find_missing_facts,
    find_outdated_values,
    find_problem,
)
from foveate.model import Message, Text

SUMMARY = "The user wants a parser for src/main.py. Next was to run the tests."


def count_tokens(text: str) -> int:
    return len(text) // 4


def find_problem_text(text: str, replaced_tokens: int = 10_000) -> str:
    return find_problem(text, replaced_tokens=replaced_tokens, count=count_tokens) or ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("<!DOCTYPE html><html><body>502 Bad Gateway</body></html>", "page"),
        ("\n<HTML><head><title>nginx</title>" + "x" * 5_000, "page"),
        ("```html\n<html>", "page"),
        ("<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>", "page"),
        ('{"error": {"message": "Overloaded"}}', "JSON"),
        ('```json\n{"error": "x"}\n```', "JSON"),
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
        ("The model is currently overloaded with work.", "error"),
        ("An error occurred while processing your request.", "error"),
        ("Well. That model is busy. Please try again later.", "error"),
        ("litellm.RateLimitError: too many requests at once", "error"),
        ("Request failed with status code 503 for now", "error"),
        ("You exceeded your current quota, so this has to wait.", "error"),
        ("This model's maximum context length is 8192 tokens.", "error"),
        ("prompt is too long: 213210 tokens > 200000 maximum", "error"),
        ("Thank you for asking, but I must respectfully decline to do so.", "refusal"),
        ("This content may violate our usage policies.", "refusal"),
        ("Lo siento, pero no puedo ayudar con esa solicitud.", "refusal"),
        ("Es tut mir leid, aber dabei kann ich nicht helfen.", "refusal"),
        ("Je suis désolé, mais je ne peux pas vous aider.", "refusal"),
        ("抱歉，我无法协助完成这个请求。", "refusal"),
        ("申し訳ありませんが、お手伝いできません。", "refusal"),
        ('{"message": "Internal server error", "code": 500}', "JSON"),
        ('{"success": false, "message": "quota exceeded for this project"}', "JSON"),
        ('{"goal": "a faster parser", "open_tasks": ["run the tests"], "path": "src/main.py"}', "JSON"),
        ('[{"code": 500}]', "JSON"),
        ("OK.", "too short"),
        ("Understood, going on.", "too short"),
    ],
)
def test_errors_and_refusals_are_not_summaries(text: str, reason: str) -> None:
    assert reason in find_problem_text(text)


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
        "[Summary] The user wants a parser for src/main.py, and no new dependency.",
        "I decided with the user to decline the offer of src/vendor; the parser stays.",
        "ユーザーは src/main.py のパーサーを速くしたい。次はテスト。",
    ],
)
def test_a_summary_may_be_about_errors(text: str) -> None:
    assert find_problem_text(text) == ""


def test_a_summary_longer_than_what_it_replaces_is_rejected() -> None:
    assert find_problem_text(SUMMARY, replaced_tokens=count_tokens(SUMMARY) + 1) == ""
    assert "longer" in find_problem_text(SUMMARY, replaced_tokens=count_tokens(SUMMARY))


def test_a_text_of_megabytes_is_rejected_without_counting() -> None:
    def fail_if_called(text: str) -> int:
        raise AssertionError(f"{len(text)} characters were counted")

    assert "longer" in (
        find_problem("so it went on " * 100_000, replaced_tokens=1_000, count=fail_if_called) or ""
    )


@given(st.text(max_size=3_000))
@example("I" + " a" * 1_500)
@example("sorry" + " " * 3_000)
def test_any_text_is_checked_quickly(text: str) -> None:
    assert isinstance(find_problem_text(text), str)


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


@cache
def ranked_facts() -> list[RankedFact]:
    return rank_facts(extract_facts(HISTORY), len(HISTORY))


GENERIC_TEXTS = (
    "Rate limit reached for gpt-4.1 in organization org-x on tokens per min (TPM): Limit 30000",
    "Your credit balance is too low to access the API. Go to Plans & Billing.",
    "Incorrect API key provided: sk-xxx. You can find your API key at https://platform.openai.com",
    "no healthy upstream to send this request to",
    "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
    "Something went wrong. If this issue persists, the help center has an answer.",
    "Model runner has unexpectedly stopped, this may be due to resource limitations",
    "Nie mogę pomóc w tej sprawie, bo jest to niezgodne z zasadami.",
    "Ich kann bei diesem Anliegen bedauerlicherweise nicht behilflich sein.",
    "この会話については回答を差し控えさせていただきます。",
    "Sure! Let me go on and run the tests now.",
    "Okay, I will continue with the parser now.",
    "I understand. What would you like me to do next?",
)
LONG_HISTORY = [
    *HISTORY,
    Message(role="assistant", parts=(Text("The tokens are split twice: once by the lexer, again in `scan`."),)),
    Message(role="user", parts=(Text("請保留舊的測試，不要刪除任何檔案。"),)),
]


@pytest.mark.parametrize("text", GENERIC_TEXTS)
def test_generic_text_is_not_a_summary(text: str) -> None:
    """Regression: "The model is currently overloaded" replaced the whole history."""
    assert "nothing" in (check_relevance(text, LONG_HISTORY) or "")


@pytest.mark.parametrize(
    "text",
    [
        "The user asked for a quicker parsing step and the lexer comes later.",
        "Der Parser soll schneller werden, danach kommt der Lexer dran.",
        "解析器要更快；請保留舊的測試，不要刪除檔案。",
        "Work goes on in src/parser.py.",
    ],
)
def test_a_short_summary_in_other_words_is_accepted(text: str) -> None:
    assert check_relevance(text, LONG_HISTORY) is None


def test_a_summary_may_cover_only_the_earlier_summary() -> None:
    earlier = "The wizard has collected seven dragons, three potions, one sword and no horse."

    assert check_relevance("So far: dragons, potions and swords.", LONG_HISTORY) is not None
    assert check_relevance("So far: dragons, potions and swords.", LONG_HISTORY, earlier) is None


def test_a_history_of_a_few_words_is_not_compared() -> None:
    assert (
        check_relevance("They greeted each other.", [Message(role="user", parts=(Text("Hi there, Ana!"),))])
        is None
    )


def test_an_omitted_constraint_is_important() -> None:
    missing = find_missing_facts(SUMMARY, ranked_facts(), limit_tokens=400, count=count_tokens, max_tokens=800)

    assert set(RULES) <= set(missing.important)
    assert set(missing.important) <= set(missing.listed)
    assert missing.carried_facts == missing.listed


def test_all_omitted_constraints_are_important_whatever_fits() -> None:
    """Regression: 10 of 60 constraints fit the list, and nothing said that the others were missing."""
    rules = [f"Never touch the table number {number} of the database." for number in range(60)]
    questions = [Message(role="user", parts=(Text(" ".join(rules)),))]
    missing = find_missing_facts(
        SUMMARY,
        rank_facts(extract_facts(questions), 1),
        limit_tokens=60,
        count=count_tokens,
        max_tokens=count_tokens(SUMMARY) + 100,
    )

    assert set(rules) <= set(missing.important)
    listed_rules = len(set(rules) & set(missing.listed))
    assert 0 < listed_rules < 10
    assert missing.unlisted == 60 - listed_rules
    assert missing.carried_facts == (
        *missing.listed,
        f"and {60 - listed_rules} more that may be needed, for which there is no room here",
    )


def test_a_summary_at_its_token_limit_is_checked_too() -> None:
    missing = find_missing_facts(
        SUMMARY, ranked_facts(), limit_tokens=400, count=count_tokens, max_tokens=count_tokens(SUMMARY)
    )

    assert set(RULES) <= set(missing.important)
    assert missing.listed == ()
    assert missing.unlisted == len(missing.important)


def test_mentioned_facts_are_not_missing() -> None:
    summary_text = f"{SUMMARY} {' '.join(RULES)} It is about src/parser.py and src/lexer.py."
    missing = find_missing_facts(
        summary_text, ranked_facts(), limit_tokens=400, count=count_tokens, max_tokens=800
    )

    assert not {*RULES, "src/parser.py", "src/lexer.py"} & set(missing.listed)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_list_keeps_the_summary_within_its_limit(limit_tokens: int, max_tokens: int) -> None:
    missing = find_missing_facts(
        SUMMARY, ranked_facts(), limit_tokens=limit_tokens, count=count_tokens, max_tokens=max_tokens
    )

    listed_tokens = sum(count_tokens(fact) for fact in missing.listed)
    assert listed_tokens == 0 or count_tokens(SUMMARY) + listed_tokens <= max_tokens


def test_a_value_that_is_no_longer_true_is_a_reason_for_a_redraft() -> None:
    history = [
        Message(role="user", parts=(Text("The staging port is 8081. The production port is 8443."),)),
        Message(role="user", parts=(Text("The staging port is 8090 now."),)),
    ]
    conversation = read_conversation(history)

    assert find_outdated_values("Staging runs on 8081, production on 8443.", conversation) == (
        "8081 is no longer true. What holds: The staging port is 8090 now.",
    )
    assert find_outdated_values("Staging runs on 8090, production on 8443, id 180819.", conversation) == ()
    missing = find_missing_facts(
        "Staging runs on 8081.",
        [],
        limit_tokens=400,
        count=count_tokens,
        max_tokens=800,
        conversation=conversation,
    )
    assert missing.redraft_reasons == missing.outdated != ()
