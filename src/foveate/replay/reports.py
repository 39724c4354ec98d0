"""Many replayed sessions as one report: totals, by model, and what is to be said about them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate.engine.options import AgentOptions
from foveate.replay.conclusions import Conclusion, conclusion_of
from foveate.replay.outcomes import Check, Outcome, Placeholders, Replayed, total_of
from foveate.replay.policies import Policy
from foveate.replay.processes import Done
from foveate.replay.recordings import Broken
from foveate.replay.running import DEFAULT_GATEWAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sessions with the same main model, together."""

    model: str
    sessions: int
    calls: int
    outcomes: dict[Policy, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that was replayed. `unpriced` are models of unknown price and how many of their calls were left out.

    `unread` are files that could not be read, with the reason, and `broken` lines; `repeated` calls stood in
    two files. `model` is the other model that was asked for. `gateway` is the configuration that the policies
    of the gateway followed, and `configuration` the file that it is from; empty if it is the default one.
    """

    policies: tuple[Policy, ...]
    sessions: tuple[Replayed, ...]
    unpriced: dict[str, int]
    unread: tuple[tuple[str, str], ...]
    broken: tuple[Broken, ...]
    repeated: int
    model: str | None = None
    gateway: AgentOptions = DEFAULT_GATEWAY
    configuration: str = ""

    @property
    def conclusion(self) -> Conclusion | None:
        """What the gateway would save; None if that was not asked for."""
        return conclusion_of(self.total, self.gateway)

    def named(self, name: Callable[[str], str]) -> "Report":
        """Replace the names of files."""
        return replace(
            self,
            unread=tuple((name(files), name(why)) for files, why in self.unread),
            broken=tuple(replace(line, file=name(line.file)) for line in self.broken),
            sessions=tuple(
                replace(one, broken=tuple(replace(line, file=name(line.file)) for line in one.broken))
                for one in self.sessions
            ),
        )

    @property
    def total(self) -> dict[Policy, Outcome]:
        """All sessions together, by policy."""
        return total_of(self.sessions)

    @property
    def calls(self) -> int:
        """How many were replayed."""
        return sum(session.calls for session in self.sessions)

    @property
    def check(self) -> Check | None:
        """The bills of all sessions that have some; None where none has."""
        return check_of(self.sessions)

    @property
    def placeholders(self) -> Placeholders:
        """Those of all sessions."""
        found = Placeholders()
        for session in self.sessions:
            found = found.plus(session.placeholders)
        return found

    @property
    def by_model(self) -> list[Group]:
        """The sessions by the model that most of their calls went to, the dearest first."""
        groups: dict[str, list[Replayed]] = {}
        for session in self.sessions:
            groups.setdefault(session.main_model, []).append(session)
        found = [
            Group(
                model=model,
                sessions=len(own),
                calls=sum(session.calls for session in own),
                outcomes=total_of(own),
            )
            for model, own in groups.items()
        ]
        return sorted(found, key=lambda group: (-_cost(group.outcomes), group.model))

    def dearest(self, most: int) -> list[Replayed]:
        """So many of the sessions, those first that cost most as they were recorded."""
        return sorted(self.sessions, key=lambda session: (-_cost(session.outcomes), session.name))[:most]


def _cost(outcomes: dict[Policy, Outcome]) -> Decimal:
    recorded = outcomes.get(Policy.RECORDED)
    return (recorded.dollars if recorded is not None else None) or Decimal(0)


def is_billed(check: Check) -> bool:
    """Whether there is a bill to be held against: those of calls, or the sum of a whole run."""
    return check.calls > 0 or check.said is not None


def check_of(sessions: Iterable[Replayed]) -> Check | None:
    """The bills of all sessions that have some; None where none has."""
    found: Check | None = None
    for session in sessions:
        if is_billed(session.check):
            found = session.check if found is None else found.plus(session.check)
    return found


def report_of(
    done: Sequence[Done],
    policies: tuple[Policy, ...],
    unread: Iterable[tuple[str, str]] = (),
    model: str | None = None,
) -> Report:
    """What became of all sessions, as one report, in an order that does not depend on that of the files."""
    replayed = [session for one in done for session in one.replayed]
    unpriced: dict[str, int] = {}
    for session in replayed:
        for unknown, calls in session.unpriced.items():
            unpriced[unknown] = unpriced.get(unknown, 0) + calls
    failed = [(", ".join(map(str, one.session.files)), one.error) for one in done if one.error]
    return Report(
        policies=policies,
        sessions=tuple(
            sorted(
                (session for session in replayed if session.calls),
                key=lambda session: (session.began_at, session.name),
            )
        ),
        unpriced=dict(sorted(unpriced.items())),
        unread=(*unread, *failed),
        broken=tuple(line for session in replayed for line in session.broken),
        repeated=sum(one.repeated for one in done),
        model=model,
    )
