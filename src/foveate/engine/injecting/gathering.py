"""The sections of a request gathered from where they come from, each of which may fail alone."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from foveate.budget.budgets import SectionRule
from foveate.budget.sections import Section, chosen
from foveate.cost.caps import Cap
from foveate.cost.ledger import Call, Category, Standing
from foveate.engine.calls import Problem
from foveate.engine.injecting.fitting import (
    BLOCK_TOKENS,
    Fit,
    Fitted,
    Part,
    fit_in_room,
    fit_required,
    prepare_sections,
)
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.injecting.sources import Source, Sources
from foveate.engine.injecting.telling import (
    HEADING,
    HEADING_TOKENS,
    binding_sections,
    budget_text,
    channel_sections,
)
from foveate.engine.steps.names import SECTIONS
from foveate.engine.work import Work
from foveate.errors import BadOption
from foveate.prompt.awareness import awareness
from foveate.prompt.inputs import CallKind
from foveate.prompt.kept import Kept
from foveate.prompt.rendering import Missing
from foveate.prompt.showing import context_inputs
from foveate.prompt.time import TimeAwareness
from foveate.session.counting import beside
from foveate.tokens.caches import register
from foveate.values import NOTHING, TokenCount

_BUDGET = "budget"
BYTES_PER_TOKEN = 2
"""A body has at most a token for so many bytes, where nobody has counted it."""

_KEPT_PARTS = 256
# What is longer is counted beside the event loop, where it is new.
_LONG_CHARS = 8 * 1024
_TELL_SECONDS = 60.0
_MOST_TOLD = 1_000
# So many nodes are gone through for deadlines beside it.
_MANY_NODES = 1_000
_WITHOUT_CONTEXT = frozenset((CallKind.HEARTBEAT, CallKind.DELEGATION))

Standings = Callable[[Sequence[str], float], Awaitable[Mapping[str, Standing]]]
MakeRoomFor = Callable[[Work, TokenCount], Awaitable[None]]
"""Makes room in a request for so many tokens beside it, as the agent wishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StableSections:
    """Sections that stay the same for many requests; `key` tells them, and how they are fitted, from others."""

    sections: tuple[Section, ...] = ()
    key: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """How the budget section learns what is left: the caps that hold now, and what was spent under them."""

    caps: Callable[[], Sequence[Cap]]
    standing: Standings


class Gathering:
    """Gathers what is injected, made to fit; what could not be had is a problem of the work.

    Nothing is waited for beyond `until`, a time of the event loop.
    """

    def __init__(self, sources: Sources, money: Money | None = None) -> None:
        self._sources = sources
        self._money = money
        self._times: dict[str, TimeAwareness] = {}
        self._fits: Kept[tuple[object, ...], Fit] = Kept(_KEPT_PARTS)
        self._projects: Kept[tuple[object, ...], Section] = Kept(_KEPT_PARTS)
        self._minutes: Kept[tuple[object, ...], Section] = Kept(_KEPT_PARTS)
        self._told: dict[tuple[str, str], float] = {}
        register(self._fits)
        register(self._projects)
        register(self._minutes)

    async def limited(self, work: Work, options: SectionOptions, *, until: float) -> SectionOptions:
        """The options with the limits that the agent has set itself, as far as they are allowed."""
        if options.workspace is None:
            return options
        try:
            found, troubles = await self._sources.own_limits(options, until)
        except Exception as error:  # noqa: BLE001 - a border: what the operator says holds all the same
            _tell(work, "limits", _why(error))
            return options
        for trouble in troubles:
            self._tell_again(work, "limits", trouble)
        return found

    async def stable_sections(self, work: Work, options: SectionOptions, *, until: float) -> StableSections:
        """The workspace, the skills and the binding, as they come."""
        workspace = await self._had(work, "workspace", self._sources.workspace(options, until))
        if workspace is None:
            workspace = self._sources.last_workspace(options)
        skills = await self._had(work, "skills", self._sources.skills(options, until)) or Source()
        binding = binding_sections(options.binding, work.incoming.told.channel)
        return StableSections(
            sections=(*workspace.sections, *skills.sections, *binding),
            key=(
                workspace.version,
                skills.version,
                tuple(section.text for section in binding),
                options.limits_key,
                work.model,
                work.options.counter,
            ),
        )

    async def turn_sections(
        self, work: Work, options: SectionOptions, words: str, *, until: float
    ) -> tuple[Section, ...]:
        """What changes with each turn, as it comes. `words` are the user's last."""
        kind = self._kind(work)
        sections = [*(channel_sections(work.incoming.told) if options.channel else ())]
        if kind not in _WITHOUT_CONTEXT:
            if options.memory is not None:
                sections += await self._memory(work, options, words, kind, until)
            logs = await self._had(work, "logs", self._sources.logs(options, until))
            sections += logs.sections if logs is not None else ()
        if options.time is not None and options.time.awareness:
            sections += await self._time(work, options, until)
        return tuple(sections)

    async def fit(
        self,
        work: Work,
        options: SectionOptions,
        stable: StableSections,
        turn: Sequence[Section],
        *,
        room: Callable[[], int | None],
        make_room: MakeRoomFor | None = None,
        added: TokenCount = NOTHING,
    ) -> Fit:
        """Fit all sections in one pass by priority; if they are the same and fit whole, as they were before.

        `room` tells how many tokens the window has left. `make_room` is asked for more of them if the required
        sections need it. `added` is what is put in beside the sections.

        Raises:
            BudgetExceeded: the sections do not fit in their own limit.
            DoesNotFit: the window has no room for the required ones, and none may be made.
        """
        limit = options.total_tokens
        sections = (*stable.sections, *turn)
        key = (stable.key, tuple(section.text for section in turn))
        found = self._fits.get(key)
        left = room()
        if found is None or found.count.upper > _smaller(limit, left):
            era = self._fits.era
            if left is not None and left < limit and make_room is not None:
                prepared = prepare_sections(sections, options.limits, limit)
                required = fit_required(prepared, limit_tokens=limit, gauge=work.counter.gauge).count
                if required.upper > left:
                    await make_room(work, required)
                    left = room()
            found = await _fit(work, options, sections, left)
            if found.is_whole:
                self._fits.keep(key, found, era)
        if options.budget:
            found = await self._with_budget(work, options, sections, found, added, left)
        return replace(found, turn=_headed(found.turn))

    def _kind(self, work: Work) -> CallKind:
        said = work.incoming.kind
        if not said:
            return CallKind.USER
        try:
            return chosen(CallKind, said.strip().lower(), ("x-foveate-kind",))
        except BadOption as error:
            _tell(work, "kind", str(error))
            return CallKind.USER

    async def _memory(
        self, work: Work, options: SectionOptions, words: str, kind: CallKind, until: float
    ) -> list[Section]:
        """The active projects, and what of the notes matters now; a placeholder if they cannot be read."""
        assert options.memory is not None
        told = work.incoming.told
        try:
            looked = await self._sources.memory(options.memory, options.privacy_tags, until)
            if looked.memory is None:
                _tell(work, "memory", looked.trouble)
                return list(awareness(Missing("awareness", looked.trouble)).sections)
            key = (options.memory.paths, options.privacy_tags, looked.memory.version)
            projects = self._projects.get(key)
            if projects is None:
                era = self._projects.era
                projects = self._projects.keep(key, awareness(looked.memory.nodes).sections[0], era)
            inputs = context_inputs(
                looked.memory,
                agent=work.incoming.agent,
                focus=told.focus,
                scope=told.scope,
                query=words or None,
                limit_tokens=options.memory.limit_tokens,
                format=options.memory.format,
                model=work.model,
            )
            # What is relevant also depends on who compares the notes.
            inputs = replace(inputs, memory_version=(inputs.memory_version, options.memory.embeddings))
            section, trouble = await self._sources.context(kind, looked, inputs, work.counter, until)
            if section is None and trouble and told.focus is not None:
                _tell(work, "memory", trouble)
                unfocused = replace(inputs, focus=None)
                section, trouble = await self._sources.context(kind, looked, unfocused, work.counter, until)
        except Exception as error:  # noqa: BLE001 - a border: without its memory the request goes out all the same
            _tell(work, "memory", _why(error))
            return list(awareness(Missing("awareness", _why(error))).sections)
        if section is None:
            if trouble:
                _tell(work, "memory", trouble)
            return [projects]
        if trouble:
            self._tell_again(work, "memory", trouble)
        return [projects, section]

    async def _time(self, work: Work, options: SectionOptions, until: float) -> list[Section]:
        """The time, and what is due of the memory's deadlines."""
        try:
            memory = None
            if options.memory is not None:
                memory = (await self._sources.memory(options.memory, options.privacy_tags, until)).memory
            started = work.found.session.created_at if work.found is not None else None
            version = memory.version if memory is not None else None
            key = (work.incoming.agent, work.session_id, work.now // 60, version, options.time, options.zone)
            known = self._minutes.get(key)
            if known is not None:
                return [known]
            era = self._minutes.era
            time = self._times.setdefault(work.incoming.agent, TimeAwareness())
            nodes = memory.nodes if memory is not None else []

            def told() -> Section | None:
                return time.section(
                    nodes,
                    memory_version=version,
                    now=datetime.fromtimestamp(work.now, UTC),
                    zone=options.zone,
                    session_started=None if started is None else datetime.fromtimestamp(started, UTC),
                    options=options.time,
                )

            found = told() if len(nodes) < _MANY_NODES else await asyncio.to_thread(told)
        except Exception as error:  # noqa: BLE001 - a border: without the time the request goes out all the same
            _tell(work, "time", _why(error))
            return []
        return [self._minutes.keep(key, found, era)] if found is not None else []

    async def _with_budget(
        self,
        work: Work,
        options: SectionOptions,
        sections: Sequence[Section],
        found: Fit,
        added: TokenCount,
        room: int | None,
    ) -> Fit:
        """The turn with what is left of the window and of money, behind the memory as everywhere.

        It goes out first if there is no room for it, unless a rule gives it a priority.
        """
        rule = options.limits.sections.get(_BUDGET) or SectionRule()
        if rule.enabled is False:
            return found
        try:
            money = await self._left(work)
        except Exception as error:  # noqa: BLE001 - a border: what is left of money is told where it can be read
            _tell(work, _BUDGET, _why(error))
            money = []
        sent = work.count.upper if work.count is not None else len(work.request.body) // BYTES_PER_TOKEN
        window = work.window_tokens

        def text_for(fit: Fit) -> tuple[str, TokenCount]:
            reports = (*fit.stable.reports, *fit.turn.reports)
            return budget_text(
                [report for report in reports if report.name != _BUDGET],
                tokens=sent + added.upper + fit.count.upper,
                limit_tokens=None if window is None else max(1, window - work.output_reserve),
                money=money,
                counter=work.counter,
            )

        text, own = text_for(found)
        limit = _smaller(options.total_tokens, room)
        rest = limit - found.count.upper - BLOCK_TOKENS - (0 if found.turn.sections else HEADING_TOKENS)
        if own.upper <= (rest if rule.max_tokens is None else min(rest, rule.max_tokens)):
            return replace(found, turn=_with_section(found.turn, text, own))
        if rule.priority is None:
            why = f"{_BUDGET}: left out, {own.tokens:,} tokens (there is no room for it)"
            return replace(found, turn=replace(found.turn, left_out=(*found.turn.left_out, why)))
        section = Section(_BUDGET, text, priority=rule.priority, keep="whole", stability="turn")
        found = await _fit(work, options, (*sections, section), room)
        written, tokens = text_for(found)  # its own tokens are in it already
        if tokens.upper > own.upper or all(one.name != _BUDGET for one in found.turn.sections):
            return found
        kept = tuple(replace(one, text=written) if one.name == _BUDGET else one for one in found.turn.sections)
        return replace(found, turn=replace(found.turn, sections=kept))

    async def _left(self, work: Work) -> list[tuple[str, Decimal, Decimal]]:
        if self._money is None:
            return []
        call = Call(
            id=work.incoming.id,
            agent=work.incoming.agent,
            session_id=work.session_id,
            provider=work.incoming.provider,
            model=work.model,
            category=Category.MAIN,
            at=work.now,
        )
        held = [(cap, cap.account(call)) for cap in self._money.caps() if cap.holds(call)]
        accounts = {cap: account for cap, account in held if account is not None}
        if not accounts:
            return []
        standing = await self._money.standing(list(accounts.values()), work.now)
        return [
            (str(cap).removeprefix("the cap on "), cap.dollars, _left_of(cap, standing.get(account)))
            for cap, account in accounts.items()
        ]

    async def _had(self, work: Work, what: str, source: Awaitable[Source]) -> Source | None:
        """A source, or None where it fails; what is wrong with it is told."""
        try:
            found = await source
        except Exception as error:  # noqa: BLE001 - a border: without this source the request goes out all the same
            _tell(work, what, _why(error))
            return None
        for trouble in found.troubles:
            self._tell_again(work, what, trouble)
        return found

    def _tell_again(self, work: Work, what: str, trouble: str) -> None:
        """Tell what lasts and takes nothing from the request: when it begins, and once a minute."""
        key = (what, trouble)
        if work.now - self._told.get(key, -_TELL_SECONDS) < _TELL_SECONDS:
            return
        if len(self._told) > _MOST_TOLD:
            self._told.clear()
        self._told[key] = work.now
        _tell(work, what, trouble)


def _headed(turn: Part) -> Part:
    """The sections of a turn, with the line that says where they come from."""
    if not turn.sections:
        return turn
    first, *others = turn.sections
    return replace(
        turn,
        sections=(replace(first, text=f"{HEADING}\n\n{first.text}"), *others),
        count=turn.count + TokenCount(HEADING_TOKENS, False, HEADING_TOKENS),
    )


async def _fit(work: Work, options: SectionOptions, sections: Sequence[Section], room: int | None) -> Fit:
    """Fit the sections, beside the event loop if they are long."""
    limit = options.total_tokens
    prepared = prepare_sections(sections, options.limits, limit)
    return await beside(
        lambda: fit_in_room(
            prepared,
            options.limits.ladder,
            limit_tokens=limit,
            room_tokens=_smaller(limit, room),
            gauge=work.counter.gauge,
        ),
        sum(len(section.text) for section in prepared),
        least_bytes=_LONG_CHARS,
    )


def _with_section(turn: Part, text: str, count: TokenCount) -> Part:
    """The sections of a turn with the one on the budget, behind the memory."""
    made = Fitted(
        name=_BUDGET, text=text, tokens=count.tokens, reason=f"section {_BUDGET}, {count.tokens:,} tokens"
    )
    at = sum(section.name in ("awareness", "context") for section in turn.sections)
    return replace(
        turn,
        sections=(*turn.sections[:at], made, *turn.sections[at:]),
        count=turn.count + count + TokenCount(BLOCK_TOKENS, False, BLOCK_TOKENS),
    )


def _smaller(limit: int, room: int | None) -> int:
    return limit if room is None else min(limit, room)


def _tell(work: Work, what: str, reason: str) -> None:
    work.problems.append(Problem(f"{SECTIONS}/{what}", reason))


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it takes too long, and is not waited for any longer"
    return f"{type(error).__name__}: {error}"


def _left_of(cap: Cap, standing: Standing | None) -> Decimal:
    used = standing.spent + standing.reserved if standing is not None else Decimal(0)
    return max(Decimal(0), cap.dollars - used)
