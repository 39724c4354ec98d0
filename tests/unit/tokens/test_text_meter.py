"""Texts joined from parts of measured texts count like the whole text."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.model import TokenCount
from foveate.tokens.counter import RequestCounter
from foveate.tokens.offline_counters import counter_for, estimating_counter_for
from foveate.tokens.text_meter import MeasuredText, TextMeter, TextSpan, text_meter_for
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.texts import any_texts, texts

MODELS = (
    "gpt-4o", "gpt-4", "claude-sonnet-4-5", "claude-opus-4-7", "gemini-2.5-flash", "llama-3.3-70b", "qwen3-32b",
    "deepseek-chat", "mistral-7b", "mixtral-8x7b", "nobody/knows-this",
)  # fmt: skip


ESTIMATED = {"estimated gpt-4o": "gpt-4o", "estimated x": "x"}


@cache
def counter_named(name: str) -> RequestCounter:
    return estimating_counter_for(ESTIMATED[name]) if name in ESTIMATED else counter_for(name)


# Long enough for safe boundaries inside, repeated so that Hypothesis need not generate all of it.
long_texts = st.builds(lambda text, times: text * times, texts, st.integers(1, 60))
stretches = st.sampled_from(
    ("x" * 9000, "漢字" * 5000, "😀" * 9000, "e\u0301" * 5000, "12" * 5000, "- " * 5000)
)
pieces = st.one_of(any_texts, long_texts, stretches)


@st.composite
def text_parts(draw: st.DrawFn) -> list[str | tuple[str, int, int]]:
    """Texts, and parts of texts."""
    parts: list[str | tuple[str, int, int]] = []
    for text in draw(st.lists(pieces, min_size=1, max_size=4)):
        start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        parts.append(draw(st.sampled_from((text, (text, 0, len(text)), (text, 0, end), (text, start, end)))))
        parts.append(draw(st.sampled_from(("\n\n", "\n", "", "\n[...truncated]"))))
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *ESTIMATED])
def test_joined_parts_count_like_the_whole_text(name: str) -> None:
    counter = counter_named(name)

    @given(parts=text_parts())
    def holds(parts: list[str | tuple[str, int, int]]) -> None:
        meter = counter.text_meter
        whole = "".join(part if isinstance(part, str) else part[0][part[1] : part[2]] for part in parts)
        measured = [
            part if isinstance(part, str) else TextSpan(meter.measure(part[0]), part[1], part[2])
            for part in parts
        ]

        assert meter.count(measured) == counter.text(whole)
        assert meter.count([meter.join(measured[:2]), meter.join(measured[2:])]) == counter.text(whole)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *ESTIMATED])
def test_joined_whole_texts_count_like_one_text(name: str) -> None:
    counter = counter_named(name)
    ends = st.sampled_from((".", "):", "...", "'", "!\n", "}", "word", "7", "漢", " "))
    long_enough = (
        "and so it went on, day after day, until somebody came and looked, and there was nothing to be seen"
    )
    some_words = st.builds(lambda text, end: f"{text} {long_enough}{end}", texts, ends)

    @given(
        whole_texts=st.lists(some_words | some_words | pieces, max_size=4),
        separator=st.sampled_from(("\n\n", "\n", "")),
    )
    def holds(whole_texts: list[str], separator: str) -> None:
        whole_texts = [text for text in whole_texts if text]
        measured = counter.text_meter.measure_many(whole_texts)

        assert counter.text_meter.count_joined(measured, separator) == counter.text(separator.join(whole_texts))

    holds()


@settings(max_examples=limit_examples(50))
@given(text=pieces)
def test_a_single_text_counts_like_itself(text: str) -> None:
    counter = counter_for("gpt-4o")

    assert counter.text_meter.count([counter.text_meter.measure(text)]) == counter.text(text)


class NonAdditiveCounter:
    """A counter whose counts of parts do not add up."""

    def text(self, text: str) -> TokenCount:
        return TokenCount(len(text) // 3 + 7, False, len(text) // 2 + 13)


@settings(max_examples=limit_examples(50))
@given(texts=st.lists(pieces, max_size=4))
def test_an_unknown_counter_counts_the_whole_text(texts: list[str]) -> None:
    meter = text_meter_for(NonAdditiveCounter())
    whole = "".join(texts)

    count = meter.count([meter.measure(text) for text in texts])

    assert count == (NonAdditiveCounter().text(whole) if whole else TokenCount(0, True, 0))


@pytest.mark.parametrize(
    "neighbor", ["End every turn with <|im_end|> please.", " \t" * 200, "<start_of_turn>user"]
)
def test_a_tag_is_one_token_for_gemini_next_to_special_tokens(neighbor: str) -> None:
    """Regression: 475 tokens as sections and 876 as their prompt, which could be too long."""
    counter = counter_for("gemini-2.5-flash")
    page = "<table><tr><td>one</td><td>two</td></tr></table>" * 40
    measured_texts = counter.text_meter.measure_many([page, neighbor])

    assert counter.text(page).tokens <= 10 * 40
    assert counter.text_meter.count_joined(measured_texts, "\n\n") == counter.text(f"{page}\n\n{neighbor}")
    assert (
        counter.text(f"{page} {neighbor}").tokens
        <= counter.text(page).tokens + counter.text(neighbor).tokens + 2
    )


def test_the_text_meter_of_a_counter_is_used_and_caches() -> None:
    counter = counter_for("gpt-4o")
    meter = text_meter_for(counter)

    assert meter is counter.text_meter
    assert meter.measure("some text " * 100) is meter.measure("some text " * 100)


def test_only_text_around_joins_is_tokenised_again() -> None:
    tokenizer = counter_for("gpt-4o")._tokenizer
    tokenized: list[str] = []

    class RecordingTokenizer:
        safe_boundary, to_token_count, count_steps = (
            tokenizer.safe_boundary,
            tokenizer.to_token_count,
            tokenizer.count_steps,
        )

        def additive_counts(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
            tokenized.extend(texts)
            return tokenizer.additive_counts(texts)

    meter = TextMeter(RecordingTokenizer())
    measured_texts = [meter.measure(f"{i}. " + "The quick brown fox jumps. " * 400) for i in range(10)]
    measured_chars = sum(map(len, tokenized))
    tokenized.clear()

    meter.count([part for measured_text in measured_texts for part in (measured_text, "\n\n")])

    assert measured_chars == sum(len(measured_text.text) for measured_text in measured_texts)
    assert 0 < sum(map(len, tokenized)) < measured_chars / 200


def test_the_cache_is_bounded() -> None:
    meter = TextMeter(counter_for("gpt-4o")._tokenizer)
    for i in range(40):
        meter.measure(f"{i} " + "words " * 200_000)

    assert 1 < len(meter._measured_texts) < 40
    assert meter._cached_chars == sum(len(text) for text in meter._measured_texts)
    assert isinstance(meter.measure("more"), MeasuredText)
