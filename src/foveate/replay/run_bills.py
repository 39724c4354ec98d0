"""What the sum of a whole run tells, where its calls have no bills of their own.

SWE-agent keeps what a run cost, but neither the tools that it sent with every call nor the bills of the calls.
How long the tools are is told by what the messages alone do not come to.
"""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from foveate.cost.price_book import PriceBook
from foveate.replay.outcomes import CostCheck, CostSum
from foveate.replay.recordings import MissingPart, Recording
from foveate.replay.sent import ReconstructedCall, reconstruct_calls

# The sum is met when it is off by no more than this share.
_TOLERANCE_SHARE = Decimal("0.005")
_MAX_TRIES = 6
# What a first guess is made with: that a token more in each call is read from a cache at half the price.
_FIRST_GUESS_SHARE = Decimal("0.5")
_MAX_HIDDEN_TOKENS = 1_000_000


def infer_hidden_tokens(recording: Recording, book: PriceBook) -> Recording:
    """The recording with as many tokens before its messages as make it cost what the run is said to have cost.

    It stays as it is where its calls have bills, where it lacks nothing that would stand there, and where it
    does not say which model it asked, or no sum, or one that the messages alone come to.
    """
    reported = recording.reported_dollars
    is_complete = not recording.missing & {MissingPart.TOOLS, MissingPart.SYSTEM}
    if not (reported and recording.calls) or is_complete:
        return recording
    if MissingPart.MODEL in recording.missing or _has_usage(recording):
        return recording
    return _HiddenTokensSearch(recording, book, reported).search()


def check_run_total(
    recording: Recording, calls: Sequence[ReconstructedCall], book: PriceBook
) -> CostCheck | None:
    """The sum of a run beside the simulated one; None where its calls have bills, or it says none.

    Of a run that does not say its model, the sum cannot be held against that of another.
    """
    reported = recording.reported_dollars
    if not (reported and recording.calls) or _has_usage(recording):
        return None
    if MissingPart.MODEL in recording.missing:
        return CostCheck(said=reported)
    simulated = _total_dollars(calls, book)
    if simulated is None:
        return None
    return CostCheck(logged=reported, simulated=simulated, expected=simulated, said=reported)


def _has_usage(recording: Recording) -> bool:
    return any(call.usage is not None for call in recording.calls)


def _total_dollars(calls: Sequence[ReconstructedCall], book: PriceBook) -> Decimal | None:
    costs = CostSum(book)
    for sent in calls:
        model, provider, at = sent.call.model, sent.rules.provider, sent.call.at
        if not costs.add(sent.recorded, sent.output_tokens, model=model, provider=provider, at=at):
            return None
    return costs.dollars


class _HiddenTokensSearch:
    """Looks for the length at which the sum is met: a line through the last two tries leads to the next."""

    def __init__(self, recording: Recording, book: PriceBook, reported: Decimal) -> None:
        self._recording = recording
        self._book = book
        self._reported = reported

    def search(self) -> Recording:
        before, missing = 0, self._missing_dollars(0)
        if missing is None or missing <= self._reported * _TOLERANCE_SHARE:
            return self._recording
        best = missing, 0
        tokens = self._first_guess(missing)
        for _ in range(_MAX_TRIES):
            now = self._missing_dollars(tokens)
            if now is None:
                break
            best = min(best, (abs(now), tokens))
            if best[0] <= self._reported * _TOLERANCE_SHARE or now == missing:
                break
            slope = (missing - now) / (tokens - before)
            before, missing = tokens, now
            tokens = min(max(tokens + round(now / slope), 0), _MAX_HIDDEN_TOKENS)
            if tokens == before:
                break
        return self._with_hidden_tokens(best[1]) if best[1] else self._recording

    def _with_hidden_tokens(self, tokens: int) -> Recording:
        return replace(self._recording, hidden_tokens=tokens)

    def _missing_dollars(self, tokens: int) -> Decimal | None:
        """What the run cost beyond what it comes to with so many tokens before its messages."""
        dollars = _total_dollars(reconstruct_calls(self._with_hidden_tokens(tokens)), self._book)
        return self._reported - dollars if dollars is not None else None

    def _first_guess(self, missing: Decimal) -> int:
        calls = reconstruct_calls(self._recording)
        inputs = sum(call.input_tokens for call in calls)
        dollars = _total_dollars(calls, self._book) or self._reported
        per_token = dollars / max(inputs, 1) * _FIRST_GUESS_SHARE
        return min(max(round(missing / per_token / len(calls)), 1), _MAX_HIDDEN_TOKENS) if per_token else 1
