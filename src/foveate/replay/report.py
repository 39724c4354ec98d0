"""Report of many replayed sessions: totals, groups by model, and a conclusion."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate.engine.options import AgentOptions, Clearing
from foveate.replay.outcomes import CostCheck, Outcome, Placeholders, Policy, ReplayedSession, sum_outcomes
from foveate.replay.recording import UnreadableLine
from foveate.replay.run import SessionResult
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY, keeps_client_breakpoints

# A suggestion must save at least this share of the recorded cost more than the current configuration.
_MIN_SHARE = Decimal("0.01")
_COMPACTION = ("  compaction:", "    enabled: true")
_PAYING_EDITS = ("  compaction:", "    enabled: true", "    trigger: cost", "    clearing: cost")
_REPLACE_BREAKPOINTS = ("  prompt_cache:", "    client_breakpoints: replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySaving:
    policy: Policy
    dollars: Decimal
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A configuration change that would save more, as YAML."""

    saving: PolicySaving
    changes: tuple[str, ...]
    yaml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Saving of the gateway with its current configuration, and the best change, if one is worth it."""

    configured: PolicySaving
    suggestion: Suggestion | None = None


def compare_to_recorded(outcome: Outcome, recorded: Outcome | None) -> PolicySaving | None:
    """Compare a policy with what the client did; None if one of the prices is unknown."""
    if recorded is None or recorded.dollars is None or outcome.dollars is None:
        return None
    dollars = recorded.dollars - outcome.dollars
    share = float(dollars / recorded.dollars) if recorded.dollars else None
    return PolicySaving(policy=outcome.policy, dollars=dollars, share=share)


def draw_conclusion(outcomes: Mapping[Policy, Outcome], gateway: AgentOptions) -> Conclusion | None:
    """Draw the conclusion from the totals; None if the gateway was not replayed, or a price is unknown."""
    recorded = outcomes.get(Policy.RECORDED)
    configured = compare_to_recorded(outcomes[Policy.GATEWAY], recorded) if Policy.GATEWAY in outcomes else None
    if configured is None or recorded is None or not recorded.dollars:
        return None
    better = [
        Suggestion(saving=saving, changes=changes, yaml=_make_yaml(policy))
        for policy, changes in _configuration_changes(gateway).items()
        if policy in outcomes
        and (saving := compare_to_recorded(outcomes[policy], recorded)) is not None
        and saving.dollars - configured.dollars >= _MIN_SHARE * recorded.dollars
    ]
    # Of two that save the same, the one with fewer changes.
    best = min(
        better, key=lambda suggestion: (-suggestion.saving.dollars, len(suggestion.changes)), default=None
    )
    return Conclusion(configured=configured, suggestion=best)


def find_reachable_policies(gateway: AgentOptions) -> frozenset[Policy]:
    """The policies that match what the client did, what the gateway does or can be configured to do."""
    return frozenset((Policy.RECORDED, Policy.GATEWAY, *_configuration_changes(gateway)))


def _configuration_changes(gateway: AgentOptions) -> dict[Policy, tuple[str, ...]]:
    """The changes that each policy needs, as far as the gateway can be configured to follow it."""
    changes: dict[Policy, tuple[str, ...]] = {}
    if not gateway.compaction:
        changes[Policy.GATEWAY_COMPACTION] = ("compaction",)
    if not (gateway.compacts_by_cost and gateway.clearing is Clearing.COST):
        changes[Policy.GATEWAY_COST] = ("compaction when it pays", "clearing of old tool results")
    if gateway.prompt_cache and keeps_client_breakpoints(gateway):
        replaced = "Foveate's breakpoints instead of the client's"
        changes[Policy.ADAPTIVE] = (replaced,)
        if not gateway.compaction:
            changes[Policy.ADAPTIVE_COMPACTION] = (replaced, "compaction")
    return changes


def _make_yaml(policy: Policy) -> str:
    replaces = policy in (Policy.ADAPTIVE, Policy.ADAPTIVE_COMPACTION)
    compacts = policy in (Policy.GATEWAY_COMPACTION, Policy.ADAPTIVE_COMPACTION)
    lines = (
        "context_optimization:",
        *(_REPLACE_BREAKPOINTS if replaces else ()),
        *(_COMPACTION if compacts else ()),
        *(_PAYING_EDITS if policy is Policy.GATEWAY_COST else ()),
    )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup:
    model: str
    sessions: int
    calls: int
    outcomes: dict[Policy, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """All replayed sessions. `unpriced` maps models of unknown price to the number of calls left out.

    `unread` are files that could not be read, with the reason, `unreadable` single lines; `repeated` calls
    occurred in two files. `model` is the model that replaced the recorded ones. `gateway` is the
    configuration of the gateway policies, and `configuration` its file; empty if it is the default.
    """

    policies: tuple[Policy, ...]
    sessions: tuple[ReplayedSession, ...]
    unpriced: dict[str, int]
    unread: tuple[tuple[str, str], ...]
    unreadable: tuple[UnreadableLine, ...]
    repeated: int
    model: str | None = None
    gateway: AgentOptions = DEFAULT_GATEWAY
    configuration: str = ""

    @property
    def conclusion(self) -> Conclusion | None:
        """The gateway's saving; None if it was not replayed."""
        return draw_conclusion(self.total, self.gateway)

    def rename_files(self, name: Callable[[str], str]) -> "ReplayReport":
        return replace(
            self,
            unread=tuple((name(files), name(why)) for files, why in self.unread),
            unreadable=tuple(replace(line, file=name(line.file)) for line in self.unreadable),
            sessions=tuple(
                replace(
                    session,
                    unreadable=tuple(replace(line, file=name(line.file)) for line in session.unreadable),
                )
                for session in self.sessions
            ),
        )

    @property
    def total(self) -> dict[Policy, Outcome]:
        return sum_outcomes(self.sessions)

    @property
    def calls(self) -> int:
        return sum(session.calls for session in self.sessions)

    @property
    def check(self) -> CostCheck | None:
        return sum_checks(self.sessions)

    @property
    def placeholders(self) -> Placeholders:
        total = Placeholders()
        for session in self.sessions:
            total = total.plus(session.placeholders)
        return total

    @property
    def by_model(self) -> list[ModelGroup]:
        """The sessions by main model, most expensive first."""
        groups: dict[str, list[ReplayedSession]] = {}
        for session in self.sessions:
            groups.setdefault(session.main_model, []).append(session)
        found = [
            ModelGroup(
                model=model,
                sessions=len(group_sessions),
                calls=sum(session.calls for session in group_sessions),
                outcomes=sum_outcomes(group_sessions),
            )
            for model, group_sessions in groups.items()
        ]
        return sorted(found, key=lambda group: (-_recorded_cost(group.outcomes), group.model))

    def most_expensive(self, limit: int) -> list[ReplayedSession]:
        return sorted(self.sessions, key=lambda session: (-_recorded_cost(session.outcomes), session.name))[
            :limit
        ]


def _recorded_cost(outcomes: dict[Policy, Outcome]) -> Decimal:
    recorded = outcomes.get(Policy.RECORDED)
    return (recorded.dollars if recorded is not None else None) or Decimal(0)


def has_recorded_cost(check: CostCheck) -> bool:
    """Return whether there is a recorded cost to compare with: of calls, or of a whole run."""
    return check.calls > 0 or check.reported is not None


def sum_checks(sessions: Iterable[ReplayedSession]) -> CostCheck | None:
    total: CostCheck | None = None
    for session in sessions:
        if has_recorded_cost(session.check):
            total = session.check if total is None else total.plus(session.check)
    return total


def build_report(
    results: Sequence[SessionResult],
    policies: tuple[Policy, ...],
    unread: Iterable[tuple[str, str]] = (),
    model: str | None = None,
) -> ReplayReport:
    """Build the report, in an order that does not depend on the order of the files."""
    replayed = [session for result in results for session in result.replayed]
    unpriced: dict[str, int] = {}
    for session in replayed:
        for unknown, calls in session.unpriced.items():
            unpriced[unknown] = unpriced.get(unknown, 0) + calls
    failed = [(", ".join(map(str, result.session.files)), result.error) for result in results if result.error]
    return ReplayReport(
        policies=policies,
        sessions=tuple(
            sorted(
                (session for session in replayed if session.calls),
                key=lambda session: (session.began_at, session.name),
            )
        ),
        unpriced=dict(sorted(unpriced.items())),
        unread=(*unread, *failed),
        unreadable=tuple(line for session in replayed for line in session.unreadable),
        repeated=sum(result.repeated for result in results),
        model=model,
    )
