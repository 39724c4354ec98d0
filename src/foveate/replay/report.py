"""Many replayed sessions as one report: totals, by model, and what is to be said about them.

Conclusion of a replay: what the gateway saves as it is configured, and the setting that would save more.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate.engine.options import AgentOptions
from foveate.replay.outcomes import CostCheck, Outcome, Placeholders, ReplayedSession, sum_outcomes
from foveate.replay.parallel import SessionResult
from foveate.replay.policies import Policy
from foveate.replay.recording import UnreadableLine
from foveate.replay.simulator.policy_runs import DEFAULT_GATEWAY, keeps_client_breakpoints

# A suggestion must save this much more of the recorded cost than the configuration does.
_MIN_SHARE = Decimal("0.01")
_COMPACTION = ("  compaction:", "    enabled: true")
_REPLACE_BREAKPOINTS = ("  prompt_cache:", "    client_breakpoints: replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySaving:
    """What a policy saves of the recorded cost: dollars, and their share if there was any cost."""

    policy: Policy
    dollars: Decimal
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A change of the configuration that would save more, as YAML."""

    saving: PolicySaving
    changes: tuple[str, ...]
    yaml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What the gateway saves as it is configured, and the best change of that, if one is worth it."""

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
    # Of two that save the same, the one that changes less.
    best = min(
        better, key=lambda suggestion: (-suggestion.saving.dollars, len(suggestion.changes)), default=None
    )
    return Conclusion(configured=configured, suggestion=best)


def find_reachable_policies(gateway: AgentOptions) -> frozenset[Policy]:
    """List the policies that are what the client did, or what the gateway does or can be told to do."""
    return frozenset((Policy.RECORDED, Policy.GATEWAY, *_configuration_changes(gateway)))


def _configuration_changes(gateway: AgentOptions) -> dict[Policy, tuple[str, ...]]:
    """List what would have to change for each policy; only what this version of the gateway can be told."""
    changes: dict[Policy, tuple[str, ...]] = {}
    if not gateway.compaction:
        changes[Policy.GATEWAY_COMPACTION] = ("compaction",)
    if gateway.prompt_cache and keeps_client_breakpoints(gateway):
        replaced = "Foveate's breakpoints in place of the client's"
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
    )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup:
    """Sessions with the same main model, together."""

    model: str
    sessions: int
    calls: int
    outcomes: dict[Policy, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """All that was replayed. `unpriced` are models of unknown price and how many of their calls were left out.

    `unread` are files that could not be read, with the reason, and `broken` lines; `repeated` calls stood in
    two files. `model` is the other model that was asked for. `gateway` is the configuration that the policies
    of the gateway followed, and `configuration` the file that it is from; empty if it is the default one.
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
        """What the gateway would save; None if that was not asked for."""
        return draw_conclusion(self.total, self.gateway)

    def rename_files(self, name: Callable[[str], str]) -> "ReplayReport":
        """Replace the names of files."""
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
        """All sessions together, by policy."""
        return sum_outcomes(self.sessions)

    @property
    def calls(self) -> int:
        """How many were replayed."""
        return sum(session.calls for session in self.sessions)

    @property
    def check(self) -> CostCheck | None:
        """The bills of all sessions that have some; None where none has."""
        return sum_checks(self.sessions)

    @property
    def placeholders(self) -> Placeholders:
        """Those of all sessions."""
        found = Placeholders()
        for session in self.sessions:
            found = found.plus(session.placeholders)
        return found

    @property
    def by_model(self) -> list[ModelGroup]:
        """The sessions by the model that most of their calls went to, the dearest first."""
        groups: dict[str, list[ReplayedSession]] = {}
        for session in self.sessions:
            groups.setdefault(session.main_model, []).append(session)
        found = [
            ModelGroup(
                model=model,
                sessions=len(own),
                calls=sum(session.calls for session in own),
                outcomes=sum_outcomes(own),
            )
            for model, own in groups.items()
        ]
        return sorted(found, key=lambda group: (-_recorded_cost(group.outcomes), group.model))

    def most_expensive(self, limit: int) -> list[ReplayedSession]:
        """So many of the sessions, those first that cost most as they were recorded."""
        return sorted(self.sessions, key=lambda session: (-_recorded_cost(session.outcomes), session.name))[
            :limit
        ]


def _recorded_cost(outcomes: dict[Policy, Outcome]) -> Decimal:
    recorded = outcomes.get(Policy.RECORDED)
    return (recorded.dollars if recorded is not None else None) or Decimal(0)


def has_recorded_cost(check: CostCheck) -> bool:
    """Whether there is a bill to be held against: those of calls, or the sum of a whole run."""
    return check.calls > 0 or check.said is not None


def sum_checks(sessions: Iterable[ReplayedSession]) -> CostCheck | None:
    """The bills of all sessions that have some; None where none has."""
    found: CostCheck | None = None
    for session in sessions:
        if has_recorded_cost(session.check):
            found = session.check if found is None else found.plus(session.check)
    return found


def build_report(
    results: Sequence[SessionResult],
    policies: tuple[Policy, ...],
    unread: Iterable[tuple[str, str]] = (),
    model: str | None = None,
) -> ReplayReport:
    """What became of all sessions, as one report, in an order that does not depend on that of the files."""
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
