"""Request bodies counted offline, in whichever of the formats they come."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from foveate import wire
from foveate.tokens.courtesy import frequent_thread_switches
from foveate.tokens.families import counter_for
from foveate.tokens.request_count import PartCount, RequestCount
from foveate.values import ZERO_TOKENS, Format, Request
from foveate.wire.body import to_bytes

# Whose rules hold where neither the body nor the caller names a model. Never called exact.
_DEFAULT_MODELS = {
    Format.ANTHROPIC: "claude",
    Format.CHAT: "gpt",
    Format.RESPONSES: "gpt",
    Format.GEMINI: "gemini",
    Format.BEDROCK: "bedrock",
}


def count_body(body: Mapping[str, Any] | str | bytes, model: str | None = None) -> RequestCount:
    """The offline count of a request body.

    Raises:
        DuplicateKey: an object in it has the same key twice.
        MalformedRequest: not JSON, or none of the known formats.
    """
    data = to_bytes(body)
    with frequent_thread_switches(len(data)):
        request = with_model(wire.parse_request(data), model)
        return counter_for(request.model).count_request(request)


def with_model(request: Request, model: str | None) -> Request:
    """`request` for `model`, or for its own, or, where nobody says, for the usual one of its format."""
    model_name = model or request.model or _DEFAULT_MODELS[request.format]
    return request if model_name == request.model else replace(request, model=model_name, envelope=None)


def sum_counts(model: str, counts: Sequence[tuple[str, RequestCount]]) -> RequestCount:
    """Several counts as one, with a part for each name."""
    nonempty = [count for _, count in counts if count.total.tokens] or [count for _, count in counts]
    return RequestCount(
        model=model,
        backend=", ".join(dict.fromkeys(count.backend for count in nonempty)),
        total=sum((count.total for _, count in counts), ZERO_TOKENS),
        parts=tuple(PartCount(name, count.total.tokens, count.total.exact) for name, count in counts),
    )
