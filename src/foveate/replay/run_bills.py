"""What the sum of a whole run tells, where its calls have no bills of their own.

SWE-agent keeps what a run cost, but neither the tools that it sent with every call nor the bills of the calls.
How long the tools are is told by what the messages alone do not come to.
"""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from foveate.cost.price_book import PriceBook
from foveate.replay.outcomes import Check, Till
from foveate.replay.recordings import Lacking, Recording
from foveate.replay.sent import Sent, sent_in

# The sum is met when it is off by no more than this share.
_NEAR = Decimal("0.005")
_MOST_TRIES = 6
# What a first guess is made with: that a token more in each call is read from a cache at half the price.
_GUESSED_SHARE = Decimal("0.5")
_MOST_TOKENS = 1_000_000


def told_by_run(recording: Recording, book: PriceBook) -> Recording:
    """The recording with as many tokens before its messages as make it cost what the run is said to have cost.

    It stays as it is where its calls have bills, where it lacks nothing that would stand there, and where it
    does not say which model it asked, or no sum, or one that the messages alone come to.
    """
    said = recording.said_dollars
    is_all_there = not recording.lacks & {Lacking.TOOLS, Lacking.SYSTEM}
    if not (said and recording.calls) or is_all_there:
        return recording
    if Lacking.MODEL in recording.lacks or _has_bills(recording):
        return recording
    return _Trying(recording, book, said).found()


def run_check(recording: Recording, was_sent: Sequence[Sent], book: PriceBook) -> Check | None:
    """The sum of a run beside the simulated one; None where its calls have bills, or it says none.

    Of a run that does not say its model, the sum cannot be held against that of another.
    """
    said = recording.said_dollars
    if not (said and recording.calls) or _has_bills(recording):
        return None
    if Lacking.MODEL in recording.lacks:
        return Check(said=said)
    simulated = _dollars(was_sent, book)
    if simulated is None:
        return None
    return Check(logged=said, simulated=simulated, expected=simulated, said=said)


def _has_bills(recording: Recording) -> bool:
    return any(call.billed is not None for call in recording.calls)


def _dollars(was_sent: Sequence[Sent], book: PriceBook) -> Decimal | None:
    till = Till(book)
    for one in was_sent:
        model, provider, at = one.call.model, one.rules.provider, one.call.at
        if not till.add(one.recorded, one.output_tokens, model=model, provider=provider, at=at):
            return None
    return till.dollars


class _Trying:
    """Looks for the length at which the sum is met: a line through the last two tries leads to the next."""

    def __init__(self, recording: Recording, book: PriceBook, said: Decimal) -> None:
        self._recording = recording
        self._book = book
        self._said = said

    def found(self) -> Recording:
        before, missing = 0, self._missing(0)
        if missing is None or missing <= self._said * _NEAR:
            return self._recording
        best = missing, 0
        tokens = self._guess(missing)
        for _ in range(_MOST_TRIES):
            now = self._missing(tokens)
            if now is None:
                break
            best = min(best, (abs(now), tokens))
            if best[0] <= self._said * _NEAR or now == missing:
                break
            slope = (missing - now) / (tokens - before)
            before, missing = tokens, now
            tokens = min(max(tokens + round(now / slope), 0), _MOST_TOKENS)
            if tokens == before:
                break
        return self._with(best[1]) if best[1] else self._recording

    def _with(self, tokens: int) -> Recording:
        return replace(self._recording, hidden_tokens=tokens)

    def _missing(self, tokens: int) -> Decimal | None:
        """What the run cost beyond what it comes to with so many tokens before its messages."""
        dollars = _dollars(sent_in(self._with(tokens)), self._book)
        return self._said - dollars if dollars is not None else None

    def _guess(self, missing: Decimal) -> int:
        sent = sent_in(self._recording)
        inputs = sum(one.input_tokens for one in sent)
        dollars = _dollars(sent, self._book) or self._said
        per_token = dollars / max(inputs, 1) * _GUESSED_SHARE
        return min(max(round(missing / per_token / len(sent)), 1), _MOST_TOKENS) if per_token else 1
