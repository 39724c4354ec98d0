"""Recordings replayed: what each would have cost under each policy, beside what was billed for it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from foveate.cost.price_book import PriceBook
from foveate.cost.price_names import says_its_price
from foveate.cost.prices import EXACT, ZERO
from foveate.engine.options import AgentOptions
from foveate.replay.models import as_model
from foveate.replay.outcomes import Check, Outcome, Placeholders, Point, Replayed, Tariff, Tariffs, Till
from foveate.replay.policies import Policy
from foveate.replay.recordings import Call, Recording, Source
from foveate.replay.run_bills import run_check, told_by_run
from foveate.replay.running import DEFAULT_GATEWAY, Run, Step, runs_of, window_tokens_of
from foveate.replay.sent import Sent, Told, sent_in
from foveate.replay.sizes import Scale
from foveate.replay.tiers import usual_tiers
from foveate.values import CacheUsage, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is asked: which policies, another `model`, another window for all models.

    `with_points`: the context of each call is wanted too, for a picture. `gateway` is the configuration that
    the policies of the gateway follow.
    """

    policies: tuple[Policy, ...] = tuple(Policy)
    model: str | None = None
    window_tokens: int | None = None
    with_points: bool = False
    gateway: AgentOptions = DEFAULT_GATEWAY


def replay(recording: Recording, book: PriceBook, options: ReplayOptions) -> Replayed:
    """A recording under each policy that is asked for; calls whose price nobody knows are left out."""
    recording = told_by_run(usual_tiers(recording, book), book)
    was_sent = sent_in(recording)
    sent = as_model(was_sent, options.model, recording.format) if options.model is not None else was_sent
    tariffs = Tariffs(book)
    priced = [one for one in sent if _is_priced(one, book)]
    runs = runs_of(
        options.policies,
        spoken=recording.format,
        window_tokens=options.window_tokens,
        is_as_sent=options.model is None,
        gateway=options.gateway,
    )
    counts = {policy: _Counting(policy, run, book, options) for policy, run in runs.items()}
    for one in priced:
        charge = _charge(one, tariffs)
        window = window_tokens_of(one.call.model, options.window_tokens)
        for count in counts.values():
            count.take(one, charge, window)
    check, beside = _check(recording, was_sent, book)
    return Replayed(
        name=recording.name,
        source=recording.source,
        began_at=recording.calls[0].at if recording.calls else 0.0,
        models=Counter([one.call.model for one in priced]),
        outcomes={policy: count.outcome(beside) for policy, count in counts.items()},
        points={policy: tuple(count.points) for policy, count in counts.items() if options.with_points},
        check=check,
        placeholders=_placeholders(was_sent, recording, book),
        lacks=recording.lacks,
        hidden_tokens=_hidden(was_sent),
        broken=recording.broken,
        unpriced=Counter(one.call.model for one in sent) - Counter(one.call.model for one in priced),
        size_bytes=recording.size_bytes,
        sub_agents=len({call.conversation for call in recording.calls} - {recording.name})
        if recording.source is Source.CLAUDE_CODE
        else 0,
    )


def _is_priced(sent: Sent, book: PriceBook) -> bool:
    return book.rates(sent.call.model, provider=sent.rules.provider, at=sent.call.at) is not None


class _Charge(NamedTuple):
    """At what a call is charged, whatever the policy; no tariff where nobody knows it."""

    tariff: Tariff | None
    reasoning_tokens: int


def _charge(sent: Sent, tariffs: Tariffs) -> _Charge:
    call, billed = sent.call, sent.call.billed
    tier = billed.tier if billed is not None else ""
    return _Charge(
        tariffs.of(call.model, provider=sent.rules.provider, at=call.at, tier=tier),
        billed.reasoning_tokens if billed is not None else 0,
    )


def _add(till: Till, charge: _Charge, usage: CacheUsage, output_tokens: int) -> None:
    if charge.tariff is not None:
        till.add_at(charge.tariff, usage, output_tokens, charge.reasoning_tokens)


class _Counting:
    """A policy under way, and what it comes to so far."""

    def __init__(self, policy: Policy, run: Run, book: PriceBook, options: ReplayOptions) -> None:
        self.points: list[Point] = []
        self._policy = policy
        self._run = run
        self._till = Till(book)
        self._folds_till = Till(book)
        self._book = book
        self._options = options
        self._calls = self._largest = self._overflows = 0
        self._usage = [0, 0, 0, 0, 0]
        self._folds = 0

    def take(self, sent: Sent, charge: _Charge, window: int | None) -> None:
        """The next call."""
        step = self._run.take(sent)
        self._add(self._till, charge, step.usage, sent.output_tokens)
        if step.summary is not None:
            self._folds += 1
            self._add(self._folds_till, charge, step.summary, step.summary_tokens)
        tokens = step.tokens
        self._largest = max(self._largest, tokens)
        self._calls += 1
        self._overflows += window is not None and tokens > window
        if self._options.with_points:
            self.points.append(self._point(sent, charge, step, window))

    def _add(self, till: Till, charge: _Charge, usage: CacheUsage, output_tokens: int) -> None:
        _add(till, charge, usage, output_tokens)
        sums = self._usage
        sums[0] += usage.uncached
        sums[1] += usage.read
        sums[2] += usage.written_5m
        sums[3] += usage.written_1h
        sums[4] += output_tokens

    def _point(self, sent: Sent, charge: _Charge, step: Step, window: int | None) -> Point:
        till = Till(self._book)
        _add(till, charge, step.usage, sent.output_tokens)
        if step.summary is not None:
            _add(till, charge, step.summary, step.summary_tokens)
        return Point(
            at=sent.call.at,
            tokens=step.tokens,
            window_tokens=window,
            is_folded=step.is_folded,
            dollars=till.dollars or ZERO,
        )

    def outcome(self, beside: Decimal) -> Outcome:
        """What it comes to, with dollars `beside` those for tokens."""
        uncached, read, written_5m, written_1h, output = self._usage
        calls, folds = self._till.dollars, self._folds_till.dollars
        is_known = calls is not None and folds is not None
        return Outcome(
            policy=self._policy,
            calls=self._calls,
            uncached=uncached,
            read=read,
            written_5m=written_5m,
            written_1h=written_1h,
            output=output,
            dollars=EXACT.add(EXACT.add(calls or ZERO, folds or ZERO), beside) if is_known else None,
            largest_context=self._largest,
            overflows=self._overflows,
            folds=self._folds,
            fold_dollars=folds or ZERO,
        )


def _check(recording: Recording, was_sent: Sequence[Sent], book: PriceBook) -> tuple[Check, Decimal]:
    """The logged bills beside those that the simulation gives for the same calls; and what was no token's."""
    if (of_run := run_check(recording, was_sent, book)) is not None:
        return of_run, ZERO
    tariffs, simulated, expected, by_tokens = Tariffs(book), Till(book), Till(book), Till(book)
    calls, logged, beside = 0, ZERO, ZERO
    for one in was_sent:
        billed = one.call.billed
        if billed is None:
            continue
        charge = _charge(one, tariffs)
        is_said = billed.said_dollars is not None and says_its_price(one.rules.provider)
        if charge.tariff is not None and not is_said and charge.tariff.is_all_of(billed):
            by_tokens.add_at(charge.tariff, billed.cache, billed.output_tokens, billed.reasoning_tokens)
        else:
            price = _price(one.call, billed, one.rules.provider, book)
            if price is None:
                continue
            logged = EXACT.add(logged, price[0])
            beside = EXACT.add(beside, price[1])
        calls += 1
        _add(simulated, charge, one.recorded, billed.output_tokens)
        _add(expected, charge, one.expected, billed.output_tokens)
    check = Check(
        calls=calls,
        logged=EXACT.add(logged, by_tokens.dollars or ZERO),
        simulated=EXACT.add(simulated.dollars or ZERO, beside),
        expected=EXACT.add(expected.dollars or ZERO, beside),
        changed=sum(one.told is Told.CHANGED for one in was_sent),
        kept=sum(one.told is Told.KEPT for one in was_sent),
        said=recording.said_dollars,
    )
    return check, beside


def _price(call: Call, billed: Usage, provider: str, book: PriceBook) -> tuple[Decimal, Decimal] | None:
    """What a call cost, and how much of that is neither for input nor for output, such as searches."""
    price = book.price(call.model, billed, provider=provider, at=call.at)
    return None if price is None else (price.dollars, price.other_dollars)


def _placeholders(was_sent: Sequence[Sent], recording: Recording, book: PriceBook) -> Placeholders:
    """Answers of which only the size that a stream begins with was logged."""
    unknown = [one for one in was_sent if one.call.billed is not None and not one.call.output_is_known]
    till, tokens = Till(book), 0
    scales: dict[str, Scale] = {}
    for one in unknown:
        model = one.call.model
        scale = scales.get(model)
        if scale is None:
            scale = scales[model] = Scale(model, recording.format)
        more = max(scale.message(one.call.answer) - one.output_tokens, 0)
        tokens += more
        till.add(CacheUsage(), more, model=model, provider=one.rules.provider, at=one.call.at)
    return Placeholders(calls=len(unknown), tokens=tokens, dollars=till.dollars or ZERO)


def _hidden(was_sent: Sequence[Sent]) -> int:
    """The most that stood before messages and was taken from a bill."""
    return max((one.front.tokens for one in was_sent if not one.call.around), default=0)
