"""Advice on recorded sessions: what they cost, where the money went, and which settings would have saved most.

The sessions are read twice. The first time, every call is priced. The second time, the most expensive sessions
are simulated: enough of them to cover most of the money, and few enough to take seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial

from foveate.advice.candidate_settings import (
    CURRENT,
    CandidateResult,
    CombinationResult,
    choose_combination,
    choose_settings,
    compare_candidates,
    gateway_options,
    list_candidates,
    list_combinations,
    merge_changes,
)
from foveate.advice.cost_breakdown import CostBreakdown
from foveate.advice.session_costs import (
    CallCharge,
    Period,
    RecordingCharges,
    SimulatedCost,
    SimulatedSession,
    charge_recording,
    prepare_recording,
    simulate_recording,
    sum_costs,
)
from foveate.config.settings import Settings
from foveate.cost.pricing.rates import ZERO
from foveate.engine.options import AgentOptions
from foveate.errors import FoveateError
from foveate.replay.recording_files import SessionFiles, read_session
from foveate.replay.run import load_price_book, map_sessions
from foveate.replay.worker_pool import count_cores

# The share of the money to simulate, and the maximum number of calls: a core simulates about 80 a second, and
# then about 120 a second with the chosen settings together.
_COVERED_SHARE = Decimal("0.9")
_MAX_CALLS_PER_CORE = 400
# Recordings that would keep one core busy for longer are left out if the others have this share of the money.
_MIN_SHORT_SHARE = Decimal("0.5")
# With fewer calls, one process is done before another one has started.
_MIN_PARALLEL_CALLS = 200


@dataclass(slots=True)
class Spend:
    """Calls of unknown price are only counted."""

    calls: int = 0
    unpriced_calls: int = 0
    estimated_calls: int = 0
    dollars: Decimal = ZERO
    uncached: Decimal = ZERO
    read: Decimal = ZERO
    written: Decimal = ZERO
    output: Decimal = ZERO
    other: Decimal = ZERO

    def add(self, charge: CallCharge) -> None:
        self.calls += 1
        self.estimated_calls += charge.is_estimated
        if charge.dollars is None:
            self.unpriced_calls += 1
            return
        self.dollars += charge.dollars
        self.uncached += charge.uncached
        self.read += charge.read
        self.written += charge.written
        self.output += charge.output
        self.other += charge.other


@dataclass(slots=True, kw_only=True)
class SpendReport:
    """What was spent: in total, by agent and by model. `unpriced` counts calls by model of unknown price."""

    total: Spend = field(default_factory=Spend)
    by_agent: dict[str, Spend] = field(default_factory=dict)
    by_model: dict[str, Spend] = field(default_factory=dict)
    sessions: int = 0
    unpriced: Counter[str] = field(default_factory=Counter)
    repeated_calls: int = 0
    unreadable_lines: int = 0
    first_at: float = 0.0
    last_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The simulated sessions: their charges, and the simulated cost of the same calls.

    `charged` is what the breakdown must add up to. `results` are all candidates, `chosen` the recommended ones,
    `combination` the set of these that saves most.
    """

    sessions: int
    calls: int
    charged: Decimal
    breakdown: CostBreakdown
    recorded: SimulatedCost | None
    current: SimulatedCost | None
    results: tuple[CandidateResult, ...] = ()
    chosen: tuple[CandidateResult, ...] = ()
    combination: CombinationResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """`simulation` is None if nothing has a price. `unread` are sessions that could not be read, and why."""

    spend: SpendReport
    simulation: Simulation | None
    unread: tuple[tuple[str, str], ...] = ()


OnProgress = Callable[[int], None]


def give_advice(
    sessions: Sequence[SessionFiles],
    settings: Settings,
    period: Period,
    *,
    on_charging: OnProgress = lambda _bytes: None,
    on_simulating: OnProgress = lambda _bytes: None,
) -> Advice:
    """Analyse the calls of these sessions in this period. The functions receive the number of bytes done."""
    charged = list(map_sessions(sessions, partial(_charge_session, period=period), on_progress=on_charging))
    spend, entries = _sum_charges(charged)
    errors = {
        _name_files(session): result.error
        for session, result in zip(sessions, charged, strict=True)
        if result.error
    }
    selected = select_recordings(entries, cores=count_cores())
    simulator = _Simulator(sessions, selected, period, on_simulating)
    simulation = simulator.simulate(settings) if selected else None
    return Advice(spend=spend, simulation=simulation, unread=tuple((errors | simulator.errors).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChargedSession:
    recordings: tuple[RecordingCharges, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSpend:
    """A recording by its session and its place in that. `repeated` are calls that an earlier one contains."""

    session: int
    place: int
    calls: int
    dollars: Decimal
    repeated: frozenset[str] = frozenset()


def _charge_session(session: SessionFiles, *, period: Period) -> _ChargedSession:
    try:
        book = load_price_book()
        recordings = [charge_recording(recording, book, period) for recording in read_session(session)]
    except FoveateError as error:
        return _ChargedSession(error=str(error))
    except Exception as error:  # noqa: BLE001 - of hundreds of sessions, one that is like no other stops none
        return _ChargedSession(error=f"cannot be read: {type(error).__name__}: {error}")
    return _ChargedSession(recordings=tuple(recordings))


def _sum_charges(sessions: Iterable[_ChargedSession]) -> tuple[SpendReport, list[RecordingSpend]]:
    report, entries, seen = SpendReport(), [], set[str]()
    for number, session in enumerate(sessions):
        for place, recording in enumerate(session.recordings):
            repeated = frozenset(charge.id for charge in recording.charges if charge.id in seen)
            charges = [charge for charge in recording.charges if charge.id not in repeated]
            seen.update(charge.id for charge in charges)
            report.repeated_calls += len(recording.charges) - len(charges)
            report.unreadable_lines += recording.unreadable_lines
            if not charges:
                continue
            spend = Spend()
            for charge in charges:
                for total in (
                    spend,
                    report.total,
                    report.by_agent.setdefault(recording.source, Spend()),
                    report.by_model.setdefault(charge.model, Spend()),
                ):
                    total.add(charge)
                if charge.dollars is None:
                    report.unpriced[charge.model] += 1
                if charge.at:
                    report.first_at = min(report.first_at or charge.at, charge.at)
                    report.last_at = max(report.last_at, charge.at)
            report.sessions += 1
            entries.append(
                RecordingSpend(
                    session=number,
                    place=place,
                    calls=spend.calls,
                    dollars=spend.dollars,
                    repeated=repeated,
                )
            )
    return report, entries


def select_recordings(entries: Sequence[RecordingSpend], *, cores: int) -> list[RecordingSpend]:
    """The most expensive recordings that cover most of the money, within the limit of calls; at least one."""
    total = sum((entry.dollars for entry in entries), ZERO)
    short = [entry for entry in entries if entry.calls <= _MAX_CALLS_PER_CORE]
    candidates = short if sum(entry.dollars for entry in short) >= _MIN_SHORT_SHARE * total else entries
    selected: list[RecordingSpend] = []
    dollars, calls = ZERO, 0
    for entry in sorted(candidates, key=lambda entry: (-entry.dollars, entry.session, entry.place)):
        if not entry.dollars or dollars >= _COVERED_SHARE * total:
            break
        if selected and calls + entry.calls > _MAX_CALLS_PER_CORE * cores:
            continue
        selected.append(entry)
        dollars, calls = dollars + entry.dollars, calls + entry.calls
    return selected


@dataclass(frozen=True, slots=True, kw_only=True)
class _SimulatedFiles:
    """The simulated recordings of a session, or why it could not be simulated."""

    sessions: tuple[tuple[RecordingSpend, SimulatedSession], ...] = ()
    error: str = ""


class _Simulator:
    """Simulates the selected recordings. `errors` are the sessions that failed, with the reason."""

    def __init__(
        self,
        sessions: Sequence[SessionFiles],
        selected: Sequence[RecordingSpend],
        period: Period,
        on_progress: OnProgress,
    ) -> None:
        self.errors: dict[str, str] = {}
        self._period = period
        self._on_progress = on_progress
        self._sessions = [sessions[number] for number in dict.fromkeys(entry.session for entry in selected)]
        self._entries: dict[SessionFiles, list[RecordingSpend]] = {}
        for entry in selected:
            self._entries.setdefault(sessions[entry.session], []).append(entry)

    def simulate(self, settings: Settings) -> Simulation | None:
        """Simulate all candidates, and then the chosen ones together; None if every session failed."""
        candidates = list_candidates(settings)
        configurations = {CURRENT: gateway_options(settings, {})} | {
            candidate.name: gateway_options(settings, candidate.changes) for candidate in candidates
        }
        simulated = self._run(configurations)
        if not simulated:
            return None
        breakdown = CostBreakdown()
        for _, session in simulated:
            breakdown.add(session.breakdown)
        costs = _sum_by_name(simulated, configurations)
        recorded = sum_costs(session.recorded for _, session in simulated)
        results = compare_candidates(candidates, costs)
        chosen = choose_settings(results, recorded.dollars if recorded is not None else ZERO)
        return Simulation(
            sessions=len(simulated),
            calls=sum(entry.calls for entry, _ in simulated),
            charged=sum((entry.dollars for entry, _ in simulated), ZERO),
            breakdown=breakdown,
            recorded=recorded,
            current=costs[CURRENT],
            results=tuple(results),
            chosen=chosen,
            combination=self._combine(settings, chosen, costs[CURRENT]),
        )

    def _combine(
        self, settings: Settings, chosen: tuple[CandidateResult, ...], current: SimulatedCost | None
    ) -> CombinationResult | None:
        groups = list_combinations(chosen)
        configurations = {
            name: gateway_options(settings, merge_changes(group)) for name, group in groups.items()
        }
        costs = _sum_by_name(self._run(configurations), configurations) if groups else {}
        return choose_combination(chosen, groups, costs, current)

    def _run(self, configurations: Mapping[str, AgentOptions]) -> list[tuple[RecordingSpend, SimulatedSession]]:
        work = partial(
            _simulate_session, entries=self._entries, period=self._period, configurations=configurations
        )
        simulated: list[tuple[RecordingSpend, SimulatedSession]] = []
        sessions = [session for session in self._sessions if _name_files(session) not in self.errors]
        calls = sum(entry.calls for session in sessions for entry in self._entries[session])
        results = map_sessions(
            sessions,
            work,
            processes=count_cores() if calls >= _MIN_PARALLEL_CALLS else 1,
            on_progress=self._on_progress,
        )
        for session, result in zip(sessions, results, strict=True):
            if result.error:
                self.errors[_name_files(session)] = result.error
            simulated += result.sessions
        return simulated


def _simulate_session(
    session: SessionFiles,
    *,
    entries: Mapping[SessionFiles, Sequence[RecordingSpend]],
    period: Period,
    configurations: Mapping[str, AgentOptions],
) -> _SimulatedFiles:
    book = load_price_book()
    try:
        recordings = read_session(session)
        simulated = [
            (
                entry,
                simulate_recording(
                    prepare_recording(recordings[entry.place], book, period, excluded=entry.repeated),
                    book,
                    configurations,
                ),
            )
            for entry in entries[session]
        ]
    except FoveateError as error:
        return _SimulatedFiles(error=str(error))
    except Exception as error:  # noqa: BLE001 - of hundreds of sessions, one that is like no other stops none
        return _SimulatedFiles(error=f"cannot be simulated: {type(error).__name__}: {error}")
    return _SimulatedFiles(sessions=tuple(simulated))


def _name_files(session: SessionFiles) -> str:
    return ", ".join(map(str, session.files))


def _sum_by_name(
    sessions: Sequence[tuple[RecordingSpend, SimulatedSession]], names: Iterable[str]
) -> dict[str, SimulatedCost | None]:
    return {name: sum_costs(session.configurations[name] for _, session in sessions) for name in names}
