"""Counts through the gateway: of what would be sent, by the upstream where it counts, or else by us."""

from foveate.engine.exchange import Exchange
from foveate.gateway.routing import Upstream
from foveate.tokens.endpoints import DEFINITE_NO
from foveate.values import Format
from foveate.wire.counts import count_body

COUNT = "x-foveate-count"
"""The header of a count that is made here: `exact` where the tokenizer is the model's, or `estimate`."""


class NoCounts:
    """Upstreams that have no counting route, for as long as the process lives."""

    def __init__(self) -> None:
        self._known: set[tuple[str, Format]] = set()

    def has(self, upstream: Upstream, spoken: Format) -> bool:
        """Whether an upstream is known to have none for a format."""
        return (upstream.base_url, spoken) in self._known

    def heard(self, upstream: Upstream, spoken: Format, status: int, said: bytes) -> bool:
        """Whether an answer means that there is none; then it is remembered.

        A 404 can also be about a model that there is not: that is for the client.
        """
        is_no = status in DEFINITE_NO and not (status == 404 and b"model" in said.lower())
        if is_no:
            self._known.add((upstream.base_url, spoken))
        return is_no


def own_count(exchange: Exchange) -> tuple[bytes, str] | None:
    """The answer to a count by what is counted here, and how sure it is; None where nothing was counted."""
    work = exchange.work
    if work is None or work.count is None:
        return None
    sureness = "exact" if work.count.exact else "estimate"
    return count_body(exchange.incoming.spoken, work.count.tokens), sureness
