"""The step that edits the history before a request is sent, if that pays."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from foveate import formats
from foveate.compaction.clearing import ClearableBlock, can_clear, find_clearable_blocks
from foveate.compaction.compact import CompactionResult
from foveate.compaction.plan import CompactionCandidate
from foveate.compaction.schedule import Moment, ScheduledEdits
from foveate.compaction.store import ClearedBlock, Compaction, CompactionOutcome, EditDecision
from foveate.engine.context import RequestContext
from foveate.engine.options import Clearing
from foveate.engine.spending.edit_planner import EditAssessment, EditPlanner
from foveate.engine.steps.compactions import ApplyCompactions, LimitTurns
from foveate.engine.steps.count import CountTokens
from foveate.engine.steps.names import EDITS
from foveate.engine.steps.overflow import compaction_candidate
from foveate.session.counting import run_in_thread_if_large


class HistoryEditor(Protocol):
    """Makes the edits; see `SessionCompactor`."""

    @property
    def planner(self) -> EditPlanner: ...

    async def compact_now(
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
        candidate = replace(compaction_candidate(context, must_fit=False), decide=assessment.decide)
        result = await self._editor.compact_now(context, candidate)
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
