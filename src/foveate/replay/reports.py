"""Many replayed sessions as one report: totals, by model, and what is to be said about them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate.engine.options import AgentOptions
from foveate.replay.conclusions import Conclusion, draw_conclusion
from foveate.replay.outcomes import CostCheck, Outcome, Placeholders, ReplayedSession, sum_outcomes
from foveate.replay.policies import Policy
from foveate.replay.processes import SessionResult
from foveate.replay.recordings import UnreadableLine
from foveate.replay.running import DEFAULT_GATEWAY


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
