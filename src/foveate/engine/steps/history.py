"""Steps that change the history of a request: stored compactions, a limit of turns, edits that pay, and
thinking blocks that the provider would reject.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from foveate import formats
from foveate.compaction.applied_compactions import (
    invalidate_history,
    load_application_history,
    record_applications,
)
from foveate.compaction.apply import build_compaction_edits, find_active_compaction
from foveate.compaction.clearing import ClearableBlock, build_clearing_edits, can_clear, find_clearable_blocks
from foveate.compaction.compact import CompactionResult
from foveate.compaction.edit_timing import Moment, ScheduledEdits
from foveate.compaction.overflow import (
    limit_turns,
)
from foveate.compaction.plan import CompactionCandidate
from foveate.compaction.store import ClearedBlock, Compaction, CompactionOutcome, CompactionStore, EditDecision
from foveate.compaction.thinking import drop_all_thinking, let_provider_drop_thinking, required_betas
from foveate.compaction.tool_results import result_limit_tokens, truncate_tool_results
from foveate.engine.exchange import Exchange
from foveate.engine.options import Clearing
from foveate.engine.request import StepFailure
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.spending.edit_planner import EditAssessment, EditPlanner
from foveate.engine.steps import COMPACTION, EDITS, LIMIT_TURNS, THINKING
from foveate.engine.steps.count import CountTokens
from foveate.errors import StoreUnavailable
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.model import Edit, ReplaceText
from foveate.session.counting import run_in_thread_if_large
from foveate.session.hash_chain import HashChain
from foveate.session.store import PendingWrite

# Fewer messages cannot have been compacted, and a shorter request has nothing to truncate.
_MIN_MESSAGES = 2
_MIN_BYTES = 1024

_ASSUME_NONE_SECONDS = 1.0
_MAX_AGENTS = 1024


class ApplyCompactions:
    name = COMPACTION

    def __init__(self, compaction_store: CompactionStore) -> None:
        self._compaction_store = compaction_store
        # Agents without compactions, and until when that is assumed.
        self._without_compactions: dict[str, float] = {}

    def expect_compactions(self, agent: str) -> None:
        """Look for compactions again: the agent has one now."""
        self._without_compactions.pop(agent, None)

    async def apply(self, context: RequestContext) -> None:
        if not context.options.edits_history or context.session.chain is None or context.session.match is None:
            return
        if len(context.session.chain) < _MIN_MESSAGES and len(context.original.body) < _MIN_BYTES:
            return
        context.compactions = await self._find_compactions(context.incoming.agent, context.session.chain)
        await self.apply_stored(context)

    async def find_new_compactions(self, context: RequestContext) -> bool:
        """Look again if it was only assumed that there are no compactions; apply what is found."""
        agent = context.incoming.agent
        if (
            context.compactions
            or context.session.chain is None
            or not (context.options.edits_history and self._assumes_none(agent))
        ):
            return False
        self.expect_compactions(agent)
        try:
            context.compactions = await self._find_compactions(agent, context.session.chain)
            if context.compactions:
                await self.apply_stored(context)
        except StoreUnavailable:  # other means make the request fit
            context.compactions = ()
        return bool(context.compactions)

    async def _find_compactions(self, agent: str, chain: HashChain) -> Sequence[Compaction]:
        """Find the compactions of a conversation. That an agent has none at all is assumed for a moment.

        If another process makes its first compaction meanwhile, one more request is sent uncompacted.
        """
        if self._assumes_none(agent):
            return ()
        compactions = await self._compaction_store.find_compactions(agent, chain.hashes)
        if not compactions and not await self._compaction_store.has_compactions(agent):
            if len(self._without_compactions) > _MAX_AGENTS:
                self._without_compactions.clear()
            self._without_compactions[agent] = time.monotonic() + _ASSUME_NONE_SECONDS
        return compactions

    def _assumes_none(self, agent: str) -> bool:
        return time.monotonic() < self._without_compactions.get(agent, 0.0)

    async def apply_stored(self, context: RequestContext) -> None:
        assert context.session.chain is not None
        application_history = await load_application_history(
            context.session.chain, context.compactions, self._compaction_store, model=context.model
        )
        invalid_thinking_ranges = (
            None if application_history is None else application_history.invalid_thinking_ranges()
        )
        applicable = [
            edit
            for edit in context.compactions
            if context.options.compaction or edit.outcome is CompactionOutcome.RESULTS_CLEARED
        ]
        compaction_edits = build_compaction_edits(
            context.original,
            context.session.chain,
            applicable,
            invalid_thinking_ranges=invalid_thinking_ranges,
            model=context.model,
        )
        context.compaction = (
            find_active_compaction(context.session.chain, applicable) if compaction_edits else None
        )
        start = (
            context.session.chain.leading_system_messages + context.compaction.messages
            if context.compaction is not None
            else 0
        )
        truncations: tuple[ReplaceText, ...] = ()
        if context.window_tokens is not None and context.options.compacts:
            truncated = await truncate_tool_results(
                context.original,
                context.session.chain,
                context.compactions,
                context.counter,
                self._compaction_store,
                agent=context.incoming.agent,
                session_id=context.session_id,
                limit_tokens=result_limit_tokens(context.window_tokens, context.options.tool_result_max_pct),
                now=context.received_at,
                start=start,
            )
            truncations = truncated.edits
            if truncated.new_records:
                self.expect_compactions(context.incoming.agent)
            context.truncated_result_count += len(truncated.new_records)
            if truncated.problem:
                context.problems.append(
                    StepFailure(self.name, f"a truncated tool result could not be stored: {truncated.problem}")
                )
        clearings = build_clearing_edits(context.session.chain, context.compactions, start=start)
        cleared_places = {edit.place for edit in clearings}
        truncations = tuple(edit for edit in truncations if edit.place not in cleared_places)
        context.applied_edits = [applied for applied in context.applied_edits if applied.step != self.name]
        await context.apply_edits(
            self.name, (*compaction_edits, *truncations, *clearings), base_request=context.original
        )
        if application_history is not None:
            # Thinking that the provider drops itself precedes the response now, and soon will not.
            await record_applications(
                application_history,
                self._compaction_store,
                is_applied=context.compaction is not None and not required_betas(compaction_edits),
            )


class LimitTurns:
    name = LIMIT_TURNS

    async def apply(self, context: RequestContext) -> None:
        """Drop the oldest turns beyond `max_turns`, in batches."""
        max_turns = context.options.max_turns
        context.applied_edits = [applied for applied in context.applied_edits if applied.step != self.name]
        if max_turns is None or len(context.request.messages) <= max_turns:
            return
        edits = await run_in_thread_if_large(
            lambda: _limit_turn_edits(context, max_turns), len(context.request.body)
        )
        if edits:
            await context.apply_edits(self.name, edits)


def _limit_turn_edits(context: RequestContext, max_turns: int) -> tuple[Edit, ...]:
    messages = [formats.parse_message(context.request.format, raw) for raw in context.request.messages]
    # Raw counts do not change between requests: they are in the placeholder, which must stay the same.
    tokens = [context.counter.count_message(message).tokens for message in messages]
    return limit_turns(context.request, messages, tokens, max_turns=max_turns, model=context.model)


def compaction_candidate(context: RequestContext, *, must_fit: bool) -> CompactionCandidate:
    assert context.session.chain is not None
    assert context.count.total is not None
    assert context.window_tokens is not None
    return CompactionCandidate(
        agent=context.incoming.agent,
        session_id=context.session_id,
        original=context.original,
        chain=context.session.chain,
        sent_request=context.request,
        sent_tokens=context.count.reported_tokens or context.count.total.tokens,
        window_tokens=context.window_tokens,
        output_reserve=context.output_reserve_tokens,
        earlier_compaction=context.compaction,
        must_fit=must_fit,
    )


class HistoryEditor(Protocol):
    """Makes the edits; see `SessionCompactor`."""

    @property
    def planner(self) -> EditPlanner: ...

    async def compact_for_request(
        self, context: RequestContext, candidate: CompactionCandidate
    ) -> CompactionResult | None: ...

    async def clear_results(
        self, context: RequestContext, blocks: Sequence[ClearedBlock], decision: EditDecision
    ) -> Compaction | None: ...


class EditHistory:
    """Clears tool results that are no longer needed, or compacts: mostly once the cache has expired."""

    name = EDITS

    def __init__(
        self, apply_compactions: ApplyCompactions, count_tokens: CountTokens, editor: HistoryEditor
    ) -> None:
        self._apply_compactions = apply_compactions
        self._count_tokens = count_tokens
        self._limit_turns = LimitTurns()
        self._editor = editor
        self._planner = editor.planner

    async def apply(self, context: RequestContext) -> None:
        options = context.options
        if not (options.clears or options.compacts_by_cost) or context.session.chain is None:
            return
        edit = await self._edit(context, may_compact=options.compacts_by_cost)
        if edit is not None and edit.outcome is CompactionOutcome.OK and options.clears:
            await self._edit(context, may_compact=False)  # what is left is written again anyway

    async def _edit(self, context: RequestContext, *, may_compact: bool) -> Compaction | None:
        """Make the edit that pays most, if any does."""
        assessment = self._planner.assess(context, Moment.ARRIVAL, now=context.received_at)
        if assessment is None or assessment.state.request_tokens < assessment.state.min_context_tokens:
            return None
        option = self._planner.estimate_compaction(context, assessment)
        may_compact = (
            may_compact
            and context.window_tokens is not None
            and (assessment.is_cold or assessment.is_above_price_step(option.tokens_after))
        )
        clearable: list[ClearableBlock] = []
        if self._may_clear(context, assessment):
            clearable = await run_in_thread_if_large(
                lambda: _find_clearable(context), len(context.original.body)
            )
            self._planner.record_judgement(context, assessment.state.request_tokens)
        plan = assessment.plan(
            compaction=option if may_compact else None, clearable=[item.option for item in clearable]
        )
        record = (
            await self._compact(context, assessment)
            if plan.compacts
            else await self._clear(context, clearable, assessment, plan)
            if plan.cleared
            else None
        )
        if record is None:
            return None
        context.compactions = [record, *context.compactions]
        await self._apply_compactions.apply_stored(context)
        await self._limit_turns.apply(context)
        await self._count_tokens.apply(context)
        return record

    def _may_clear(self, context: RequestContext, assessment: EditAssessment) -> bool:
        match context.options.clearing:
            case Clearing.COLD:
                return assessment.is_cold
            case Clearing.COST:
                return assessment.is_cold or self._planner.needs_judgement(context, assessment)
            case _:
                return False

    async def _compact(self, context: RequestContext, assessment: EditAssessment) -> Compaction | None:
        candidate = replace(
            compaction_candidate(context, must_fit=False),
            is_cached=not assessment.is_cold,
            decide=assessment.decide,
        )
        result = await self._editor.compact_for_request(context, candidate)
        if result is None or result.compaction is None:
            return None
        return result.compaction if result.compaction.outcome is CompactionOutcome.OK else None

    async def _clear(
        self,
        context: RequestContext,
        clearable: Sequence[ClearableBlock],
        assessment: EditAssessment,
        plan: ScheduledEdits,
    ) -> Compaction | None:
        blocks = [clearable[number].block for number in plan.cleared]
        return await self._editor.clear_results(context, blocks, assessment.make_decision(plan))


def _find_clearable(context: RequestContext) -> list[ClearableBlock]:
    chain = context.session.chain
    assert chain is not None
    compacted = context.compaction.messages if context.compaction is not None else 0
    start = chain.leading_system_messages + compacted
    if not can_clear(context.original, context.model, start=start):
        return []
    return find_clearable_blocks(
        context.original,
        [formats.parse_message(context.original.format, raw) for raw in context.original.messages[start:]],
        chain,
        context.compactions,
        context.counter,
        start=start,
        tokens_per_raw_token=context.tokens_per_raw_token,
    )


class DropInvalidThinking:
    """Drops thinking blocks of a session if some were rejected. Runs after all edits before them."""

    name = THINKING

    async def apply(self, context: RequestContext) -> None:
        """Ask the provider to drop those that do not fit; if it cannot be asked, drop all of them."""
        if context.session.state.has_invalid_thinking:
            request, model = context.request, context.model
            edits = await run_in_thread_if_large(
                lambda: let_provider_drop_thinking(request, model) or drop_all_thinking(request, model),
                len(request.body),
                min_bytes=LARGE_BYTES,
            )
            await context.apply_edits(self.name, edits)


@dataclass(frozen=True, slots=True)
class InvalidateCompactionThinking:
    """Once the provider rejects thinking after a summary, records that all gateways must drop it."""

    compaction_store: CompactionStore

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if (
            context is not None
            and exchange.has_invalid_thinking
            and context.compaction is not None
            and context.session.chain is not None
        ):
            context.pending_writes.append(
                PendingWrite(
                    partial(
                        invalidate_history, context.session.chain, context.compaction, self.compaction_store
                    )
                )
            )


@dataclass(frozen=True, slots=True)
class RecordInvalidThinking:
    """Remembers sessions whose thinking blocks were rejected, since what precedes them has changed.

    The client has received the error. From its next request on, the provider is asked to drop the blocks.
    """

    session_states: SessionStates

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or not exchange.has_invalid_thinking:
            return
        state = self.session_states.session(context.incoming.agent, context.session_id)
        self.session_states.put(context.incoming.agent, context.session_id, state.with_invalid_thinking())
