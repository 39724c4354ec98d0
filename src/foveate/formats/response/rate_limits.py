"""Rate limits of subscriptions, read from response headers.

Anthropic (Claude subscriptions): `anthropic-ratelimit-unified-{5h,7d,…}-{utilization,reset,status}`, a share
from 0 to 1 and seconds since 1970. OpenAI (Codex with ChatGPT): `x-codex-{primary,secondary}-{used-percent,
window-minutes,reset-at,reset-after-seconds}`. As read by their clients, November 2026.
"""

import math
import re
from collections.abc import Iterable
from datetime import datetime

import msgspec

_UNIFIED = re.compile(rb"anthropic-ratelimit-unified-([0-9a-z_]{1,20})-(utilization|reset|status)")
_CODEX = re.compile(rb"x-codex-(primary|secondary)-(used-percent|window-minutes|reset-at|reset-after-seconds)")
_PREFIXES = (b"anthropic-ratelimit-unified-", b"x-codex-")
_MAX_LIMITS = 8
_MAX_VALUE_CHARS = 40
_MAX_USED = 100.0
# Later times are impossible; milliseconds would be later.
_MAX_TIME = 4e9
_WINDOW_UNITS = ((7 * 24 * 60, "w"), (24 * 60, "d"), (60, "h"))
_STATUS = re.compile(r"[a-z_]{1,30}")


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a subscription: its name (`5h`, `7d`), the share used, and when it resets."""

    name: str
    used: float | None = None
    resets_at: float | None = None
    status: str = ""


def read_rate_limits(headers: Iterable[tuple[bytes, bytes]], *, now: float) -> tuple[RateLimit, ...]:
    """Impossible values are ignored."""
    fields_by_limit: dict[str, dict[str, str]] = {}
    for name, value in headers:
        lowered = name.lower()
        if not lowered.startswith(_PREFIXES):
            continue
        match = _UNIFIED.fullmatch(lowered) or _CODEX.fullmatch(lowered)
        if match is not None and len(value) <= _MAX_VALUE_CHARS:
            fields = fields_by_limit.setdefault(match[1].decode(), {})
            fields.setdefault(match[2].decode(), value.decode("latin-1").strip())
    limits = (_parse_limit(name, fields, now) for name, fields in list(fields_by_limit.items())[:_MAX_LIMITS])
    return tuple(limit for limit in limits if limit is not None)


def _parse_limit(name: str, fields: dict[str, str], now: float) -> RateLimit | None:
    used = _parse_number(fields.get("utilization"), _MAX_USED)
    percent = _parse_number(fields.get("used-percent"), 100 * _MAX_USED)
    if percent is not None:
        used = percent / 100
    resets_at = _parse_time(fields.get("reset") or fields.get("reset-at"))
    after = _parse_number(fields.get("reset-after-seconds"), _MAX_TIME)
    if resets_at is None and after is not None:
        resets_at = now + after
    if used is None and resets_at is None:
        return None
    minutes = _parse_number(fields.get("window-minutes"), 1e6)
    status = fields.get("status", "")
    return RateLimit(
        name=name if minutes is None else _format_window(minutes) or name,
        used=used,
        resets_at=resets_at,
        status=status if _STATUS.fullmatch(status) else "",
    )


def _parse_number(text: str | None, max_value: float) -> float | None:
    try:
        number = float(text) if text else math.nan
    except ValueError:
        return None
    return number if 0 <= number <= max_value else None


def _parse_time(text: str | None) -> float | None:
    number = _parse_number(text, _MAX_TIME)
    if number is not None or not text:
        return number
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.timestamp() if time.tzinfo is not None and 0 <= time.timestamp() <= _MAX_TIME else None


def _format_window(minutes: float) -> str:
    """Format minutes in the largest whole unit: 300 is `5h`, a week is `7d`."""
    for size, unit in _WINDOW_UNITS:
        if minutes >= size and minutes % size == 0:
            return f"{round(minutes * 7 / size)}d" if unit == "w" else f"{round(minutes / size)}{unit}"
    return f"{round(minutes)}m" if minutes >= 1 else ""
