"""Counts through the gateway: of what would be sent, by the upstream where it counts, or else by us."""

from foveate.engine.exchange import Exchange
from foveate.gateway.routing import Upstream
from foveate.tokens.endpoints import UNSUPPORTED_STATUSES
from foveate.values import Format
from foveate.wire.counts import count_response_body

COUNT_HEADER = "x-foveate-count"
"""The header of a count that is made here: `exact` where the tokenizer is the model's, or `estimate`."""


class UpstreamsWithoutCounts:
    """Upstreams that have no counting route, for as long as the process lives."""

    def __init__(self) -> None:
        self._known: set[tuple[str, Format]] = set()

    def contains(self, upstream: Upstream, api_format: Format) -> bool:
        """Whether an upstream is known to have none for a format."""
        return (upstream.base_url, api_format) in self._known

    def learn_from_response(self, upstream: Upstream, api_format: Format, status: int, body: bytes) -> bool:
        """Whether an answer means that there is none; then it is remembered.

        A 404 can also be about a model that there is not: that is for the client.
        """
        has_no_endpoint = status in UNSUPPORTED_STATUSES and not (status == 404 and b"model" in body.lower())
        if has_no_endpoint:
            self._known.add((upstream.base_url, api_format))
        return has_no_endpoint


def build_count_response(exchange: Exchange) -> tuple[bytes, str] | None:
    """The answer to a count by what is counted here, and how sure it is; None where nothing was counted."""
    context = exchange.context
    if context is None or context.token_count is None:
        return None
    confidence = "exact" if context.token_count.exact else "estimate"
    return count_response_body(exchange.incoming.api_format, context.token_count.tokens), confidence
