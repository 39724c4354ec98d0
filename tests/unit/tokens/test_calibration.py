"""Usage corrects the estimates of an unknown model."""

import json
import random
import statistics
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.model import TokenCount
from foveate.tokens.calibration import Calibration

RATE, EXTRA_TOKENS = 1.3, 200


def estimate(tokens: int) -> TokenCount:
    return TokenCount(tokens, False, round(tokens * 1.2))


def stream(
    seed: int, *, rate: float = RATE, extra: int = EXTRA_TOKENS, noise: float = 0.0
) -> Iterator[tuple[int, int]]:
    """Estimates from 200 to 100,000 tokens, and their usage."""
    rng = random.Random(seed)
    while True:
        estimated = round(200 * 500 ** rng.random())
        yield estimated, max(1, round(estimated * rate * (1 + rng.gauss(0, noise)) + extra))


def calibrate(pairs: Iterator[tuple[int, int]], responses: int) -> Calibration:
    calibration = Calibration()
    for _ in range(responses):
        calibration = calibration.observe(*next(pairs))
    return calibration


def error(calibration: Calibration, estimated: int, used_tokens: int) -> float:
    return abs(calibration.correct(estimate(estimated)).tokens - used_tokens) / used_tokens


def test_nothing_is_corrected_before_the_first_response() -> None:
    assert Calibration().correct(estimate(1000)) == estimate(1000)


@pytest.mark.parametrize(
    ("rate", "extra", "noise"),
    [(1.3, 200, 0.0), (1.3, 200, 0.02), (1.6, 100, 0.02), (0.8, 0, 0.02), (1.0, 500, 0.02)],
)
def test_the_error_falls_below_five_percent_within_five_responses(
    rate: float, extra: int, noise: float
) -> None:
    errors = []
    for seed in range(100):
        pairs = stream(seed, rate=rate, extra=extra, noise=noise)
        calibration = calibrate(pairs, 5)
        errors += [error(calibration, *next(pairs)) for _ in range(5)]

    assert statistics.median(errors) < 0.025
    assert sum(relative_error < 0.05 for relative_error in errors) / len(errors) > 0.85


def test_without_noise_nearly_every_error_is_below_five_percent_after_five_responses() -> None:
    errors = []
    for seed in range(100):
        pairs = stream(seed)
        calibration = calibrate(pairs, 5)
        errors += [error(calibration, *next(pairs)) for _ in range(5)]

    assert sum(relative_error < 0.05 for relative_error in errors) / len(errors) > 0.95


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_upper_covers_usage_after_ten_responses_without_being_too_wide(noise: float) -> None:
    covered, width = [], []
    for seed in range(50):
        pairs = stream(seed, noise=noise)
        calibration = calibrate(pairs, 10)
        for _ in range(20):
            estimated, used_tokens = next(pairs)
            count = calibration.correct(estimate(estimated))
            covered.append(count.upper >= used_tokens)
            width.append(count.upper / used_tokens)
            calibration = calibration.observe(estimated, used_tokens)

    assert statistics.mean(covered) >= 0.95
    assert statistics.median(width) < 1.15 + 4 * noise


def test_implausible_usage_changes_nothing() -> None:
    calibration = calibrate(stream(1), 10)

    assert calibration.observe(1000, 40_000) == calibration
    assert calibration.observe(1000, 20) == calibration


def test_occasional_outliers_change_little() -> None:
    """A server-side tool that doubles some usage must not spoil other estimates."""
    errors = []
    for seed in range(50):
        pairs, rng = stream(seed, noise=0.02), random.Random(seed)
        calibration = calibrate(pairs, 10)
        for _ in range(30):
            estimated, used_tokens = next(pairs)
            if rng.random() < 0.1:
                calibration = calibration.observe(estimated, round(used_tokens * 2.5))
            else:
                errors.append(error(calibration, estimated, used_tokens))
                calibration = calibration.observe(estimated, used_tokens)

    assert statistics.median(errors) < 0.03
    assert sum(relative_error < 0.1 for relative_error in errors) / len(errors) > 0.9


def test_a_change_of_the_model_is_followed() -> None:
    pairs = stream(3, rate=1.5, extra=0)
    calibration = calibrate(stream(2, rate=1.0, extra=0), 20)
    for _ in range(60):
        calibration = calibration.observe(*next(pairs))

    assert statistics.median(error(calibration, *next(pairs)) for _ in range(20)) < 0.1


@given(responses=st.integers(0, 8), tokens=st.integers(0, 10**6))
def test_an_exact_count_is_not_corrected(responses: int, tokens: int) -> None:
    exact = TokenCount(tokens, True, tokens)

    assert calibrate(stream(1), responses).correct(exact) == exact


@given(
    estimated=st.integers(-10, 0) | st.just(1000),
    used_tokens=st.integers(-10, 0) | st.sampled_from((10**9, 1)),
    responses=st.integers(0, 8),
)
def test_invalid_numbers_change_nothing(estimated: int, used_tokens: int, responses: int) -> None:
    calibration = calibrate(stream(1), responses)

    assert calibration.observe(estimated, used_tokens) is calibration


pairs_of_tokens = st.tuples(st.integers(-5, 10**7), st.integers(-5, 10**7))


@given(pairs=st.lists(pairs_of_tokens, max_size=30), tokens=st.integers(0, 10**7), margin=st.integers(0, 10**6))
def test_a_correction_is_a_valid_count_for_any_usage(
    pairs: list[tuple[int, int]], tokens: int, margin: int
) -> None:
    calibration = Calibration()
    for pair in pairs:
        calibration = calibration.observe(*pair)
    count = calibration.correct(TokenCount(tokens, False, tokens + margin))

    assert not count.exact
    assert count.upper >= count.tokens >= min(1, tokens)
    assert count.tokens <= 4 * tokens + 1


@given(pairs=st.lists(pairs_of_tokens, max_size=30), tokens=st.integers(0, 10**7))
def test_a_calibration_survives_serialization(pairs: list[tuple[int, int]], tokens: int) -> None:
    calibration = Calibration()
    for pair in pairs:
        calibration = calibration.observe(*pair)
    restored = Calibration.from_dict(json.loads(json.dumps(calibration.to_dict())))

    assert restored == calibration
    assert restored.correct(estimate(tokens)) == calibration.correct(estimate(tokens))
    assert restored.observe(500, 700) == calibration.observe(500, 700)


def test_the_drift_is_that_of_the_last_response() -> None:
    assert Calibration().observe(1000, 1100).drift_percent == pytest.approx(10)
    assert Calibration().observe(1000, 1100).observe(1000, 900).drift_percent == pytest.approx(-10)
