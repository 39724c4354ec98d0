"""Evidence table of the token counter: built from recorded calls, and validated on held-out sources.

A source is a repository whose test suite recorded the calls. Calls of one source do not show how a rule works
elsewhere, so a table is always tested on calls of a source that it was not built from.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

import foveate.tokens
from benchmarks.recorded import RecordedCall
from foveate import formats
from foveate.errors import MalformedRequest
from foveate.model import Request, TokenCount
from foveate.tokens import counter_for, with_model
from foveate.tokens.accuracy import (
    BOUND_FORMS,
    AccuracyEvidence,
    AccuracyProfile,
    RawCount,
    UsageBound,
    group_names,
)

AS_OF = "2026-11"
TABLE = Path(foveate.tokens.__file__).parent / "data" / "evidence.json"
_MIN_SOURCES = 2
_MIN_RIGHT_SHARE = 0.98
# A single wrong recording does not refute a feature that this many confirm: its usage may have been edited.
_MIN_RIGHT_CALLS = 10
_COVERAGE = 0.99
# A bound for a group of requests needs this many recordings; otherwise a wider group is used.
_MIN_CALLS = 20
# Errors on an unseen source may be larger than on recorded ones.
_UNSEEN_FACTOR = 1.2
# A margin that is exceeded more often than this says nothing about usage.
_MAX_MARGIN_FACTOR = 4.0
# A token has at least one byte, and no provider is known to add more than this: such usage was edited by
# hand.
_MAX_ADDED_TOKENS = 3000
# Recorded tests are short; agents send requests of about this length.
_LONG_TOKENS = 10_000
_UNREAD_FIELDS = frozenset(("stream", "stream_options", "store", "include", "user", "metadata"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCall:
    """A recorded call with its count, before any evidence."""

    call: RecordedCall
    request: Request
    raw: RawCount
    used_tokens: int

    @property
    def keys(self) -> frozenset[str]:
        """Return features and generation, as the table spells them."""
        return self.raw.profile.keys | {self.raw.profile.origin.generation_key}

    @property
    def is_right(self) -> bool:
        """Return whether the count equals the reported usage."""
        return self.raw.rounded_tokens == self.used_tokens

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the model, its host, and its input."""
        inputs = {name: value for name, value in self.call.body.items() if name not in _UNREAD_FIELDS}
        return self.call.host, self.call.model, json.dumps(inputs, sort_keys=True)

    @property
    def is_plausible(self) -> bool:
        """Return whether the usage can result from this request."""
        return self.used_tokens <= len(self.request.body) + _MAX_ADDED_TOKENS


def count(call: RecordedCall) -> CountedCall | None:
    """Count a call; None if it has no messages in a known format, or no usage."""
    if not call.has_messages or not call.input_tokens:
        return None
    try:
        request = with_model(formats.parse_request(call.body, call.format), call.model)
        raw = counter_for(request.model, call.host).raw_count(request)
    except MalformedRequest:
        return None
    return CountedCall(call=call, request=request, raw=raw, used_tokens=call.input_tokens)


def judge_held_out(calls: Sequence[CountedCall]) -> Iterator[tuple[CountedCall, TokenCount]]:
    """Judge each call by a table that was built from the other sources."""
    for source in sorted({counted.call.source for counted in calls}):
        table = make_table(counted for counted in calls if counted.call.source != source)
        for counted in calls:
            if counted.call.source == source:
                yield counted, table.apply(counted.raw)


def make_table(calls: Iterable[CountedCall]) -> AccuracyEvidence:
    """Build the table that these calls support. Leaves out calls with hidden input."""
    usable = [counted for counted in calls if not counted.raw.unexplained and counted.is_plausible]
    certain = [counted for counted in _drop_inconsistent(usable) if counted.raw.profile.certain]
    dropped = _find_error_causes(certain)
    sources: dict[str, set[str]] = defaultdict(set)
    for counted in certain:
        if counted.is_right:
            for key in counted.raw.profile.keys - dropped:
                sources[key].add(counted.call.source)
    table = AccuracyEvidence(
        as_of=AS_OF,
        sources=tuple(sorted({counted.call.source for counted in usable})),
        confirmed=frozenset(key for key, found in sources.items() if len(found) >= _MIN_SOURCES),
        refuted=dropped & {counted.raw.profile.origin.generation_key for counted in certain},
        bounds={},
    )
    return replace(table, bounds=dict(_bounds(usable, table.is_confirmed)))


def render_table(table: AccuracyEvidence) -> str:
    """Serialize the table, sorted, so that diffs are small."""
    found = msgspec.to_builtins(table)
    found["confirmed"], found["refuted"] = sorted(found["confirmed"]), sorted(found["refuted"])
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _drop_inconsistent(calls: Sequence[CountedCall]) -> list[CountedCall]:
    """Drop recordings of one request that differ in their usage: no count could be right for all of them."""
    usages: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for counted in calls:
        usages[counted.identity].add(counted.used_tokens)
    return [counted for counted in calls if len(usages[counted.identity]) == 1]


def _find_error_causes(calls: Sequence[CountedCall]) -> frozenset[str]:
    """Find features and generations that cause wrong counts.

    Drops the key with the largest share of wrong counts, with every call that has it, until each remaining key
    is right often enough. Then restores keys whose wrong counts another key explains as well.
    """
    frequency = Counter(key for counted in calls for key in counted.keys)
    dropped: set[str] = set()
    while failing := _failure_shares(calls, dropped):
        dropped.add(max(failing, key=lambda key: (failing[key], frequency[key], key)))
    for key in sorted(dropped, key=lambda key: (-frequency[key], key)):
        if not _failure_shares(calls, dropped - {key}):
            dropped.remove(key)
    return frozenset(dropped)


def _failure_shares(calls: Sequence[CountedCall], dropped: Collection[str]) -> dict[str, float]:
    """Return each key with too large a share of wrong counts, in calls without any dropped key."""
    remaining = [counted for counted in calls if counted.keys.isdisjoint(dropped)]
    counts = Counter(key for counted in remaining for key in counted.keys)
    wrong_counts = Counter(key for counted in remaining if not counted.is_right for key in counted.keys)
    shares = {
        key: wrong_counts[key] / counts[key]
        for key in wrong_counts
        if wrong_counts[key] > 1 or counts[key] <= _MIN_RIGHT_CALLS
    }
    return {key: share for key, share in shares.items() if share > 1 - _MIN_RIGHT_SHARE}


def _bounds(
    calls: Sequence[CountedCall], is_exact: Callable[[AccuracyProfile], bool]
) -> Iterator[tuple[str, UsageBound]]:
    by_group: dict[str, list[CountedCall]] = defaultdict(list)
    for counted in calls:
        profile = counted.raw.profile
        for name in group_names(profile.origin, "exact" if is_exact(profile) else profile.kind):
            by_group[name].append(counted)
    for name in sorted(by_group):
        group = by_group[name]
        if len({counted.call.source for counted in group}) >= _MIN_SOURCES and len(group) >= _MIN_CALLS:
            yield name, _bound(group)


def _bound(group: Collection[CountedCall]) -> UsageBound:
    """Return the form of bound with the least mean cost, with the conformal quantile of its factor."""
    forms = [_quantile_bound(form, group) for form in BOUND_FORMS]
    usable = [bound for bound in forms if bound.form != "margin" or bound.factor <= _MAX_MARGIN_FACTOR]
    return min(usable, key=lambda bound: _mean_excess(bound, group))


def _quantile_bound(form: str, group: Collection[CountedCall]) -> UsageBound:
    factors = sorted(UsageBound.factor_for(form, counted.raw, counted.used_tokens) for counted in group)
    rank = min(len(factors), math.ceil((len(factors) + 1) * _COVERAGE)) - 1
    factor = max(0.0, factors[rank]) * _UNSEEN_FACTOR
    sources = len({counted.call.source for counted in group})
    return UsageBound(form, math.ceil(factor * 10_000) / 10_000, sources)


def _mean_excess(bound: UsageBound, group: Collection[CountedCall]) -> float:
    """Return the mean share that a bound adds, to the recordings and to long requests of their kind."""
    raws = [counted.raw for counted in group if counted.raw.rounded_tokens]
    shares = [
        (bound.tokens_above(raw) / raw.rounded_tokens, bound.tokens_above(_lengthen(raw)) / _LONG_TOKENS)
        for raw in raws
    ]
    return sum(map(sum, shares)) / max(1, len(shares))


def _lengthen(raw: RawCount) -> RawCount:
    factor = _LONG_TOKENS / raw.rounded_tokens
    return replace(raw, tokens=float(_LONG_TOKENS), upper=_LONG_TOKENS + factor * raw.margin)
