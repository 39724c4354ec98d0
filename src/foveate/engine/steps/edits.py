"""The step that edits the history before a request is sent, if that pays."""

from collections.abc import Awaitable, Callable, Sequence

from foveate import formats
from foveate.compaction.clearing import ClearableBlock, can_clear, find_clearable_blocks
from foveate.compaction.schedule import Moment
from foveate.compaction.store import ClearedBlock, Compaction, EditDecision
from foveate.engine.context import RequestContext
from foveate.engine.options import Clearing
from foveate.engine.spending.edit_planner import EditAssessment, EditPlanner
from foveate.engine.steps.compactions import ApplyCompactions, LimitTurns
from foveate.engine.steps.count import CountTokens
from foveate.engine.steps.names import EDITS
from foveate.session.counting import run_in_thread_if_large

ClearResults = Callable[[RequestContext, Sequence[ClearedBlock], EditDecision], Awaitable[Compaction | None]]


class EditHistory:
    """Clears tool results that are no longer needed: mostly once the cache has expired."""

    name = EDITS

    def __init__(
        self,
        apply_compactions: ApplyCompactions,
        count_tokens: CountTokens,
        planner: EditPlanner,
        clear_results: ClearResults,
    ) -> None:
        self._apply_compactions = apply_compactions
        self._count_tokens = count_tokens
        self._limit_turns = LimitTurns()
        self._planner = planner
        self._clear_results = clear_results

    async def apply(self, context: RequestContext) -> None:
        if not context.options.clears or context.session.chain is None:
            return
        assessment = self._planner.assess(context, Moment.ARRIVAL, now=context.received_at)
        if assessment is None or not self._may_clear(context, assessment):
            return
        clearable = await run_in_thread_if_large(lambda: _find_clearable(context), len(context.original.body))
        self._planner.record_judgement(context, assessment.state.request_tokens)
        plan = assessment.plan(clearable=[item.option for item in clearable])
        if not plan.cleared:
            return
        blocks = [clearable[number].block for number in sorted(plan.cleared)]
        record = await self._clear_results(context, blocks, assessment.make_decision(plan))
        if record is None:
            return
        context.compactions = [record, *context.compactions]
        await self._apply_compactions.apply_stored(context)
        await self._limit_turns.apply(context)
        await self._count_tokens.apply(context)

    def _may_clear(self, context: RequestContext, assessment: EditAssessment) -> bool:
        state = assessment.state
        if state.request_tokens < state.min_context_tokens:
            return False
        is_cold = state.cached_tokens <= state.preamble_tokens
        return is_cold or (
            context.options.clearing is Clearing.COST and self._planner.needs_judgement(context, assessment)
        )


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
