"""The step that injects an agent's sections. Every source may fail on its own."""

import asyncio
import logging
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Protocol

from foveate.budget.sections import Section
from foveate.compaction.store import EditDecision
from foveate.compaction.thinking import drop_invalid_thinking
from foveate.engine.options import SectionOptions
from foveate.engine.request import StepFailure
from foveate.engine.request_context import RequestContext
from foveate.engine.sections.collect import (
    BYTES_PER_TOKEN,
    FitWindowForSections,
    SectionCollector,
    SpendingSource,
    StableSections,
    with_heading,
)
from foveate.engine.sections.fit import (
    BLOCK_TOKENS,
    EMPTY_GROUP,
    FittedSection,
    FittedSections,
    SectionGroup,
    find_additions,
)
from foveate.engine.sections.place import (
    PinnedSectionCache,
    PinnedSections,
    PinnedText,
    PlacedSections,
    find_message,
    has_user_text,
    insert_texts,
    joins_plain_strings,
    last_user_message,
    must_be_pinned,
    place_stable,
    place_turn,
    read_user_text,
)
from foveate.engine.sections.sources import SOURCE_TIMEOUT_SECONDS, SectionSources
from foveate.engine.spending.edit_planner import EditPlanner
from foveate.engine.steps import SECTIONS
from foveate.model import ZERO_TOKENS, Area, Edit, Format, InsertParts, Place, SetParameter, TokenCount
from foveate.prompt_cache.stable_order import InjectedBlock, SectionLayer, flatten_blocks

_LOG = logging.getLogger(__name__)
_NO_SECTIONS = SectionOptions()
# What a user asks for is rarely farther up.
_QUERY_CHARS = 2_000
_ADDED_REASON = "at the end, because thinking blocks depend on what precedes them"
_PINNED_REASON = "repeated from an earlier request, because thinking blocks depend on it"


class SectionMoveRecorder(Protocol):
    """Plans moves of sections and records them; see `SessionCompactor`."""

    @property
    def planner(self) -> EditPlanner: ...

    def record_section_move(
        self, context: RequestContext, names: Sequence[str], tokens: int, decision: EditDecision
    ) -> None: ...


class InjectSections:
    name = SECTIONS

    def __init__(
        self,
        sources: SectionSources,
        spending: SpendingSource | None = None,
        *,
        moves: SectionMoveRecorder | None = None,
        timeout_seconds: float = SOURCE_TIMEOUT_SECONDS,
    ) -> None:
        self._collector = SectionCollector(sources, spending)
        self._moves = moves
        self._timeout_seconds = timeout_seconds
        self._pinned = PinnedSectionCache()
        self._has_warned = False
        self._agents: set[str] = set()
        """Agents that have, or had, sections."""

    async def apply(
        self,
        context: RequestContext,
        fit_window: FitWindowForSections | None = None,
        *,
        is_preview: bool = False,
    ) -> None:
        """Inject sections as far as there is room; `fit_window` makes room for the required ones.

        A preview is not sent, so later requests do not repeat what is injected into it.

        Raises:
            BudgetExceeded: the sections do not fit in the limits of the agent.
            DoesNotFit: the window has no room for the required ones, and none may be made.
        """
        options = context.options.sections
        if options is None or options == _NO_SECTIONS:
            if not self._has_injected(context):
                return
            # What was injected before is missing now, and thinking blocks may depend on it.
            options = _NO_SECTIONS
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        options = await self._collector.with_own_limits(context, options, deadline=deadline)
        is_pinned = must_be_pinned(context.request, context.rules)
        joins_strings = joins_plain_strings(context.request, context.rules)
        sources = await self._collector.collect_stable(context, options, deadline=deadline)
        pinned, known_messages = self._known_pinned(context)
        privacy = await self._collector.find_privacy(context, options, deadline=deadline) if is_pinned else ()
        may_repeat = bool(known_messages) and privacy == pinned.privacy
        repeated = _repeated_tokens(pinned) if is_pinned and may_repeat else ZERO_TOKENS
        needs_turn_sections = not (is_pinned and may_repeat) or _needs_turn_sections(
            context, pinned, known_messages
        )

        def room() -> int | None:
            room_tokens = _room_tokens(context)
            return None if room_tokens is None else max(0, room_tokens - repeated.upper)

        fitted = None if needs_turn_sections else _reuse_stable(pinned, sources, room())
        turn: tuple[Section, ...] = ()
        if fitted is None:
            turn = await self._collector.collect_turn(context, options, pinned.user_text, deadline=deadline)
        fit = partial(self._collector.fit, context, options, sources, turn, room=room, fit_window=fit_window)
        fitted = fitted or await fit(added=repeated)
        latest_group = fitted.stable
        edits: list[Edit] = []
        if not is_pinned:
            fitted = self._hold_additions(context, pinned.stable_group, fitted, room(), is_preview=is_preview)
            is_latest = fitted.stable.version == latest_group.version
            pinned = replace(pinned, stable_group=latest_group if is_latest else fitted.stable, sources=())
            added = fitted.stable.count
        else:
            turn_group = fitted.turn if needs_turn_sections else EMPTY_GROUP
            repeatable = _repeat_stable(context, pinned, replace(fitted, turn=turn_group), room())
            if may_repeat and repeatable is not None:
                fitted, needs_turn_sections = repeatable, True
            else:
                pinned, needs_turn_sections = (
                    _restart_pinned(context, pinned),
                    context.session.chain is not None,
                )
                if repeated is not ZERO_TOKENS:
                    repeated = ZERO_TOKENS
                    fitted = await fit()
                    latest_group = fitted.stable
                pinned = replace(pinned, stable_version=fitted.stable.version)
            repeated_edits = _repeat_pinned(context, pinned, joins=joins_strings)
            if repeated_edits is None:
                reason = (
                    "nothing is injected: the provider would reject earlier thinking blocks, which cannot be"
                    " removed"
                )
                context.problems.append(StepFailure(f"{SECTIONS}/thoughts", reason))
                return
            edits, pinned = repeated_edits
            pinned = replace(
                pinned,
                stable_group=fitted.stable,
                latest_group=latest_group,
                sources=sources.key,
                privacy=privacy,
            )
            added = fitted.stable.count + repeated
        edits = [*place_stable(context.request, fitted.stable.sections, joins=joins_strings), *edits]
        shift = int(any(_is_first_message(edit) for edit in edits))
        turn_group = fitted.turn if needs_turn_sections else EMPTY_GROUP
        placed = place_turn(context.request, turn_group.sections, joins=joins_strings)
        edits += placed.edits
        if not is_preview:
            self._remember_pinned(
                context,
                _with_turn_sections(context, pinned, turn_group, placed) if is_pinned else pinned,
                known_messages,
            )
        if edits:
            self._warn_if_flattened(context, fitted)
            await context.apply_edits(self.name, edits)
            _add_to_count(context, added + turn_group.count if placed.edits else added)
        if not is_pinned:
            context.cache.transient_places = tuple(
                Place(place.area, place.index + shift, place.block) for place in placed.transient_places
            )
        left_out = (*fitted.stable.left_out, *turn_group.left_out)
        context.problems += [StepFailure(f"{SECTIONS}/room", reason_text) for reason_text in left_out]

    def _hold_additions(
        self,
        context: RequestContext,
        cached: SectionGroup,
        fitted: FittedSections,
        room: int | None,
        *,
        is_preview: bool,
    ) -> FittedSections:
        """Leave stable sections as they are cached, and put what was added to them at the end of the request,
        if that costs less than writing the history again. The reasons of the sections say what decided.

        A move of text before a cached history is recorded. If the history is not cached, a move costs nothing.
        """
        added = find_additions(cached, fitted.stable)
        if not added or self._moves is None or last_user_message(context.request) is None:
            return fitted
        additions = _render_additions(context, added)
        assessment = self._moves.planner.assess_sections(context, additions.count.tokens)
        if assessment is None:
            return fitted
        plan = assessment.plan()
        if plan.moves_sections:
            if not (assessment.is_cold or is_preview):
                self._moves.record_section_move(
                    context,
                    [name for name, _ in added],
                    additions.count.tokens,
                    assessment.make_decision(plan),
                )
            decision = (
                f"moved before the history, which is expected to save ${plan.gain_dollars:.4f} in about"
                f" {plan.expected_requests:.0f} more requests and costs ${plan.cost_dollars:.4f}"
            )
            names = {name for name, _ in added}
            return replace(fitted, stable=_add_reason(fitted.stable, names, decision))
        decision = (
            f"at the end, because writing the history again would cost ${plan.cost_dollars:.4f}"
            f" and is expected to save ${plan.gain_dollars:.4f}"
        )
        return _append_additions(cached, fitted, additions, decision, room) or fitted

    def _warn_if_flattened(self, context: RequestContext, fitted: FittedSections) -> None:
        """Warn once per process if a provider takes no blocks, so that sections become one text."""
        if self._has_warned or context.rules.takes_blocks:
            return
        sides = ((SectionLayer.WORKSPACE, fitted.stable), (SectionLayer.TURN, fitted.turn))
        blocks = [
            InjectedBlock(name=section.name, layer=layer, text=section.text)
            for layer, part in sides
            for section in part.sections
        ]
        if note := flatten_blocks(blocks, provider=context.incoming.provider).note:
            self._has_warned = True
            _LOG.warning("%s", note)

    def _has_injected(self, context: RequestContext) -> bool:
        """Return whether thinking blocks of this conversation depend on sections that were injected before."""
        if (
            context.incoming.agent not in self._agents
            or context.session.chain is None
            or not context.rules.binds_thinking
        ):
            return False
        pinned, _ = self._pinned.find(context.incoming.agent, context.session.chain)
        return pinned is not None and bool(
            pinned.stable_version or pinned.pinned_texts or pinned.invalid_before
        )

    def _known_pinned(self, context: RequestContext) -> tuple[PinnedSections, int]:
        """Return what is pinned, with the user's last text, and the number of messages it covers."""
        if context.session.chain is None:
            return PinnedSections(), 0
        known, known_messages = self._pinned.find(context.incoming.agent, context.session.chain)
        pinned = known or PinnedSections()
        for index in range(
            len(context.original.messages) - 1,
            context.session.chain.leading_system_messages + known_messages - 1,
            -1,
        ):
            if user_text := read_user_text(context.original, index):
                return replace(pinned, user_text=user_text[-_QUERY_CHARS:]), known_messages
        return pinned, known_messages

    def _remember_pinned(self, context: RequestContext, pinned: PinnedSections, known_messages: int) -> None:
        if context.session.chain is not None and (
            known_messages < len(context.session.chain) or pinned.invalid_before or not pinned.sources
        ):
            self._pinned.put(context.incoming.agent, context.session.chain, pinned)
            self._agents.add(context.incoming.agent)


def _needs_turn_sections(context: RequestContext, pinned: PinnedSections, known_messages: int) -> bool:
    """Return whether the user has a new message, or no turn sections are pinned."""
    if context.session.chain is None:
        return False
    if known_messages == len(context.session.chain):  # a repeated request, as after a lost response
        return not pinned.pinned_texts
    last = last_user_message(context.request)
    return last is not None and (has_user_text(context.request, last) or not pinned.pinned_texts)


def _repeated_tokens(pinned: PinnedSections) -> TokenCount:
    tokens = sum(text.tokens for text in pinned.pinned_texts)
    return TokenCount(tokens, False, tokens + tokens // 8) if tokens else ZERO_TOKENS


def _fits(part: SectionGroup, room: int | None) -> bool:
    return room is None or part.count.upper <= room


def _reuse_stable(pinned: PinnedSections, sources: StableSections, room: int | None) -> FittedSections | None:
    """Reuse the stable sections if their sources have not changed and there is room for them."""
    if pinned.sources != sources.key or not _fits(pinned.stable_group, room):
        return None
    return FittedSections(stable=pinned.latest_group)


def _repeat_stable(
    context: RequestContext, pinned: PinnedSections, fitted: FittedSections, room: int | None
) -> FittedSections | None:
    """Leave stable sections as they are pinned, and pin what was added to them to this request; None if
    something else has changed.
    """
    if pinned.stable_version != pinned.stable_group.version or not _fits(pinned.stable_group, room):
        return None
    if pinned.latest_group.version == fitted.stable.version:
        return replace(fitted, stable=pinned.stable_group)
    added = find_additions(pinned.latest_group, fitted.stable)
    can_pin = context.rules.binds_thinking and context.request.format is Format.ANTHROPIC
    if not added or not can_pin or last_user_message(context.request) is None:
        return None
    additions = _render_additions(context, added)
    return _append_additions(pinned.stable_group, fitted, additions, _ADDED_REASON, room)


def _render_additions(context: RequestContext, added: Sequence[tuple[str, str]]) -> SectionGroup:
    texts = [f"Added to {name}:\n{text}" for name, text in added]
    counts = [context.counter.text(text) for text in texts]
    sections = tuple(
        FittedSection(
            name=name, text=text, tokens=count.tokens, reason=f"section {name}, {count.tokens:,} added tokens"
        )
        for (name, _), text, count in zip(added, texts, counts, strict=True)
    )
    framing_tokens = BLOCK_TOKENS * len(texts)
    return SectionGroup(sections=sections, count=sum(counts, TokenCount(framing_tokens, False, framing_tokens)))


def _add_reason(group: SectionGroup, names: Set[str], reason: str) -> SectionGroup:
    return replace(
        group,
        sections=tuple(
            replace(section, reason=f"{section.reason} ({reason})") if section.name in names else section
            for section in group.sections
        ),
    )


def _append_additions(
    cached: SectionGroup, fitted: FittedSections, additions: SectionGroup, decision: str, room: int | None
) -> FittedSections | None:
    """Put additions to the stable sections after those of the turn; None if there is no room."""
    held = _add_reason(additions, {section.name for section in additions.sections}, decision).sections
    turn = replace(
        fitted.turn, sections=(*fitted.turn.sections, *held), count=fitted.turn.count + additions.count
    )
    if not fitted.turn.sections:
        turn = with_heading(turn)
    if room is not None and (cached.count + turn.count).upper > room:
        return None
    return FittedSections(stable=replace(cached, left_out=fitted.stable.left_out), turn=turn)


def _restart_pinned(context: RequestContext, pinned: PinnedSections) -> PinnedSections:
    """Unpin everything, and mark earlier thinking blocks as invalid on models that depend on it.

    That is necessary if nothing is known, the system prompt has changed, or there is no room to repeat.
    """
    head = context.session.chain.leading_system_messages if context.session.chain is not None else 0
    return PinnedSections(user_text=pinned.user_text, invalid_before=len(context.original.messages) - head)


def _repeat_pinned(
    context: RequestContext, pinned: PinnedSections, *, joins: bool
) -> tuple[list[Edit], PinnedSections] | None:
    """Edits that repeat pinned texts and drop invalid thinking; None if that is impossible."""
    head = context.session.chain.leading_system_messages if context.session.chain is not None else 0
    edits: list[Edit] = []
    for pinned_text in pinned.pinned_texts:
        place = find_message(context.request, context.original, head + pinned_text.message_index)
        if place is not None:
            edits += insert_texts(context.request, place, pinned_text.texts, _PINNED_REASON, joins=joins)
    if not context.rules.binds_thinking or not pinned.invalid_before:
        return edits, pinned
    if pinned.drop_request is not None:
        return [*edits, pinned.drop_request], pinned
    end = head + pinned.invalid_before + len(context.request.messages) - len(context.original.messages)
    earlier = replace(context.request, messages=context.request.messages[: max(0, end)])
    thinking_edits = drop_invalid_thinking(earlier, context.model, changed_from=0)
    if thinking_edits is None:
        return None
    drop_request = next((edit for edit in thinking_edits if isinstance(edit, SetParameter)), None)
    return [*edits, *thinking_edits], replace(
        pinned, drop_request=drop_request, invalid_before=pinned.invalid_before if thinking_edits else 0
    )


def _with_turn_sections(
    context: RequestContext, pinned: PinnedSections, turn: SectionGroup, placed: PlacedSections
) -> PinnedSections:
    if not placed.edits or context.session.chain is None:
        return pinned
    index = (
        placed.edits[0].place.index
        + len(context.original.messages)
        - len(context.request.messages)
        - context.session.chain.leading_system_messages
    )
    texts = tuple((section.text, section.tokens) for section in turn.sections)
    return replace(pinned, pinned_texts=(*pinned.pinned_texts, PinnedText(index, texts)))


def _room_tokens(context: RequestContext) -> int | None:
    if context.window_tokens is None:
        return None
    limit = context.window_tokens - context.output_reserve_tokens
    if context.count.total is None:
        return max(0, limit - len(context.request.body) // BYTES_PER_TOKEN)
    return max(0, int((limit - context.count.total.upper) / max(1.0, context.tokens_per_raw_token)))


def _add_to_count(context: RequestContext, added: TokenCount) -> None:
    rate = context.tokens_per_raw_token
    if context.count.raw is not None:
        context.count.raw = replace(context.count.raw, total=context.count.raw.total + added)
    if context.count.total is not None:
        upper = round(added.upper * max(1.0, rate))
        context.count.total += TokenCount(round(added.tokens * rate), added.exact, upper)


def _is_first_message(edit: Edit) -> bool:
    """Return whether an edit inserts a message before all others."""
    if not isinstance(edit, InsertParts) or edit.place.area is not Area.MESSAGES:
        return False
    return (edit.place.index, edit.place.block) == (0, None)


class InjectSectionsInWindow:
    name = SECTIONS

    def __init__(
        self, inject: InjectSections, fit_window: FitWindowForSections, *, is_preview: bool = False
    ) -> None:
        self._inject = inject
        self._fit_window = fit_window
        self._is_preview = is_preview

    async def apply(self, context: RequestContext) -> None:
        await self._inject.apply(context, self._fit_window, is_preview=self._is_preview)
