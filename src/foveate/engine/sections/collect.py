"""Collects the sections of a request from their sources, each of which may fail on its own, and fits them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache

from foveate.budget.budget import SectionRule
from foveate.budget.prompt import SectionReport, render_budget_section
from foveate.budget.sections import Priority, Section, Stability, parse_choice
from foveate.caching import LruCache, register
from foveate.context.sections import CallKind, MissingContent, context_inputs, render_awareness
from foveate.context.time_section import TimeAwareness
from foveate.cost.caps import Cap
from foveate.cost.ledger import AccountBalance, Call, Category
from foveate.cost.money import format_dollars
from foveate.engine.options import BindingOptions, SectionInputs, SectionOptions
from foveate.engine.request import StepFailure
from foveate.engine.request_context import RequestContext
from foveate.engine.sections.fit import (
    BLOCK_TOKENS,
    TURN_HEADING,
    TURN_HEADING_TOKENS,
    FittedSection,
    FittedSections,
    SectionGroup,
    fit_in_room,
    fit_required,
    prepare_sections,
)
from foveate.engine.sections.sources import SectionSource, SectionSources
from foveate.engine.steps import SECTIONS
from foveate.errors import BadOption
from foveate.memory.memory import find_private_version
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.session.counting import run_in_thread_if_large
from foveate.tokens.text_meter import TextCounter

_BUDGET_SECTION = "budget"
BYTES_PER_TOKEN = 2
"""A body that was not counted has at most one token per so many bytes."""

_MAX_CACHED = 256
# Longer texts are counted in a thread if they are new.
_THREAD_CHARS = 8 * 1024
_REPORT_INTERVAL_SECONDS = 60.0
_MAX_REPORTED = 1_000
# Deadlines of more nodes are searched in a thread.
_THREAD_NODES = 1_000
_KINDS_WITHOUT_CONTEXT = frozenset((CallKind.HEARTBEAT, CallKind.DELEGATION))

ReadBalances = Callable[[Sequence[str], float], Awaitable[Mapping[str, AccountBalance]]]
FitWindowForSections = Callable[[RequestContext, TokenCount], Awaitable[None]]
"""Makes room in a request for so many additional tokens."""

_MAX_BINDINGS = 256
_MAX_LINE_CHARS = 500
# How often the numbers are rewritten until they include themselves.
_MAX_PASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StableSections:
    """Sections that are the same for many requests; `key` identifies them and how they are fitted."""

    sections: tuple[Section, ...] = ()
    key: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingSource:
    caps: Callable[[], Sequence[Cap]]
    read_balances: ReadBalances


class SectionCollector:
    """Collects and fits sections. A source that fails is reported as a problem of the request.

    No source is waited for beyond the deadline, a time of the event loop.
    """

    def __init__(self, sources: SectionSources, spending: SpendingSource | None = None) -> None:
        self._sources = sources
        self._spending = spending
        self._times: dict[str, TimeAwareness] = {}
        self._fits: LruCache[FittedSections] = LruCache(_MAX_CACHED)
        self._project_sections: LruCache[Section] = LruCache(_MAX_CACHED)
        self._time_sections: LruCache[Section] = LruCache(_MAX_CACHED)
        self._reported_at: dict[tuple[str, str], float] = {}
        register(self._fits)
        register(self._project_sections)
        register(self._time_sections)

    async def with_own_limits(
        self, context: RequestContext, options: SectionOptions, *, deadline: float
    ) -> SectionOptions:
        """Apply the limits that the agent has set itself, as far as they are allowed."""
        if options.workspace is None:
            return options
        try:
            limited_options, problems = await self._sources.with_own_limits(options, deadline)
        except Exception as error:  # noqa: BLE001 - the operator's limits still apply
            _report_problem(context, "limits", _describe_error(error))
            return options
        for problem in problems:
            self._report_occasionally(context, "limits", problem)
        return limited_options

    async def collect_stable(
        self, context: RequestContext, options: SectionOptions, *, deadline: float
    ) -> StableSections:
        """Collect the workspace, the skills and the binding."""
        workspace = await self._try_source(context, "workspace", self._sources.workspace(options, deadline))
        if workspace is None:
            workspace = self._sources.last_workspace(options)
        skills = (
            await self._try_source(context, "skills", self._sources.skills(options, deadline))
            or SectionSource()
        )
        binding = binding_sections(options.binding, context.incoming.section_inputs.channel)
        return StableSections(
            sections=(*workspace.sections, *skills.sections, *binding),
            key=(
                workspace.version,
                skills.version,
                tuple(section.text for section in binding),
                options.limits_key,
                context.model,
                context.options.counter,
            ),
        )

    async def find_privacy(
        self, context: RequestContext, options: SectionOptions, *, deadline: float
    ) -> tuple[object, ...]:
        """Return a value that differs if a text that was sent before may be private now."""
        if options.memory is None:
            return options.privacy_tags, options.logs
        version = None
        try:
            memory = (await self._sources.memory(options.memory, options.privacy_tags, deadline)).memory
            version = find_private_version(memory) if memory is not None else None
        except Exception as error:  # noqa: BLE001 - nothing that was sent before is sent again
            _report_problem(context, "memory", _describe_error(error))
        return options.privacy_tags, options.logs, options.memory.paths, version

    async def collect_turn(
        self, context: RequestContext, options: SectionOptions, user_text: str, *, deadline: float
    ) -> tuple[Section, ...]:
        """Collect what changes with each turn. `user_text` is the user's last message."""
        kind = self._call_kind(context)
        sections = [*(channel_sections(context.incoming.section_inputs) if options.channel else ())]
        if kind not in _KINDS_WITHOUT_CONTEXT:
            if options.memory is not None:
                sections += await self._memory_sections(context, options, user_text, kind, deadline)
            logs = await self._try_source(context, "logs", self._sources.logs(options, deadline))
            sections += logs.sections if logs is not None else ()
        if options.time is not None and options.time.awareness:
            sections += await self._collect_time(context, options, deadline)
        return tuple(sections)

    async def fit(
        self,
        context: RequestContext,
        options: SectionOptions,
        stable: StableSections,
        turn: Sequence[Section],
        *,
        room: Callable[[], int | None],
        fit_window: FitWindowForSections | None = None,
        added: TokenCount = ZERO_TOKENS,
    ) -> FittedSections:
        """Fit all sections in one pass by priority; reuse the last result if nothing has changed.

        `room` returns the tokens left in the window; `fit_window` makes more room if required sections need it.
        `added` are tokens that are injected besides the sections.

        Raises:
            BudgetExceeded: the sections do not fit in their own limit.
            DoesNotFit: the window has no room for the required ones, and none may be made.
        """
        limit = options.total_tokens
        sections = (*stable.sections, *turn)
        key = (stable.key, tuple(section.text for section in turn))
        fitted = self._fits.get(key)
        room_tokens = room()
        if fitted is None or fitted.count.upper > _min_limit(limit, room_tokens):
            generation = self._fits.generation
            if room_tokens is not None and room_tokens < limit and fit_window is not None:
                prepared = prepare_sections(sections, options.limits, limit)
                required = fit_required(prepared, limit_tokens=limit, meter=context.counter.text_meter).count
                if required.upper > room_tokens:
                    await fit_window(context, required)
                    room_tokens = room()
            fitted = await _fit_sections(context, options, sections, room_tokens)
            if fitted.is_complete:
                self._fits.put_if_absent(key, fitted, generation)
        if options.budget:
            fitted = await self._with_budget_section(context, options, sections, fitted, added, room_tokens)
        return replace(fitted, turn=with_heading(fitted.turn))

    def _call_kind(self, context: RequestContext) -> CallKind:
        header = context.incoming.kind
        if not header:
            return CallKind.USER
        try:
            return parse_choice(CallKind, header.strip().lower(), ("x-foveate-kind",))
        except BadOption as error:
            _report_problem(context, "kind", str(error))
            return CallKind.USER

    async def _memory_sections(
        self, context: RequestContext, options: SectionOptions, user_text: str, kind: CallKind, deadline: float
    ) -> list[Section]:
        """The active projects and the relevant notes; a placeholder if the memory cannot be read."""
        assert options.memory is not None
        section_inputs = context.incoming.section_inputs
        try:
            loaded = await self._sources.memory(options.memory, options.privacy_tags, deadline)
            if loaded.memory is None:
                _report_problem(context, "memory", loaded.problem)
                return list(render_awareness(MissingContent("awareness", loaded.problem)).sections)
            key = (options.memory.paths, options.privacy_tags, loaded.memory.version)
            projects = self._project_sections.get(key)
            if projects is None:
                generation = self._project_sections.generation
                projects = self._project_sections.put_if_absent(
                    key, render_awareness(loaded.memory.nodes).sections[0], generation
                )
            inputs = context_inputs(
                loaded.memory,
                agent=context.incoming.agent,
                focus=section_inputs.focus,
                scope=section_inputs.scope,
                query=user_text or None,
                limit_tokens=options.memory.limit_tokens,
                format=options.memory.format,
                model=context.model,
            )
            # Relevance also depends on the embeddings.
            inputs = replace(inputs, memory_version=(inputs.memory_version, options.memory.embeddings))
            section, problem = await self._sources.memory_section(
                kind, loaded, inputs, context.counter, deadline
            )
            if section is None and problem and section_inputs.focus is not None:
                _report_problem(context, "memory", problem)
                unfocused = replace(inputs, focus=None)
                section, problem = await self._sources.memory_section(
                    kind, loaded, unfocused, context.counter, deadline
                )
        except Exception as error:  # noqa: BLE001 - the request is sent without its memory
            _report_problem(context, "memory", _describe_error(error))
            return list(render_awareness(MissingContent("awareness", _describe_error(error))).sections)
        if section is None:
            if problem:
                _report_problem(context, "memory", problem)
            return [projects]
        if problem:
            self._report_occasionally(context, "memory", problem)
        return [projects, section]

    async def _collect_time(
        self, context: RequestContext, options: SectionOptions, deadline: float
    ) -> list[Section]:
        try:
            memory = None
            if options.memory is not None:
                memory = (await self._sources.memory(options.memory, options.privacy_tags, deadline)).memory
            started = context.session.match.session.created_at if context.session.match is not None else None
            version = memory.version if memory is not None else None
            key = (
                context.incoming.agent,
                context.session_id,
                context.received_at // 60,
                version,
                options.time,
                options.zone,
            )
            cached = self._time_sections.get(key)
            if cached is not None:
                return [cached]
            generation = self._time_sections.generation
            time = self._times.setdefault(context.incoming.agent, TimeAwareness())
            nodes = memory.nodes if memory is not None else []

            def render_time() -> Section | None:
                return time.section(
                    nodes,
                    memory_version=version,
                    now=datetime.fromtimestamp(context.received_at, UTC),
                    zone=options.zone,
                    session_started=None if started is None else datetime.fromtimestamp(started, UTC),
                    options=options.time,
                )

            section = render_time() if len(nodes) < _THREAD_NODES else await asyncio.to_thread(render_time)
        except Exception as error:  # noqa: BLE001 - the request is sent without the time
            _report_problem(context, "time", _describe_error(error))
            return []
        return [self._time_sections.put_if_absent(key, section, generation)] if section is not None else []

    async def _with_budget_section(
        self,
        context: RequestContext,
        options: SectionOptions,
        sections: Sequence[Section],
        fitted: FittedSections,
        added_count: TokenCount,
        room: int | None,
    ) -> FittedSections:
        """Add the section that shows what is left of the window and of the caps, after the memory.

        It is dropped first if there is no room, unless a rule gives it a priority.
        """
        rule = options.limits.sections.get(_BUDGET_SECTION) or SectionRule()
        if rule.enabled is False:
            return fitted
        try:
            spending = await self._remaining_spending(context)
        except Exception as error:  # noqa: BLE001 - the budget is shown without the caps
            _report_problem(context, _BUDGET_SECTION, _describe_error(error))
            spending = []
        sent_tokens = (
            context.count.total.upper
            if context.count.total is not None
            else len(context.request.body) // BYTES_PER_TOKEN
        )
        window = context.window_tokens

        def text_for(fit: FittedSections) -> tuple[str, TokenCount]:
            reports = (*fit.stable.reports, *fit.turn.reports)
            return render_budget(
                [report for report in reports if report.name != _BUDGET_SECTION],
                tokens=sent_tokens + added_count.upper + fit.count.upper,
                limit_tokens=None if window is None else max(1, window - context.output_reserve_tokens),
                spending=spending,
                counter=context.counter,
            )

        text, budget_count = text_for(fitted)
        limit = _min_limit(options.total_tokens, room)
        remaining_tokens = (
            limit - fitted.count.upper - BLOCK_TOKENS - (0 if fitted.turn.sections else TURN_HEADING_TOKENS)
        )
        if budget_count.upper <= (
            remaining_tokens if rule.max_tokens is None else min(remaining_tokens, rule.max_tokens)
        ):
            return replace(fitted, turn=_insert_budget_section(fitted.turn, text, budget_count))
        if rule.priority is None:
            reason = f"{_BUDGET_SECTION}: left out, {budget_count.tokens:,} tokens (no room)"
            return replace(fitted, turn=replace(fitted.turn, left_out=(*fitted.turn.left_out, reason)))
        section = Section(_BUDGET_SECTION, text, priority=rule.priority, keep="whole", stability="turn")
        fitted = await _fit_sections(context, options, (*sections, section), room)
        budget_text, tokens = text_for(fitted)  # includes its own tokens
        if tokens.upper > budget_count.upper or all(
            fitted_section.name != _BUDGET_SECTION for fitted_section in fitted.turn.sections
        ):
            return fitted
        fitted_sections = tuple(
            replace(fitted_section, text=budget_text)
            if fitted_section.name == _BUDGET_SECTION
            else fitted_section
            for fitted_section in fitted.turn.sections
        )
        return replace(fitted, turn=replace(fitted.turn, sections=fitted_sections))

    async def _remaining_spending(self, context: RequestContext) -> list[tuple[str, Decimal, Decimal]]:
        if self._spending is None:
            return []
        call = Call(
            id=context.incoming.id,
            agent=context.incoming.agent,
            session_id=context.session_id,
            provider=context.incoming.provider,
            model=context.model,
            category=Category.MAIN,
            at=context.received_at,
        )
        cap_accounts = [(cap, cap.find_account(call)) for cap in self._spending.caps() if cap.applies_to(call)]
        accounts = {cap: account for cap, account in cap_accounts if account is not None}
        if not accounts:
            return []
        balances = await self._spending.read_balances(list(accounts.values()), context.received_at)
        return [
            (str(cap).removeprefix("the cap on "), cap.dollars, _remaining_dollars(cap, balances.get(account)))
            for cap, account in accounts.items()
        ]

    async def _try_source(
        self, context: RequestContext, source_name: str, source: Awaitable[SectionSource]
    ) -> SectionSource | None:
        """Load a source; report the failure and return None if it fails."""
        try:
            loaded = await source
        except Exception as error:  # noqa: BLE001 - the request is sent without this source
            _report_problem(context, source_name, _describe_error(error))
            return None
        for problem in loaded.problems:
            self._report_occasionally(context, source_name, problem)
        return loaded

    def _report_occasionally(self, context: RequestContext, source_name: str, problem: str) -> None:
        """Report a lasting problem that does not affect the request: when it begins, and once a minute."""
        key = (source_name, problem)
        if (
            context.received_at - self._reported_at.get(key, -_REPORT_INTERVAL_SECONDS)
            < _REPORT_INTERVAL_SECONDS
        ):
            return
        if len(self._reported_at) > _MAX_REPORTED:
            self._reported_at.clear()
        self._reported_at[key] = context.received_at
        _report_problem(context, source_name, problem)


def with_heading(turn: SectionGroup) -> SectionGroup:
    if not turn.sections:
        return turn
    first, *others = turn.sections
    return replace(
        turn,
        sections=(replace(first, text=f"{TURN_HEADING}\n\n{first.text}"), *others),
        count=turn.count + TokenCount(TURN_HEADING_TOKENS, False, TURN_HEADING_TOKENS),
    )


async def _fit_sections(
    context: RequestContext, options: SectionOptions, sections: Sequence[Section], room: int | None
) -> FittedSections:
    limit = options.total_tokens
    prepared = prepare_sections(sections, options.limits, limit)
    return await run_in_thread_if_large(
        lambda: fit_in_room(
            prepared,
            options.limits.ladder,
            limit_tokens=limit,
            room_tokens=_min_limit(limit, room),
            meter=context.counter.text_meter,
        ),
        sum(len(section.text) for section in prepared),
        min_bytes=_THREAD_CHARS,
    )


def _insert_budget_section(turn: SectionGroup, text: str, count: TokenCount) -> SectionGroup:
    budget_section = FittedSection(
        name=_BUDGET_SECTION,
        text=text,
        tokens=count.tokens,
        reason=f"section {_BUDGET_SECTION}, {count.tokens:,} tokens",
    )
    index = sum(section.name in ("awareness", "context") for section in turn.sections)
    return replace(
        turn,
        sections=(*turn.sections[:index], budget_section, *turn.sections[index:]),
        count=turn.count + count + TokenCount(BLOCK_TOKENS, False, BLOCK_TOKENS),
    )


def _min_limit(limit: int, room: int | None) -> int:
    return limit if room is None else min(limit, room)


def _report_problem(context: RequestContext, source_name: str, reason: str) -> None:
    context.problems.append(StepFailure(f"{SECTIONS}/{source_name}", reason))


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long and was skipped"
    return f"{type(error).__name__}: {error}"


def _remaining_dollars(cap: Cap, balance: AccountBalance | None) -> Decimal:
    used = balance.spent + balance.reserved if balance is not None else Decimal(0)
    return max(Decimal(0), cap.dollars - used)


@lru_cache(_MAX_BINDINGS)
def binding_sections(binding: BindingOptions | None, channel: str) -> tuple[Section, ...]:
    if binding is None:
        return ()
    peers = [f"Peer: {peer}" for peer in binding.peers]
    channel_prompt = dict(binding.channels).get(channel, "")
    language = f"Answer in {binding.language}." if binding.language else ""
    texts = {"peers": "\n".join(peers), "channel_prompt": channel_prompt, "language": language}
    return tuple(
        Section(name, text, priority=Priority.HIGH, stability=Stability.SESSION)
        for name, text in texts.items()
        if text.strip()
    )


def channel_sections(inputs: SectionInputs) -> tuple[Section, ...]:
    lines = [f"Channel: {_one_line(inputs.channel)}"] if inputs.channel.strip() else []
    lines += [f"Channel {_one_line(name)}: {_one_line(text)}" for name, text in inputs.metadata if text.strip()]
    sender = [f"Sender: {_one_line(inputs.sender)}"] if inputs.sender.strip() else []
    return tuple(
        Section(name, items=entries, priority=Priority.MEDIUM, keep="head", stability=Stability.TURN)
        for name, entries in (("channel", lines), ("sender", sender))
        if entries
    )


def render_budget(
    reports: Iterable[SectionReport],
    *,
    tokens: int,
    limit_tokens: int | None,
    spending: Sequence[tuple[str, Decimal, Decimal]],
    counter: TextCounter,
) -> tuple[str, TokenCount]:
    """Render what is left of the window and of the caps, including this text, with its token count.

    `tokens` are those of everything else. `spending` has for each cap its name, its dollars, and those left.
    """
    reports = list(reports)
    lines = [
        f"Money: {format_dollars(left_dollars)} of {format_dollars(limit_dollars)} left ({cap_name})"
        for cap_name, limit_dollars, left_dollars in spending
    ]
    if limit_tokens is None:
        text = "\n".join(["## Context Budget", f"Using about {tokens} tokens", *lines])
        return text, counter.text(text)
    own_count, text = ZERO_TOKENS, ""
    for _ in range(_MAX_PASSES):
        window_text = render_budget_section(reports, tokens=tokens + own_count.upper, limit_tokens=limit_tokens)
        text = "\n".join([window_text, *lines])
        previous_count, own_count = own_count, counter.text(text)
        if own_count.upper == previous_count.upper:
            break
    return text, own_count


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_LINE_CHARS]
