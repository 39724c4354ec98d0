"""The limits that providers tell clients of that sign in with a subscription."""

from foveate.sandbox.asks import SandboxRequest
from foveate.values import Format

_HOUR_SECONDS = 3_600
# The share of each limit that one request uses, and how long the limit lasts.
_LIMITS = (("5h", 0.01, 5), ("7d", 0.001, 7 * 24))


def subscription_headers(
    http_request: SandboxRequest, api_format: Format, *, requests: int, now: float
) -> dict[str, str]:
    """The headers of a response to a subscription that has sent so many requests; none for a plain key."""
    bearer = http_request.headers.get("authorization", "").removeprefix("Bearer ")
    found: dict[str, str] = {}
    for number, (name, share, hours) in enumerate(_LIMITS):
        used = min(1.0, requests * share)
        seconds = hours * _HOUR_SECONDS
        reset = int(now // seconds + 1) * seconds
        if api_format is Format.ANTHROPIC and bearer.startswith("sk-ant-oat"):
            prefix = f"anthropic-ratelimit-unified-{name}"
            status = "allowed" if used < 1 else "rejected"
            found |= {f"{prefix}-utilization": f"{used:g}", f"{prefix}-reset": str(reset)}
            found |= {f"{prefix}-status": status, "anthropic-ratelimit-unified-status": "allowed"}
        elif api_format is Format.RESPONSES and bearer and "chatgpt-account-id" in http_request.headers:
            prefix = f"x-codex-{('primary', 'secondary')[number]}"
            found |= {f"{prefix}-used-percent": f"{100 * used:g}", f"{prefix}-window-minutes": str(60 * hours)}
            found |= {f"{prefix}-reset-after-seconds": str(int(reset - now))}
    return found
