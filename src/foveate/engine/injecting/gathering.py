"""The sections of a request gathered from where they come from, each of which may fail alone."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from foveate.budget.budgets import SectionRule
from foveate.budget.prompt import Action
from foveate.budget.sections import Section, chosen
from foveate.cost.caps import Cap
from foveate.cost.ledger import Call, Category, Standing
from foveate.engine.calls import Problem
from foveate.engine.injecting.fitting import BLOCK_TOKENS, NO_PART, Fitted, Part, fit, stable_limit
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.injecting.sources import Source, Sources
from foveate.engine.injecting.telling import (
    HEADING,
    HEADING_TOKENS,
    binding_sections,
    budget_text,
    channel_sections,
)
from foveate.engine.work import Work
from foveate.errors import BadOption
from foveate.prompt.inputs import CallKind
from foveate.prompt.kept import Kept
from foveate.prompt.showing import context_inputs
from foveate.prompt.time import TimeAwareness
from foveate.tokens.caches import register
from foveate.values import TokenCount

NAME = "sections"
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
        self._parts: Kept[tuple[object, ...], Part] = Kept(_KEPT_PARTS)
        self._minutes: Kept[tuple[object, ...], Section] = Kept(_KEPT_PARTS)
        self._told: dict[tuple[str, str], float] = {}
        register(self._parts)
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

    async def stable(
        self, work: Work, options: SectionOptions, room_tokens: int | None, *, until: float
    ) -> Part:
        """The workspace, the skills and the binding, in so few sizes that the prefix hardly ever changes."""
        workspace = await self._had(work, "workspace", self._sources.workspace(options, until))
        if workspace is None:
            workspace = self._sources.last_workspace(options)
        skills = await self._had(work, "skills", self._sources.skills(options, until)) or Source()
        binding = binding_sections(options.binding, work.incoming.told.channel)
        sections = (*workspace.sections, *skills.sections, *binding)
        if not sections:
            return NO_PART
        limit = stable_limit(options.total_tokens, room_tokens)
        key = (
            workspace.version,
            skills.version,
            tuple(section.text for section in binding),
            limit,
            options.limits_key,
            work.model,
            work.options.counter,
        )
        found = self._parts.get(key)
        if found is None:
            era = self._parts.era
            made = await _beside(sections, options, limit, work)
            found = self._parts.keep(key, made, era)
        return found

    async def turn(
        self,
        work: Work,
        options: SectionOptions,
        words: str,
        *,
        stable: Part,
        added: TokenCount,
        room_tokens: int | None,
        until: float,
    ) -> Part:
        """What changes with each turn. `words` are the user's last, `added` is what is put in beside it."""
        kind = self._kind(work)
        sections = [*(channel_sections(work.incoming.told) if options.channel else ())]
        if options.memory is not None and kind not in _WITHOUT_CONTEXT:
            context = await self._context(work, options, words, kind, until)
            sections += [context] if context is not None else []
        if options.time is not None and options.time.awareness:
            sections += await self._time(work, options, until)
        limit = max(0, options.total_tokens - stable.count.upper)
        limit = limit if room_tokens is None else min(limit, max(0, room_tokens))
        part = await self._fitted(sections, options, limit - HEADING_TOKENS, work) if sections else NO_PART
        if options.budget:
            rest = limit - HEADING_TOKENS - part.count.upper
            part = await self._with_budget(work, options, stable, part, added, rest)
        if not part.sections:
            return part
        first, *others = part.sections
        headed = replace(first, text=f"{HEADING}\n\n{first.text}")
        return replace(
            part,
            sections=(headed, *others),
            count=part.count + TokenCount(HEADING_TOKENS, False, HEADING_TOKENS),
        )

    async def _fitted(
        self, sections: Sequence[Section], options: SectionOptions, limit_tokens: int, work: Work
    ) -> Part:
        """The sections of a turn made to fit; while they stay the same and fit whole, as they were before."""
        texts = tuple(section.text for section in sections)
        key = (texts, options.limits_key, work.model, work.options.counter)
        found = self._parts.get(key)
        if found is None or found.count.upper > limit_tokens:
            era = self._parts.era
            found = await _beside(sections, options, limit_tokens, work)
            if all(report.action is Action.KEPT for report in found.reports) and not found.left_out:
                self._parts.keep(key, found, era)
        return found

    def _kind(self, work: Work) -> CallKind:
        said = work.incoming.kind
        if not said:
            return CallKind.USER
        try:
            return chosen(CallKind, said.strip().lower(), ("x-foveate-kind",))
        except BadOption as error:
            _tell(work, "kind", str(error))
            return CallKind.USER

    async def _context(
        self, work: Work, options: SectionOptions, words: str, kind: CallKind, until: float
    ) -> Section | None:
        assert options.memory is not None
        told = work.incoming.told
        try:
            looked = await self._sources.memory(options.memory, options.privacy_tags, until)
            if looked.memory is None:
                _tell(work, "memory", looked.trouble)
                return None
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
            section, trouble = await self._sources.context(kind, looked, inputs, work.counter, until)
            if section is None and told.focus is not None:
                _tell(work, "memory", trouble)
                unfocused = replace(inputs, focus=None)
                section, trouble = await self._sources.context(kind, looked, unfocused, work.counter, until)
        except Exception as error:  # noqa: BLE001 - a border: without its memory the request goes out all the same
            _tell(work, "memory", _why(error))
            return None
        if section is None:
            _tell(work, "memory", trouble)
        elif trouble:
            self._tell_again(work, "memory", trouble)
        return section

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
        stable: Part,
        turn: Part,
        added: TokenCount,
        limit_tokens: int,
    ) -> Part:
        """The turn with what is left of the window and of money, behind the memory as everywhere."""
        try:
            money = await self._left(work)
        except Exception as error:  # noqa: BLE001 - a border: what is left of money is told where it can be read
            _tell(work, "budget", _why(error))
            money = []
        sent = work.count.upper if work.count is not None else len(work.request.body) // BYTES_PER_TOKEN
        window = work.window_tokens
        text, own = budget_text(
            (*stable.reports, *turn.reports),
            tokens=sent + added.upper + turn.count.upper,
            limit_tokens=None if window is None else max(1, window - work.output_reserve),
            money=money,
            counter=work.counter,
        )
        made = _told_whole(text, own, options.limits.sections.get("budget"), limit_tokens)
        at = sum(section.name in ("awareness", "context") for section in turn.sections)
        return Part(
            sections=(*turn.sections[:at], *made.sections, *turn.sections[at:]),
            count=turn.count + made.count,
            reports=turn.reports,
            left_out=(*turn.left_out, *made.left_out),
        )

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


async def _beside(sections: Sequence[Section], options: SectionOptions, limit_tokens: int, work: Work) -> Part:
    """The sections made to fit, beside the event loop where they are long."""
    gauge = work.counter.gauge
    if sum(len(section.text) for section in sections) < _LONG_CHARS:
        return fit(sections, options.limits, limit_tokens=limit_tokens, gauge=gauge)
    return await asyncio.to_thread(fit, sections, options.limits, limit_tokens=limit_tokens, gauge=gauge)


def _told_whole(text: str, count: TokenCount, rule: SectionRule | None, limit_tokens: int) -> Part:
    """The section on the budget, which is no use in part; counted already, since its own numbers are in it."""
    if rule is not None and rule.enabled is False:
        return NO_PART
    cap = rule.max_tokens if rule is not None and rule.max_tokens is not None else limit_tokens
    if count.upper + BLOCK_TOKENS > min(cap, limit_tokens):
        return Part(left_out=(f"budget: left out, {count.tokens:,} tokens (there is no room for it)",))
    section = Fitted(
        name="budget", text=text, tokens=count.tokens, reason=f"section budget, {count.tokens:,} tokens"
    )
    return Part(sections=(section,), count=count + TokenCount(BLOCK_TOKENS, False, BLOCK_TOKENS))


def _tell(work: Work, what: str, reason: str) -> None:
    work.problems.append(Problem(f"{NAME}/{what}", reason))


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it takes too long, and is not waited for any longer"
    return f"{type(error).__name__}: {error}"


def _left_of(cap: Cap, standing: Standing | None) -> Decimal:
    used = standing.spent + standing.reserved if standing is not None else Decimal(0)
    return max(Decimal(0), cap.dollars - used)
