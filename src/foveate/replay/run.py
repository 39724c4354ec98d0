"""Replays recordings: the cost of each under each policy, and a check against its recorded cost.

Sessions are replayed in several processes if there is enough data.

SWE-agent records the cost of a whole run, but neither the tools that it sent nor the usage of each call. The
size of the tools is inferred from the cost that the messages alone do not explain.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, partial
from typing import NamedTuple, Protocol, TypeVar

from msgspec import structs

from foveate.compaction.edit_timing import Moment
from foveate.config.price_file import default_price_file
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.price_facts import states_its_price
from foveate.cost.pricing.rates import EXACT, ZERO
from foveate.engine.options import AgentOptions
from foveate.errors import FoveateError
from foveate.model import CacheUsage, Usage
from foveate.replay.outcomes import (
    CallRates,
    CallRatesCache,
    ContextPoint,
    CostCheck,
    CostSum,
    EditOutcome,
    Outcome,
    Placeholders,
    Policy,
    ReplayedSession,
)
from foveate.replay.recording import MissingPart, RecordedCall, Recording, RecordingSource
from foveate.replay.recording_files import SessionFiles, read_session
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY
from foveate.replay.simulator.editing_run import (
    SimulatedCall,
    SimulatedEdit,
    SimulatedSummary,
    context_window_tokens,
)
from foveate.replay.simulator.message_sizes import MessageSizer
from foveate.replay.simulator.policy_runs import PolicyRun, start_runs
from foveate.replay.simulator.prompts import rules_at
from foveate.replay.simulator.reconstruct import (
    ReconstructedCall,
    UsageFinding,
    convert_to_model,
    reconstruct_calls,
)
from foveate.replay.worker_pool import choose_processes, make_batches, open_worker_pool

# Maximum relative difference from the recorded total.
_TOLERANCE_SHARE = Decimal("0.005")
_MAX_TRIES = 6
# The first guess assumes that additional tokens are read from a cache at half the price.
_FIRST_GUESS_SHARE = Decimal("0.5")
_MAX_HIDDEN_TOKENS = 1_000_000

ResultT = TypeVar("ResultT")


def drop_unpriced_tiers(recording: Recording, book: PriceBook) -> Recording:
    """Treat calls in service tiers of unknown price (priority, flex, fast) as standard calls.

    The recording then lacks the tier's price.
    """
    calls = tuple(_drop_unpriced_tier(call, book) for call in recording.calls)
    if all(adjusted is original for adjusted, original in zip(calls, recording.calls, strict=True)):
        return recording
    return replace(recording, calls=calls, missing=recording.missing | {MissingPart.TIER_PRICE})


def _drop_unpriced_tier(call: RecordedCall, book: PriceBook) -> RecordedCall:
    usage = call.usage
    if usage is None or not usage.tier:
        return call
    provider = rules_at(call.model, call.at).provider
    if book.rates(call.model, provider=provider, at=call.at, tier=usage.tier) is not None:
        return call
    return replace(call, usage=structs.replace(usage, tier=""))


def infer_hidden_tokens(recording: Recording, book: PriceBook) -> Recording:
    """Set `hidden_tokens` so that the simulated cost matches the run's recorded cost.

    Unchanged if its calls have usage, nothing is missing before the messages, the model or the recorded cost
    is unknown, or the messages alone explain the cost.
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
    """Compare the recorded cost of a run with the simulated one; None if its calls have usage, or no cost is
    recorded.

    Without a known model, there is nothing to compare with.
    """
    reported = recording.reported_dollars
    if not (reported and recording.calls) or _has_usage(recording):
        return None
    if MissingPart.MODEL in recording.missing:
        return CostCheck(reported=reported)
    simulated = _total_dollars(calls, book)
    if simulated is None:
        return None
    return CostCheck(logged=reported, simulated=simulated, expected=simulated, reported=reported)


def _has_usage(recording: Recording) -> bool:
    return any(call.usage is not None for call in recording.calls)


def _total_dollars(calls: Sequence[ReconstructedCall], book: PriceBook) -> Decimal | None:
    costs = CostSum(book)
    for sent_call in calls:
        model, provider, at = sent_call.call.model, sent_call.rules.provider, sent_call.call.at
        if not costs.add(sent_call.recorded, sent_call.output_tokens, model=model, provider=provider, at=at):
            return None
    return costs.dollars


class _HiddenTokensSearch:
    """Searches the number of hidden tokens by the secant method."""

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
        """The recorded cost less the simulated cost with this many hidden tokens."""
        dollars = _total_dollars(reconstruct_calls(self._with_hidden_tokens(tokens)), self._book)
        return self._reported - dollars if dollars is not None else None

    def _first_guess(self, missing: Decimal) -> int:
        calls = reconstruct_calls(self._recording)
        inputs = sum(call.input_tokens for call in calls)
        dollars = _total_dollars(calls, self._book) or self._reported
        per_token = dollars / max(inputs, 1) * _FIRST_GUESS_SHARE
        return min(max(round(missing / per_token / len(calls)), 1), _MAX_HIDDEN_TOKENS) if per_token else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Policies to replay, another `model`, another window for all models.

    `with_points`: also record the context of each call, for a plot. `gateway` is the configuration of the
    gateway policies.
    """

    policies: tuple[Policy, ...] = tuple(Policy)
    model: str | None = None
    window_tokens: int | None = None
    with_points: bool = False
    gateway: AgentOptions = DEFAULT_GATEWAY


def replay_recording(recording: Recording, book: PriceBook, options: ReplayOptions) -> ReplayedSession:
    """Replay a recording under each requested policy. Calls of unknown price are left out."""
    recording = infer_hidden_tokens(drop_unpriced_tiers(recording, book), book)
    recorded_calls = reconstruct_calls(recording)
    calls = (
        convert_to_model(recorded_calls, options.model, recording.format)
        if options.model is not None
        else recorded_calls
    )
    tariffs = CallRatesCache(book)
    priced = [sent_call for sent_call in calls if _is_priced(sent_call, book)]
    runs = start_runs(
        options.policies,
        book,
        api_format=recording.format,
        window_tokens=options.window_tokens,
        is_as_sent=options.model is None,
        gateway=options.gateway,
    )
    policy_totals = {policy: _PolicyTotals(policy, run, book, options) for policy, run in runs.items()}
    for sent_call in priced:
        charge = _find_pricing(sent_call, tariffs)
        window = context_window_tokens(sent_call.call.model, options.window_tokens)
        for totals in policy_totals.values():
            totals.add_call(sent_call, charge, window)
    for totals in policy_totals.values():
        totals.finish(tariffs)
    check, other_dollars = _check_costs(recording, recorded_calls, book)
    return ReplayedSession(
        name=recording.name,
        source=recording.source,
        began_at=recording.calls[0].at if recording.calls else 0.0,
        models=Counter([sent_call.call.model for sent_call in priced]),
        outcomes={policy: totals.make_outcome(other_dollars) for policy, totals in policy_totals.items()},
        points={
            policy: tuple(totals.points) for policy, totals in policy_totals.items() if options.with_points
        },
        check=check,
        placeholders=_estimate_placeholders(recorded_calls, recording, book),
        missing=recording.missing,
        hidden_tokens=_max_hidden_tokens(recorded_calls),
        unreadable=recording.unreadable,
        unpriced=Counter(sent_call.call.model for sent_call in calls)
        - Counter(sent_call.call.model for sent_call in priced),
        size_bytes=recording.size_bytes,
        sub_agents=len({call.conversation for call in recording.calls} - {recording.name})
        if recording.source is RecordingSource.CLAUDE_CODE
        else 0,
    )


def _is_priced(call: ReconstructedCall, book: PriceBook) -> bool:
    return book.rates(call.call.model, provider=call.rules.provider, at=call.call.at) is not None


class _CallPricing(NamedTuple):
    """Facts that the price of a call depends on, whatever the policy; `rates` is None if unknown."""

    rates: CallRates | None
    reasoning_tokens: int


def _find_pricing(sent_call: ReconstructedCall, rates: CallRatesCache) -> _CallPricing:
    call, usage = sent_call.call, sent_call.call.usage
    tier = usage.tier if usage is not None else ""
    return _CallPricing(
        rates.find(call.model, provider=sent_call.rules.provider, at=call.at, tier=tier),
        usage.reasoning_tokens if usage is not None else 0,
    )


def _add_cost(costs: CostSum, pricing: _CallPricing, usage: CacheUsage, output_tokens: int) -> None:
    if pricing.rates is not None:
        costs.add_at_rates(pricing.rates, usage, output_tokens, pricing.reasoning_tokens)


class _EditGains:
    """What edits save after the price of their summaries: the saving of a request is shared by the tokens that
    each edit before it freed.
    """

    def __init__(self) -> None:
        self._edits: list[tuple[str, EditOutcome]] = []

    @property
    def outcomes(self) -> tuple[EditOutcome, ...]:
        return tuple(edit for _, edit in self._edits)

    def add_call(
        self, conversation: str, simulated: SimulatedCall, price: Callable[[CacheUsage, int], Decimal]
    ) -> None:
        summaries = iter(simulated.summaries)
        edits = [
            (edit, _price_summary(next(summaries), price) if edit.is_compaction else ZERO)
            for edit in simulated.edits
        ]
        self.add_edits(item for item in edits if item[0].moment is not Moment.RESPONSE)
        if simulated.unedited_usage is not None:
            saved = price(simulated.unedited_usage, 0) - price(simulated.usage, 0)
            in_force = [
                number
                for number, (name, edit) in enumerate(self._edits)
                if name == conversation and edit.freed_tokens > 0
            ]
            freed = sum(self._edits[number][1].freed_tokens for number in in_force)
            for number in in_force:
                name, edit = self._edits[number]
                self._edits[number] = (
                    name,
                    replace(
                        edit,
                        saved_dollars=edit.saved_dollars + saved * edit.freed_tokens / freed,
                        later_requests=edit.later_requests + 1,
                    ),
                )
        self.add_edits(item for item in edits if item[0].moment is Moment.RESPONSE)

    def add_edits(self, edits: Iterable[tuple[SimulatedEdit, Decimal]]) -> None:
        """Add edits with the prices of their summaries."""
        self._edits += [
            (
                edit.conversation,
                EditOutcome(
                    request=edit.request,
                    moment=edit.moment,
                    is_compaction=edit.is_compaction,
                    freed_tokens=edit.freed_tokens,
                    decision=edit.decision,
                    saved_dollars=-summary_dollars,
                ),
            )
            for edit, summary_dollars in edits
        ]


def _price_summary(summary: SimulatedSummary, price: Callable[[CacheUsage, int], Decimal]) -> Decimal:
    return price(summary.usage, summary.output_tokens)


class _PolicyTotals:
    def __init__(self, policy: Policy, run: PolicyRun, book: PriceBook, options: ReplayOptions) -> None:
        self.points: list[ContextPoint] = []
        self._policy = policy
        self._run = run
        self._costs = CostSum(book)
        self._compaction_costs = CostSum(book)
        self._book = book
        self._options = options
        self._calls = self._largest_context = self._overflows = 0
        self._usage = [0, 0, 0, 0, 0]
        self._compactions = 0
        self._edits = _EditGains()

    def add_call(self, sent_call: ReconstructedCall, pricing: _CallPricing, window: int | None) -> None:
        simulated = self._run.simulate(sent_call)
        self._add_usage(self._costs, pricing, simulated.usage, sent_call.output_tokens)
        for summary in simulated.summaries:
            self._compactions += 1
            self._add_usage(self._compaction_costs, pricing, summary.usage, summary.output_tokens)
        self._edits.add_call(sent_call.call.conversation, simulated, partial(self._price, pricing))
        tokens = simulated.tokens
        self._largest_context = max(self._largest_context, tokens)
        self._calls += 1
        self._overflows += window is not None and tokens > window
        if self._options.with_points:
            self.points.append(self._make_point(sent_call, pricing, simulated, window))

    def finish(self, rates: CallRatesCache) -> None:
        for sent_call, summary in self._run.finish():
            self._compactions += 1
            pricing = _find_pricing(sent_call, rates)
            self._add_usage(self._compaction_costs, pricing, summary.usage, summary.output_tokens)
            if summary.edit is not None:
                price = partial(self._price, pricing)
                self._edits.add_edits([(summary.edit, _price_summary(summary, price))])

    def _price(self, pricing: _CallPricing, usage: CacheUsage, output_tokens: int) -> Decimal:
        costs = CostSum(self._book)
        _add_cost(costs, pricing, usage, output_tokens)
        return costs.dollars or ZERO

    def _add_usage(self, costs: CostSum, pricing: _CallPricing, usage: CacheUsage, output_tokens: int) -> None:
        _add_cost(costs, pricing, usage, output_tokens)
        sums = self._usage
        sums[0] += usage.uncached
        sums[1] += usage.read
        sums[2] += usage.written_5m
        sums[3] += usage.written_1h
        sums[4] += output_tokens

    def _make_point(
        self, sent_call: ReconstructedCall, pricing: _CallPricing, simulated: SimulatedCall, window: int | None
    ) -> ContextPoint:
        costs = CostSum(self._book)
        _add_cost(costs, pricing, simulated.usage, sent_call.output_tokens)
        for summary in simulated.summaries:
            _add_cost(costs, pricing, summary.usage, summary.output_tokens)
        return ContextPoint(
            at=sent_call.call.at,
            tokens=simulated.tokens,
            window_tokens=window,
            is_compacted=bool(simulated.summaries),
            dollars=costs.dollars or ZERO,
        )

    def make_outcome(self, other_dollars: Decimal) -> Outcome:
        uncached, read, written_5m, written_1h, output = self._usage
        calls, compactions = self._costs.dollars, self._compaction_costs.dollars
        is_known = calls is not None and compactions is not None
        return Outcome(
            policy=self._policy,
            calls=self._calls,
            uncached=uncached,
            read=read,
            written_5m=written_5m,
            written_1h=written_1h,
            output=output,
            dollars=EXACT.add(EXACT.add(calls or ZERO, compactions or ZERO), other_dollars)
            if is_known
            else None,
            largest_context=self._largest_context,
            overflows=self._overflows,
            folds=self._compactions,
            fold_dollars=compactions or ZERO,
            edits=self._edits.outcomes,
        )


def _check_costs(
    recording: Recording, calls: Sequence[ReconstructedCall], book: PriceBook
) -> tuple[CostCheck, Decimal]:
    """Compare recorded with simulated costs; also return the recorded cost of anything but tokens."""
    if (run_total_check := check_run_total(recording, calls, book)) is not None:
        return run_total_check, ZERO
    rates, simulated, expected, by_tokens = CallRatesCache(book), CostSum(book), CostSum(book), CostSum(book)
    checked_calls, logged, other_dollars = 0, ZERO, ZERO
    for call in calls:
        usage = call.call.usage
        if usage is None:
            continue
        pricing = _find_pricing(call, rates)
        is_reported = usage.reported_dollars is not None and states_its_price(call.rules.provider)
        if pricing.rates is not None and not is_reported and pricing.rates.covers(usage):
            by_tokens.add_at_rates(pricing.rates, usage.cache, usage.output_tokens, usage.reasoning_tokens)
        else:
            price = _price_usage(call.call, usage, call.rules.provider, book)
            if price is None:
                continue
            logged = EXACT.add(logged, price[0])
            other_dollars = EXACT.add(other_dollars, price[1])
        checked_calls += 1
        _add_cost(simulated, pricing, call.recorded, usage.output_tokens)
        _add_cost(expected, pricing, call.expected, usage.output_tokens)
    check = CostCheck(
        calls=checked_calls,
        logged=EXACT.add(logged, by_tokens.dollars or ZERO),
        simulated=EXACT.add(simulated.dollars or ZERO, other_dollars),
        expected=EXACT.add(expected.dollars or ZERO, other_dollars),
        lower_read_calls=sum(call.finding is UsageFinding.PREFIX_CHANGED for call in calls),
        higher_read_calls=sum(call.finding is UsageFinding.ALREADY_CACHED for call in calls),
        reported=recording.reported_dollars,
    )
    return check, other_dollars


def _price_usage(
    call: RecordedCall, usage: Usage, provider: str, book: PriceBook
) -> tuple[Decimal, Decimal] | None:
    """The cost of a call, and how much of it is for neither input nor output, such as searches."""
    price = book.price(call.model, usage, provider=provider, at=call.at)
    return None if price is None else (price.dollars, price.other_dollars)


def _estimate_placeholders(
    calls: Sequence[ReconstructedCall], recording: Recording, book: PriceBook
) -> Placeholders:
    """Estimate what is missing in responses of which only the first token count of the stream was logged."""
    unknown = [call for call in calls if call.call.usage is not None and not call.call.output_is_known]
    costs, tokens = CostSum(book), 0
    sizers: dict[str, MessageSizer] = {}
    for call in unknown:
        model = call.call.model
        sizer = sizers.get(model)
        if sizer is None:
            sizer = sizers[model] = MessageSizer(model, recording.format)
        missing_tokens = max(sizer.count_message(call.call.response) - call.output_tokens, 0)
        tokens += missing_tokens
        costs.add(CacheUsage(), missing_tokens, model=model, provider=call.rules.provider, at=call.call.at)
    return Placeholders(calls=len(unknown), tokens=tokens, dollars=costs.dollars or ZERO)


def _max_hidden_tokens(calls: Sequence[ReconstructedCall]) -> int:
    """The largest number of tokens before the messages that was inferred from usage."""
    return max((call.preamble.tokens for call in calls if not call.call.envelope), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResult:
    """The result of replaying a session, or why it could not be read.

    `calls` are the ids of the calls of each recording. `repeated` is the number of calls that were left out
    because an earlier session contains them.
    """

    session: SessionFiles
    replayed: tuple[ReplayedSession, ...] = ()
    calls: tuple[tuple[str, ...], ...] = ()
    repeated: int = 0
    error: str = ""


def replay_sessions(
    sessions: Sequence[SessionFiles],
    options: ReplayOptions,
    *,
    processes: int | None = None,
    on_progress: Callable[[int], None] = lambda _bytes: None,
) -> Iterator[SessionResult]:
    """Replay every session, in order. A call that occurs in two sessions is counted in the first.

    `on_progress` receives the number of bytes done.
    """
    seen: set[str] = set()
    replay = partial(_replay_session, options=options, known=frozenset())
    results = map_sessions(sessions, replay, processes=processes, on_progress=on_progress)
    for session, session_result in zip(sessions, results, strict=True):
        known = frozenset(name for calls in session_result.calls for name in calls if name in seen)
        if known:  # done in this process, since it would have to wait for the others in the pool
            session_result = _replay_session(session, options, known)
        seen.update(name for calls in session_result.calls for name in calls)
        yield session_result


def map_sessions(
    sessions: Sequence[SessionFiles],
    work: Callable[[SessionFiles], ResultT],
    *,
    processes: int | None = None,
    on_progress: Callable[[int], None] = lambda _bytes: None,
) -> Iterator[ResultT]:
    """Yield the result of `work` for every session, in order; `work` must be picklable, and may not raise.

    `on_progress` receives the number of bytes done.
    """
    sizes = [session_size_bytes(session) for session in sessions]
    process_count = choose_processes(sum(sizes)) if processes is None else processes
    with _worker_pool(process_count) as submit:
        for size, result in zip(sizes, _start_batches(sessions, sizes, work, submit), strict=True):
            session_result = result()
            on_progress(size)
            yield session_result


def session_size_bytes(session: SessionFiles) -> int:
    """The total size of a session's files; 0 if it is in a database."""
    return sum(path.stat().st_size for path in session.files if path.is_file())


class _Submit(Protocol):
    """Starts a function in a process, and returns one that waits for its result."""

    def __call__(self, run: Callable[[], tuple[ResultT, ...]], /) -> Callable[[], tuple[ResultT, ...]]: ...


def _start_batches(
    sessions: Sequence[SessionFiles],
    sizes: Sequence[int],
    work: Callable[[SessionFiles], ResultT],
    submit: _Submit | None,
) -> list[Callable[[], ResultT]]:
    if submit is None:
        return [partial(work, session) for session in sessions]
    waiting: dict[int, Callable[[], ResultT]] = {}
    for batch in make_batches(sizes):
        result = submit(partial(_run_batch, work, tuple(sessions[number] for number in batch)))
        for place, number in enumerate(batch):
            waiting[number] = partial(_result_at, result, place)
    return [waiting[number] for number in range(len(sessions))]


def _run_batch(work: Callable[[SessionFiles], ResultT], batch: tuple[SessionFiles, ...]) -> tuple[ResultT, ...]:
    return tuple(map(work, batch))


def _result_at(result: Callable[[], tuple[ResultT, ...]], index: int) -> ResultT:
    return result()[index]


@contextmanager
def _worker_pool(processes: int) -> Iterator[_Submit | None]:
    if processes <= 1:
        yield None
        return
    pool = open_worker_pool(processes, preload=lambda: load_price_book().preload())

    def submit(run: Callable[[], tuple[ResultT, ...]], /) -> Callable[[], tuple[ResultT, ...]]:
        return _wait_or_run(pool.submit(run), run)

    try:
        yield submit
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _wait_or_run(
    future: "Future[tuple[ResultT, ...]]", run_locally: Callable[[], tuple[ResultT, ...]]
) -> Callable[[], tuple[ResultT, ...]]:
    """A function that waits for sessions, and runs them in this process if the worker died."""

    @cache
    def result() -> tuple[ResultT, ...]:
        try:
            return future.result()
        except BrokenProcessPool:
            return run_locally()

    return result


@cache
def load_price_book() -> PriceBook:
    return PriceBook(load_imported=default_price_file(os.environ).current_prices)


def _replay_session(session: SessionFiles, options: ReplayOptions, known: frozenset[str]) -> SessionResult:
    try:
        recordings = read_session(session, model=options.model)
        return _replay_recordings(session, recordings, options, known)
    except FoveateError as error:
        return SessionResult(session=session, error=str(error))
    except Exception as error:  # noqa: BLE001 - of hundreds of sessions, one that is like no other stops none
        return SessionResult(session=session, error=f"cannot be replayed: {type(error).__name__}: {error}")


def _replay_recordings(
    session: SessionFiles, recordings: Sequence[Recording], options: ReplayOptions, known: frozenset[str]
) -> SessionResult:
    remaining, repeated = [], 0
    for recording in recordings:
        calls = tuple(call for call in recording.calls if call.id not in known)
        repeated += len(recording.calls) - len(calls)
        remaining.append(recording if len(calls) == len(recording.calls) else replace(recording, calls=calls))
    return SessionResult(
        session=session,
        replayed=tuple(replay_recording(recording, load_price_book(), options) for recording in remaining),
        calls=tuple(tuple(call.id for call in recording.calls) for recording in remaining),
        repeated=repeated,
    )
