"""Advice as text and as JSON objects."""

from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal

from foveate.advice.advise import Advice, Simulation, Spend, SpendReport
from foveate.advice.candidates import MIN_SHARE, CandidateResult, merge_changes, to_inline_yaml, to_yaml
from foveate.advice.cost_breakdown import (
    OLD_REQUESTS,
    ContextPart,
    MissCost,
    PartCost,
    PartKind,
    describe_recorded_cause,
)
from foveate.advice.session_costs import SimulatedCost
from foveate.cli.shared.console import Display
from foveate.cli.shared.tables import Column, Fit, format_table, wrap_text

_MAX_PARTS = 8
_MAX_CAUSES = 4
_MAX_MODELS = 3
_CENT = Decimal("0.01")
_NAMES = {
    "claude-code": "Claude Code",
    "codex": "Codex",
    "gemini-cli": "Gemini CLI",
    "qwen-code": "Qwen Code",
    "openhands": "OpenHands",
    "swe-agent": "SWE-agent",
}


class AdviceFormatter:
    def __init__(self, display: Display) -> None:
        self._display = display

    def lines(self, advice: Advice, days: float | None, configuration: str) -> Iterator[str]:
        yield from self._spend_lines(advice.spend, days)
        simulation = advice.simulation
        if simulation is None:
            return
        yield ""
        yield from self._part_lines(simulation, advice.spend)
        yield ""
        yield from self._miss_lines(simulation)
        yield from self._other_lines(simulation)
        yield ""
        yield from self._setting_lines(simulation, configuration)

    def _wrap(self, text: str, indent: int = 0) -> list[str]:
        return wrap_text(text, self._display, indent=indent)

    def _heading(self, text: str) -> list[str]:
        return wrap_text(text, self._display, style="bold")

    def _spend_lines(self, spend: SpendReport, days: float | None) -> Iterator[str]:
        total = spend.total
        period = f"Last {days:g} days" if days is not None else "All recorded calls"
        yield from self._heading(
            f"{period}: {_dollars(total.dollars)} in {_count(total.calls, 'call')} of "
            f"{_count(spend.sessions, 'session')}"
        )
        kinds = (
            ("cache reads", total.read),
            ("cache writes", total.written),
            ("uncached input", total.uncached),
            ("output", total.output),
            ("other", total.other),
        )
        yield from self._wrap(
            "By kind: "
            + ", ".join(
                f"{name} {_dollars(amount)} ({_share(amount, total.dollars)})"
                for name, amount in kinds
                if amount
            ),
            indent=2,
        )
        agents = {_NAMES.get(name, name): group for name, group in spend.by_agent.items()}
        yield from self._wrap(f"By agent: {_list_spend(agents)}", indent=2)
        yield from self._wrap(f"By model: {_list_spend(spend.by_model)}", indent=2)
        if total.unpriced_calls:
            models = ", ".join(model or "no model" for model in spend.unpriced)
            yield from self._wrap(
                f"Not included: {_count(total.unpriced_calls, 'call')} without a known price ({models})",
                indent=2,
            )
        if total.estimated_calls:
            yield from self._wrap(
                f"{_count(total.estimated_calls, 'call')} without recorded usage are estimated", indent=2
            )

    def _part_lines(self, simulation: Simulation, spend: SpendReport) -> Iterator[str]:
        yield from self._heading(f"Where it went ({_describe_coverage(simulation, spend)})")
        yield from self._wrap(
            f"Old reads: cache reads of what was first sent {OLD_REQUESTS} or more requests before.", indent=2
        )
        rows = _list_parts(simulation)
        columns = (
            Column(heading="part", fit=Fit.SHORTEN),
            Column(heading="cost", align="right"),
            Column(heading="share", align="right"),
            Column(heading="cache reads", align="right"),
            Column(heading="old reads", align="right"),
        )
        cells = [
            (
                name,
                _dollars(_decimal(cost.dollars)),
                _share(_decimal(cost.dollars), simulation.charged),
                _dollars(_decimal(cost.read)) if cost.read else "",
                _dollars(_decimal(cost.old_read)) if is_old_shown and cost.old_read else "",
            )
            for name, cost, is_old_shown in rows
        ]
        yield from format_table(
            columns, cells, self._display, total=("total", _dollars(simulation.charged), "", "", ""), indent=2
        )

    def _miss_lines(self, simulation: Simulation) -> Iterator[str]:
        misses = sorted(simulation.breakdown.misses.items(), key=lambda miss: -miss[1].dollars)
        lost = _decimal(sum(miss.dollars for _, miss in misses))
        if not misses:
            yield from self._heading("Cache misses: none")
            return
        yield from self._heading(
            f"Of this, paid again after cache misses: {_describe_part(lost, simulation.charged)}"
        )
        shown = [(describe_recorded_cause(cause), miss) for cause, miss in misses[:_MAX_CAUSES]]
        if len(misses) > _MAX_CAUSES:
            rest = MissCost()
            for _, miss in misses[_MAX_CAUSES:]:
                rest.add(miss)
            shown.append((_count(len(misses) - _MAX_CAUSES, "other cause"), rest))
        columns = (
            Column(align="right"),
            Column(align="right"),
            Column(fit=Fit.WRAP),
        )
        cells = [(_dollars(_decimal(miss.dollars)), f"{miss.misses:,}×", name) for name, miss in shown]
        yield from format_table(columns, cells, self._display, indent=2)

    def _other_lines(self, simulation: Simulation) -> Iterator[str]:
        breakdown = simulation.breakdown
        superseded = [
            (part.tool or "unknown tool", cost.superseded)
            for part, cost in breakdown.parts.items()
            if cost.superseded > 0
        ]
        total = _decimal(sum(dollars for _, dollars in superseded))
        if total >= _CENT:
            tools = sorted(superseded, key=lambda entry: -entry[1])[:_MAX_MODELS]
            yield from self._wrap(
                f"Of this, superseded tool results: {_describe_part(total, simulation.charged)}, "
                f"carried after the same file was read again or the same command was run again: "
                + ", ".join(f"{tool} {_dollars(_decimal(dollars))}" for tool, dollars in tools)
            )
        if breakdown.tier_calls:
            excess = _decimal(breakdown.tier_dollars)
            yield from self._wrap(
                f"Of this, above a price tier: {_describe_part(excess, simulation.charged)} more than "
                f"at the lower price, in {_count(breakdown.tier_calls, 'request')}"
            )

    def _setting_lines(self, simulation: Simulation, configuration: str) -> Iterator[str]:
        recorded, current = simulation.recorded, simulation.current
        if recorded is None or current is None:
            yield from self._wrap("No setting was simulated, because some prices are unknown.")
            return
        yield from self._heading("Settings, simulated on the same sessions")
        name = configuration or "its default configuration"
        yield from self._wrap(
            f"As recorded {_dollars(recorded.dollars)}. Through the gateway with {name}: "
            f"{_describe_difference(recorded.dollars - current.dollars)}."
        )
        if not simulation.chosen:
            yield from self._wrap(f"No setting would have saved {MIN_SHARE:.0%} or more.")
            yield from self._rejected_lines(simulation)
            return
        for number, result in enumerate(simulation.chosen, 1):
            yield from self._chosen_lines(number, result, simulation, recorded)
        yield from self._combination_lines(simulation, recorded)
        yield from self._rejected_lines(simulation)

    def _rejected_lines(self, simulation: Simulation) -> Iterator[str]:
        """Losses are shown, too."""
        mechanisms = {result.candidate.mechanism for result in simulation.chosen}
        others = [
            result
            for result in simulation.results
            if result.candidate.mechanism not in mechanisms and result.saving is not None
        ]
        different = [
            f"{result.candidate.name} ({_describe_difference(result.saving)})"
            for result in others
            if _is_different(result.saving)
        ]
        same = [result.candidate.name for result in others if not _is_different(result.saving)]
        if different:
            yield from self._wrap(f"Also simulated: {', '.join(different)}.")
        if same:
            yield from self._wrap(f"No difference: {', '.join(same)}.")

    def _chosen_lines(
        self, number: int, result: CandidateResult, simulation: Simulation, recorded: SimulatedCost
    ) -> Iterator[str]:
        candidate, saving = result.candidate, result.saving or Decimal(0)
        also = f" on top of {candidate.base}" if candidate.base else ""
        yield from self._heading(
            f"{number}. {candidate.name}: saves {_describe_part(saving, recorded.dollars)}{also}"
        )
        alternatives = [
            f"{other.candidate.name} ({_describe_difference(other.saving)})"
            for other in simulation.results
            if other.candidate.mechanism is candidate.mechanism
            and other is not result
            and other.saving is not None
        ]
        yield from self._wrap(to_inline_yaml(candidate.changes), indent=3)
        yield from self._wrap(candidate.risk, indent=3)
        if alternatives:
            yield from self._wrap(f"Instead: {', '.join(alternatives)}.", indent=3)

    def _combination_lines(self, simulation: Simulation, recorded: SimulatedCost) -> Iterator[str]:
        combination = simulation.combination
        if combination is None or combination.cost is None or combination.saving is None:
            return
        total = recorded.dollars - combination.cost.dollars
        numbers = [
            number
            for number, result in enumerate(simulation.chosen, 1)
            if result.candidate in combination.candidates
        ]
        names = " + ".join(map(str, numbers))
        own = _describe_own_calls(combination.cost)
        subject = f"{names} together" if len(numbers) > 1 else "This alone"
        if len(numbers) < len(simulation.chosen):
            subject = f"{names} {'together save' if len(numbers) > 1 else 'alone saves'} most"
        yield from self._wrap(
            f"{subject}: {_dollars(combination.cost.dollars)}, {_describe_part(total, recorded.dollars)} less "
            f"than recorded{own}.{' Savings do not add up.' if len(simulation.chosen) > 1 else ''}"
        )
        yield from self._wrap("To write this to the configuration: foveate advise --apply")


def _describe_coverage(simulation: Simulation, spend: SpendReport) -> str:
    return (
        f"{_count(simulation.sessions, 'session')}, {_dollars(simulation.charged)} of "
        f"{_dollars(spend.total.dollars)}"
    )


def _describe_own_calls(cost: SimulatedCost) -> str:
    calls = [
        _count(number, name)
        for number, name in ((cost.compactions, "compaction"), (cost.keep_alives, "keep-alive request"))
        if number
    ]
    return f", including {_dollars(cost.own_dollars)} for {' and '.join(calls)}" if calls else ""


def _is_different(saving: Decimal | None) -> bool:
    return saving is not None and abs(saving) >= _CENT


def _describe_difference(saving: Decimal | None) -> str:
    if saving is None or not _is_different(saving):
        return "makes no difference"
    return f"{'saves' if saving > 0 else 'costs'} {_dollars(abs(saving))}{' more' if saving < 0 else ''}"


def _list_parts(simulation: Simulation) -> list[tuple[str, PartCost, bool]]:
    """The parts with their names, the most expensive first, then all others, and what is not attributed."""
    ordered = sorted(simulation.breakdown.parts.items(), key=lambda part: -part[1].dollars)
    shown = [(_name_part(part), cost, part.kind is PartKind.TOOL) for part, cost in ordered[:_MAX_PARTS]]
    if len(ordered) > _MAX_PARTS:
        rest = PartCost()
        for _, cost in ordered[_MAX_PARTS:]:
            rest.add(cost)
        shown.append((_count(len(ordered) - _MAX_PARTS, "other part"), rest, False))
    missing = _unattributed(simulation)
    if abs(missing) >= _CENT / 2:
        shown.append(("not attributed", PartCost(uncached=float(missing)), False))
    return shown


def _unattributed(simulation: Simulation) -> Decimal:
    """What was charged, but not for tokens of a known price: searches, prices that a provider states."""
    return simulation.charged - _decimal(sum(cost.dollars for cost in simulation.breakdown.parts.values()))


def _name_part(part: ContextPart) -> str:
    return f"tool {part.tool or '(unknown)'}" if part.kind is PartKind.TOOL else str(part.kind)


def _list_spend(groups: dict[str, Spend]) -> str:
    ordered = sorted(groups.items(), key=lambda group: -group[1].dollars)
    texts = [f"{name or 'unknown'} {_dollars(spend.dollars)}" for name, spend in ordered[:_MAX_MODELS]]
    rest = ordered[_MAX_MODELS:]
    if rest:
        texts.append(f"{len(rest):,} more {_dollars(sum((spend.dollars for _, spend in rest), Decimal(0)))}")
    return ", ".join(texts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _dollars(amount: Decimal) -> str:
    if amount and abs(amount) < _CENT:
        return f"{'-' * (amount < 0)}<$0.01"
    return f"{'-' * (amount < 0)}${abs(amount):,.2f}"


def _describe_part(amount: Decimal, total: Decimal) -> str:
    return f"{_dollars(amount)} ({_share(amount, total)})"


def _share(amount: Decimal, total: Decimal) -> str:
    if not total:
        return ""
    share = round(100 * amount / total)
    return f"{share}%" if share or not amount else "<1%"


def _decimal(dollars: float) -> Decimal:
    return Decimal(f"{dollars:.6f}")


def advice_object(advice: Advice, days: float | None, configuration: str) -> dict[str, object]:
    """Return advice as JSON: money as strings, null if unknown."""
    spend, simulation = advice.spend, advice.simulation
    return {
        "days": days,
        "configuration": configuration or None,
        "spend": {
            **_spend_object(spend.total),
            "sessions": spend.sessions,
            "first_at": spend.first_at,
            "last_at": spend.last_at,
            "by_agent": [{"agent": name, **_spend_object(group)} for name, group in spend.by_agent.items()],
            "by_model": [{"model": name, **_spend_object(group)} for name, group in spend.by_model.items()],
            "unpriced_models": dict(spend.unpriced),
            "repeated_calls": spend.repeated_calls,
        },
        "simulation": None if simulation is None else _simulation_object(simulation),
        "unreadable_lines": spend.unreadable_lines,
        "unread": [{"files": files, "why": reason} for files, reason in advice.unread],
        "applied": None,
    }


def _spend_object(spend: Spend) -> dict[str, object]:
    return {name: _to_json(value) for name, value in asdict(spend).items()}


def _simulation_object(simulation: Simulation) -> dict[str, object]:
    breakdown, combination = simulation.breakdown, simulation.combination
    superseded = sum(cost.superseded for cost in breakdown.parts.values())
    return {
        "sessions": simulation.sessions,
        "calls": simulation.calls,
        "charged_dollars": _to_json(simulation.charged),
        "parts": [
            {
                "kind": part.kind.name.lower(),
                "tool": part.tool or None,
                "dollars": _to_json(_decimal(cost.dollars)),
                **{name: _to_json(_decimal(dollars)) for name, dollars in asdict(cost).items()},
            }
            for part, cost in sorted(breakdown.parts.items(), key=lambda part: -part[1].dollars)
        ],
        "unattributed_dollars": _to_json(_unattributed(simulation)),
        "misses": [
            {
                "cause": cause,
                "misses": miss.misses,
                "tokens": miss.tokens,
                "dollars": _to_json(_decimal(miss.dollars)),
            }
            for cause, miss in sorted(breakdown.misses.items(), key=lambda miss: -miss[1].dollars)
        ],
        "superseded_dollars": _to_json(_decimal(superseded)),
        "tier_calls": breakdown.tier_calls,
        "tier_dollars": _to_json(_decimal(breakdown.tier_dollars)),
        "recorded": _cost_object(simulation.recorded),
        "current": _cost_object(simulation.current),
        "candidates": [_result_object(result) for result in simulation.results],
        "recommended": [result.candidate.name for result in simulation.chosen],
        "combination": None
        if combination is None
        else {
            "candidates": [candidate.name for candidate in combination.candidates],
            "cost": _cost_object(combination.cost),
            "saved_dollars": _to_json(combination.saving),
            "yaml": to_yaml(combination.changes),
        },
    }


def _result_object(result: CandidateResult) -> dict[str, object]:
    candidate = result.candidate
    return {
        "name": candidate.name,
        "mechanism": candidate.mechanism,
        "base": candidate.base or None,
        "risk": candidate.risk,
        "yaml": to_yaml(merge_changes((candidate,))),
        "cost": _cost_object(result.cost),
        "saved_dollars": _to_json(result.saving),
    }


def _cost_object(cost: SimulatedCost | None) -> dict[str, object] | None:
    return None if cost is None else {name: _to_json(value) for name, value in asdict(cost).items()}


def _to_json(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value
