"""Dollars for recorded sessions under each policy of editing: none, fixed triggers, ours, peers, and hindsight.

All policies are simulated with the gateway's breakpoints and one cache. Hindsight is, for each session, the
cheapest combination of a trigger (or none) and of clearing old tool results (or not). Since a model fetches
again what it needs and no longer has, `…_refetch_dollars` adds that. Recordings without usage are left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.bill_facts import EditEvent, Needs, SessionFacts, measure_needs
from benchmarks.bill_policies import (
    CLEARING_AGES,
    CLEARING_STEP_TOKENS,
    TRIGGERS,
    ClearByAge,
    ClearToolUses,
    FixedTrigger,
    LangChainSummary,
    NoEdits,
    peer_placeholder,
)
from benchmarks.bill_recordings import read_recordings
from benchmarks.fit_activity import fit_held_out
from benchmarks.harness import BadData, Cell, Report
from benchmarks.recorded import DATA
from foveate.compaction.forecast import ActivityPrior
from foveate.cost.pricing.price_book import PriceBook
from foveate.model import CacheUsage
from foveate.replay.outcomes import CostSum
from foveate.replay.recording import Recording
from foveate.replay.run import drop_unpriced_tiers
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY, AdaptiveRun
from foveate.replay.simulator.cost_policy import CostTrigger, FindRates, forecast_from_prior
from foveate.replay.simulator.editing_run import (
    EditingMoment,
    EditingRun,
    EditPolicy,
    HistoryEdits,
    WindowTrigger,
)
from foveate.replay.simulator.history_edits import MessageReader
from foveate.replay.simulator.prompts import AbbreviatedPrompts
from foveate.replay.simulator.reconstruct import ReconstructedCall, find_rates, reconstruct_calls

RECORDED, DEFAULTS, WINDOW, OURS, HINDSIGHT = "recorded", "defaults", "window 75%", "ours", "hindsight"
OURS_COMPACTION, OURS_CLEARING = "ours, only compaction", "ours, only clearing"
LANGCHAIN_CLEARING, LANGCHAIN_SUMMARY = "LangChain ContextEditing", "LangChain Summarization"
ANTHROPIC_CLEARING = "Anthropic clear_tool_uses"
_OURS = (OURS, OURS_COMPACTION, OURS_CLEARING)
_PEERS = (LANGCHAIN_CLEARING, LANGCHAIN_SUMMARY, ANTHROPIC_CLEARING)
_FACT_CELLS = frozenset(("refetch_dollars", "refetches", "needed", "needed_carried"))
# Sessions below this cost do not count for the worst ratio.
_MIN_DOLLARS = 0.10

FIGURES = (
    "sessions",
    "calls",
    "recorded_dollars",
    "defaults_dollars",
    "window_dollars",
    "best_fixed_dollars",
    "best_fixed_trigger",
    "ours_dollars",
    "hindsight_dollars",
    "worst_session_ratio",
    "needed_carried",
    "ours_refetch_dollars",
    "best_fixed_refetch_dollars",
    "window_refetch_dollars",
    "hindsight_refetch_dollars",
    "ours_edits",
)


@dataclass(slots=True)
class PolicyBill:
    """A session under one policy."""

    dollars: float = 0.0
    summaries: int = 0
    clearings: int = 0
    usages: list[CacheUsage] = field(default_factory=list)
    events: dict[int, list[EditEvent]] = field(default_factory=dict)
    needs: Needs | None = None

    @property
    def edits(self) -> int:
        return self.summaries + self.clearings

    @property
    def refetch_dollars(self) -> float:
        return self.dollars + (self.needs.fetch_dollars if self.needs is not None else 0.0)


@dataclass(slots=True)
class SessionBill:
    name: str
    source: str
    calls: int
    policies: dict[str, PolicyBill]
    best_combination: str


class _RecordedDecisions:
    """A policy whose edits are written down."""

    def __init__(self, policy: EditPolicy, bill: PolicyBill) -> None:
        self._policy = policy
        self._bill = bill

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        edits = self._policy.decide(moment)
        if edits.compaction is not None or edits.cleared:
            self._bill.events.setdefault(id(moment.unedited), []).append(EditEvent(moment.moment, edits))
            self._bill.summaries += edits.compaction is not None
            self._bill.clearings += bool(edits.cleared)
        return edits


def run(data: Path | None, *, quick: bool = False) -> Report:
    """Return the report; `quick` leaves out the facts that later turns need."""
    book = PriceBook()
    book.preload()
    recordings, left_out = read_recordings(data or DATA / "sessions")
    if not recordings:
        raise BadData(f"no recorded sessions with usage (Claude Code or pi logs) under {data or DATA}")
    # The sessions of each author are forecast from those of all others. Other data are unseen anyway.
    priors = fit_held_out() if data is None else {}
    bills = [
        _bill_session(recording, book, source=source, prior=priors.get(source), quick=quick)
        for source, recording in recordings
    ]
    totals = _sum_policies(bills)
    best_fixed = min((_trigger_name(tokens) for tokens in TRIGGERS), key=lambda name: totals[name].dollars)
    figures = _figures(bills, totals, best_fixed)
    cells = {name: _policy_cells(total, totals[RECORDED].dollars) for name, total in totals.items()}
    if quick:  # no facts were looked for
        figures = {name: value for name, value in figures.items() if "refetch" not in name}
        cells = {
            name: {title: cell for title, cell in row.items() if title not in _FACT_CELLS}
            for name, row in cells.items()
        }
    return Report(
        figures=figures,
        peers={name: cells[name] for name in _PEERS},
        rows=[{"policy": name, **row} for name, row in cells.items()],
        tables={
            "by source (leave one out)": _source_rows(bills, best_fixed),
            "by session": _session_rows(bills, best_fixed),
            "left out": [{"session": name, "reason": reason} for name, reason in left_out],
        },
    )


def _contenders(find_rates: FindRates, prior: ActivityPrior | None) -> dict[str, EditPolicy]:
    """The policies by name; those of hindsight have names with a plus sign."""
    triggers: dict[str, Callable[[], EditPolicy]] = {DEFAULTS: NoEdits, WINDOW: WindowTrigger}
    triggers |= {_trigger_name(tokens): (lambda tokens=tokens: FixedTrigger(tokens)) for tokens in TRIGGERS}
    contenders: dict[str, EditPolicy] = {name: make() for name, make in triggers.items()}
    for name, make in triggers.items():
        for age in CLEARING_AGES:
            contenders[f"{name} + cold {age}"] = ClearByAge(make(), age)
            contenders[f"{name} + step {age}"] = ClearByAge(make(), age, CLEARING_STEP_TOKENS)
    forecast = partial(forecast_from_prior, prior=prior)
    contenders[OURS] = CostTrigger(find_rates, forecast=forecast)
    contenders[OURS_COMPACTION] = CostTrigger(find_rates, clears=False, forecast=forecast)
    contenders[OURS_CLEARING] = CostTrigger(find_rates, compacts=False, forecast=forecast)
    contenders[LANGCHAIN_CLEARING] = ClearToolUses(counts_preamble=False)
    contenders[LANGCHAIN_SUMMARY] = LangChainSummary()
    contenders[ANTHROPIC_CLEARING] = ClearToolUses(counts_preamble=True)
    return contenders


def _trigger_name(tokens: int) -> str:
    return f"{tokens // 1000}k"


def _bill_session(
    recording: Recording, book: PriceBook, *, source: str, prior: ActivityPrior | None, quick: bool
) -> SessionBill:
    calls = [
        call
        for call in reconstruct_calls(drop_unpriced_tiers(recording, book))
        if find_rates(book, call) is not None
    ]
    reader = MessageReader(recording.format)

    bills = {RECORDED: _price_calls([(call, call.recorded) for call in calls], book)}
    shared = AdaptiveRun(AbbreviatedPrompts(), DEFAULT_GATEWAY)
    runs: dict[str, EditingRun] = {}
    costs: dict[str, CostSum] = {}
    for name, policy in _contenders(partial(find_rates, book), prior).items():
        bills[name] = PolicyBill()
        runs[name] = EditingRun(
            shared,
            _RecordedDecisions(policy, bills[name]),
            api_format=recording.format,
            window_tokens=None,
            reader=reader,
        )
        costs[name] = CostSum(book)
    for call in calls:
        for name, editing in runs.items():
            simulated = editing.simulate(call)
            bills[name].usages.append(simulated.usage)
            _add_cost(costs[name], call, simulated.usage, call.output_tokens)
            for summary in simulated.summaries:
                _add_cost(costs[name], call, summary.usage, summary.output_tokens)
    for name, editing in runs.items():
        for call, summary in editing.finish():
            _add_cost(costs[name], call, summary.usage, summary.output_tokens)
        bills[name].dollars = float(costs[name].dollars or 0)
    combinations = [name for name in runs if name not in (*_PEERS, *_OURS, WINDOW) and WINDOW not in name]
    best = min(combinations, key=lambda name: bills[name].dollars)
    bills[HINDSIGHT] = bills[best]
    bills = {name: bill for name, bill in bills.items() if " + " not in name}
    if not quick:
        facts = SessionFacts(reader)
        for name, bill in bills.items():
            if bill.needs is None and bill.events:
                bill.needs = measure_needs(
                    calls,
                    bill.usages,
                    bill.events,
                    facts,
                    partial(find_rates, book),
                    placeholder=peer_placeholder if name in _PEERS else None,
                )
    return SessionBill(recording.name, source, len(calls), bills, best)


def _price_calls(calls: Iterable[tuple[ReconstructedCall, CacheUsage]], book: PriceBook) -> PolicyBill:
    costs = CostSum(book)
    for call, usage in calls:
        _add_cost(costs, call, usage, call.output_tokens)
    return PolicyBill(dollars=float(costs.dollars or 0))


def _add_cost(costs: CostSum, call: ReconstructedCall, usage: CacheUsage, output_tokens: int) -> None:
    costs.add(usage, output_tokens, model=call.call.model, provider=call.rules.provider, at=call.call.at)


def _sum_policies(bills: Sequence[SessionBill]) -> dict[str, PolicyBill]:
    totals: dict[str, PolicyBill] = {}
    for bill in bills:
        for name, policy in bill.policies.items():
            total = totals.setdefault(name, PolicyBill(needs=Needs()))
            total.dollars += policy.dollars
            total.summaries += policy.summaries
            total.clearings += policy.clearings
            if policy.needs is not None and total.needs is not None:
                total.needs.needed += policy.needs.needed
                total.needs.carried += policy.needs.carried
                total.needs.fetches += policy.needs.fetches
                total.needs.fetch_dollars += policy.needs.fetch_dollars
    return totals


def _policy_cells(total: PolicyBill, recorded_dollars: float) -> dict[str, Cell]:
    needs = total.needs or Needs()
    return {
        "dollars": total.dollars,
        "of_recorded": total.dollars / recorded_dollars if recorded_dollars else None,
        "refetch_dollars": total.refetch_dollars,
        "refetches": needs.fetches,
        "needed": needs.needed,
        "needed_carried": needs.carried / needs.needed if needs.needed else None,
        "compactions": total.summaries,
        "clearings": total.clearings,
    }


def _figures(
    bills: Sequence[SessionBill], totals: Mapping[str, PolicyBill], best_fixed: str
) -> dict[str, float]:
    ours = totals.get(OURS)
    figures: dict[str, float] = {
        "sessions": len(bills),
        "calls": sum(bill.calls for bill in bills),
        "recorded_dollars": totals[RECORDED].dollars,
        "defaults_dollars": totals[DEFAULTS].dollars,
        "window_dollars": totals[WINDOW].dollars,
        "window_refetch_dollars": totals[WINDOW].refetch_dollars,
        "best_fixed_dollars": totals[best_fixed].dollars,
        "best_fixed_refetch_dollars": totals[best_fixed].refetch_dollars,
        "best_fixed_trigger": int(best_fixed[:-1]) * 1000,
        "hindsight_dollars": totals[HINDSIGHT].dollars,
        "hindsight_refetch_dollars": totals[HINDSIGHT].refetch_dollars,
    }
    if ours is not None:
        needs = ours.needs or Needs()
        figures |= {
            "ours_dollars": ours.dollars,
            "ours_refetch_dollars": ours.refetch_dollars,
            "ours_edits": ours.edits,
            "worst_session_ratio": max(
                (
                    bill.policies[OURS].dollars / bill.policies[DEFAULTS].dollars
                    for bill in bills
                    if bill.policies[DEFAULTS].dollars >= _MIN_DOLLARS
                ),
                default=1.0,
            ),
        }
        if needs.needed:
            figures["needed_carried"] = needs.carried / needs.needed
    return figures


def _source_rows(bills: Sequence[SessionBill], best_fixed: str) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for source in sorted({bill.source for bill in bills}):
        of_source = [bill for bill in bills if bill.source == source]
        others = _sum_policies([bill for bill in bills if bill.source != source])
        # The best trigger for the other sources.
        unseen = min(
            (_trigger_name(tokens) for tokens in TRIGGERS),
            key=lambda name: others[name].dollars if others else 0.0,
        )
        totals = _sum_policies(of_source)
        rows.append(
            {
                "source": source,
                "sessions": len(of_source),
                **_dollar_cells(totals, best_fixed),
                "unseen_fixed": totals[unseen].dollars,
            }
        )
    return rows


def _session_rows(bills: Sequence[SessionBill], best_fixed: str) -> list[dict[str, Cell]]:
    return [
        {
            "session": bill.name[:12],
            "calls": bill.calls,
            **_dollar_cells(bill.policies, best_fixed),
            "edits": bill.policies[OURS].edits if OURS in bill.policies else None,
            "best_combination": bill.best_combination,
        }
        for bill in bills
    ]


def _dollar_cells(policies: Mapping[str, PolicyBill], best_fixed: str) -> dict[str, Cell]:
    names = {
        "recorded": RECORDED,
        "defaults": DEFAULTS,
        "window": WINDOW,
        "best_fixed": best_fixed,
        "ours": OURS,
        "hindsight": HINDSIGHT,
    }
    return {title: policies[name].dollars for title, name in names.items() if name in policies}
