"""Rate limits of subscriptions in response headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.response.rate_limits import RateLimit, read_rate_limits

NOW = 1_794_900_000.0
UNIFIED = "anthropic-ratelimit-unified"


def read_limits(**headers: str) -> tuple[RateLimit, ...]:
    header_list = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return read_rate_limits(header_list, now=NOW)


def test_limits_of_claude_are_read() -> None:
    limits = read_rate_limits(
        [
            (f"{UNIFIED}-status".encode(), b"allowed"),
            (b"Anthropic-Ratelimit-Unified-5h-Utilization", b"0.42"),
            (f"{UNIFIED}-5h-reset".encode(), b"1794912000"),
            (f"{UNIFIED}-5h-status".encode(), b"allowed_warning"),
            (f"{UNIFIED}-7d-utilization".encode(), b"0.1"),
            (f"{UNIFIED}-7d-reset".encode(), b"2026-11-20T00:00:00Z"),
            (f"{UNIFIED}-7d_oi-utilization".encode(), b"1"),
            (f"{UNIFIED}-representative-claim".encode(), b"five_hour"),
            (b"anthropic-ratelimit-requests-limit", b"50"),
            (b"content-type", b"application/json"),
        ],
        now=NOW,
    )

    assert limits == (
        RateLimit(name="5h", used=0.42, resets_at=1_794_912_000.0, status="allowed_warning"),
        RateLimit(name="7d", used=0.1, resets_at=1_795_132_800.0),
        RateLimit(name="7d_oi", used=1.0),
    )


def test_limits_of_codex_are_read() -> None:
    limits = read_limits(
        x_codex_primary_used_percent="42.5",
        x_codex_primary_window_minutes="300",
        x_codex_primary_reset_after_seconds="60",
        x_codex_secondary_used_percent="13",
        x_codex_secondary_window_minutes="10080",
        x_codex_secondary_reset_at="1795000000",
    )

    assert limits == (
        RateLimit(name="5h", used=0.425, resets_at=NOW + 60),
        RateLimit(name="7d", used=0.13, resets_at=1_795_000_000.0),
    )


@pytest.mark.parametrize(
    ("minutes", "name"), [("60", "1h"), ("1440", "1d"), ("90", "90m"), ("20160", "14d"), ("0", "primary")]
)
def test_a_limit_of_codex_is_named_by_its_window(minutes: str, name: str) -> None:
    (limit,) = read_limits(x_codex_primary_used_percent="1", x_codex_primary_window_minutes=minutes)

    assert limit.name == name


@pytest.mark.parametrize(
    "reset", ["9999-12-31T23:59:59-12:00", "9999-12-31T00:00:00Z", "0001-01-01T00:00:00+14:00", "2026-11-20"]
)
def test_an_impossible_time_of_a_reset_is_left_out(reset: str) -> None:
    """Regression: the dashboard failed on a time that is in no calendar, for days."""
    headers = [(f"{UNIFIED}-5h-utilization".encode(), b"0.5"), (f"{UNIFIED}-5h-reset".encode(), reset.encode())]

    assert read_rate_limits(headers, now=NOW) == (RateLimit(name="5h", used=0.5),)


@pytest.mark.parametrize("value", ["", "x", "nan", "inf", "-1", "1e300", "0x1", "0.4" * 50, "１"])
def test_impossible_values_are_left_out(value: str) -> None:
    headers = [
        (f"{UNIFIED}-5h-utilization".encode(), value.encode()),
        (f"{UNIFIED}-5h-reset".encode(), value.encode()),
    ]

    assert read_rate_limits(headers, now=NOW) == ()


def test_a_response_without_limits_has_none() -> None:
    assert read_limits(content_type="application/json", x_codex_turn="7") == ()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    *(
                        f"{UNIFIED}-{window}-{field}"
                        for window in ("5h", "7d", "x" * 30)
                        for field in ("utilization", "reset", "status")
                    ),
                    "x-codex-primary-used-percent",
                    "x-codex-primary-window-minutes",
                    "x-codex-primary-reset-at",
                ]
            ).map(str.encode),
            st.binary(max_size=50) | st.floats().map(lambda number: str(number).encode()),
        ),
        max_size=20,
    )
)
def test_any_headers_give_possible_limits_or_none(headers: list[tuple[bytes, bytes]]) -> None:
    for limit in read_rate_limits(headers, now=NOW):
        assert limit.used is None or 0 <= limit.used <= 100
        assert limit.resets_at is None or 0 <= limit.resets_at <= NOW + 4e9
        assert limit.name.isascii()
        assert not limit.status or limit.status.replace("_", "").isalpha()
