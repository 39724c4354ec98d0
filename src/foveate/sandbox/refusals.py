"""What the sandbox says no with, in its providers' words."""

from foveate.wire.refusals import (
    Refusal,
    error_body,
    failed,
    openai_error,
    overloaded,
    too_large,
    unreadable,
)

__all__ = ["Refusal", "error_body", "failed", "openai_error", "overloaded", "too_large", "unreadable"]
