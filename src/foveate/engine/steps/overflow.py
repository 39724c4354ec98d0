"""The step that makes a request fit into the context window."""

from collections.abc import Awaitable, Callable

from foveate import formats
from foveate.budget.turn_structure import MessageKind, classify_message
from foveate.compaction.compact import CompactionResult
from foveate.compaction.overflow import OverflowAction, OverflowPlan, lower_bound_tokens, plan_overflow
from foveate.compaction.plan import CompactionCandidate
from foveate.compaction.store import CompactionOutcome
from foveate.engine.request_context import RequestContext
from foveate.engine.steps import OVERFLOW
from foveate.engine.steps.count import CountTokens
from foveate.engine.steps.history import ApplyCompactions, LimitTurns, compaction_candidate
from foveate.errors import DoesNotFit
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.session.counting import run_in_thread_if_large

# The share of a message's count that is certain.
_MAX_OVERCOUNT = 0.8

CompactNow = Callable[[RequestContext, CompactionCandidate], Awaitable[CompactionResult | None]]


class FitWindow:
    """Compacts, clears, truncates, rejects or passes a request that does not fit, as its agent wishes."""

    name = OVERFLOW

    def __init__(
        self, apply_compactions: ApplyCompactions, count_tokens: CountTokens, compact: CompactNow
    ) -> None:
        self._apply_compactions = apply_compactions
        self._count_tokens = count_tokens
        self._limit_turns = LimitTurns()
        self._compact_session = compact

    async def apply(self, context: RequestContext, required_sections: TokenCount = ZERO_TOKENS) -> None:
        """Make the request fit, with so many raw tokens of required sections.

        Raises:
            DoesNotFit: it does not fit, and no other means is allowed.
        """
        window_tokens = context.window_tokens
        if (
            context.count.total is None
            or window_tokens is None
            or context.request.continues_stored_conversation
        ):
            return
        section_tokens = round(required_sections.tokens * context.tokens_per_raw_token)
        size_bytes = len(context.request.body)
        reserve_tokens = await run_in_thread_if_large(
            lambda: context.output_reserve_tokens, size_bytes, min_bytes=LARGE_BYTES
        )
        limit_tokens = window_tokens - reserve_tokens - section_tokens
        if context.count.total.tokens > limit_tokens:
            await self._count_tokens.confirm(context)
        if context.count.total.tokens <= limit_tokens:
            return
        if await self._apply_compactions.find_new_compactions(context):
            await self._limit_turns.apply(context)
            await self._count_tokens.apply(context)
            if context.count.total.tokens <= limit_tokens:
                return
        if (
            await _can_compact(context, limit_tokens)
            and await self._compact(context)
            and context.count.total.tokens <= limit_tokens
        ):
            return
        plan = await run_in_thread_if_large(
            lambda: _plan_overflow(context, limit_tokens), len(context.request.body)
        )
        if plan.final_action is OverflowAction.REJECT:
            raise DoesNotFit(
                tokens=lower_bound_tokens(context.count.total),
                limit_tokens=limit_tokens,
                window_tokens=window_tokens,
                reason=f"{plan.reason}; required sections take {section_tokens:,} more"
                if section_tokens
                else plan.reason,
            )
        if plan.edits:
            await context.apply_edits(self.name, plan.edits)
            await self._count_tokens.apply(context)

    async def _compact(self, context: RequestContext) -> bool:
        if (
            context.session.chain is None
            or context.session.match is None
            or context.count.total is None
            or context.window_tokens is None
        ):
            return False
        result = await self._compact_session(context, compaction_candidate(context, must_fit=True))
        if result is None or result.compaction is None or result.compaction.outcome is not CompactionOutcome.OK:
            return False
        context.compactions = [result.compaction, *context.compactions]
        await self._apply_compactions.apply_stored(context)
        await self._limit_turns.apply(context)
        await self._count_tokens.apply(context)
        return True


async def _can_compact(context: RequestContext, limit_tokens: int) -> bool:
    """Return whether a compaction can make the request fit, so that it is worth its price.

    It cannot if the response alone takes the whole window, or the last message alone is too long for it.
    """
    if not context.options.compaction or limit_tokens <= 0 or not context.request.messages:
        return False
    raw = context.request.messages[-1]
    last = await run_in_thread_if_large(lambda: formats.parse_message(context.request.format, raw), len(raw))
    if classify_message(last) is MessageKind.RESULTS:  # these can be truncated
        return True
    last_tokens = await run_in_thread_if_large(lambda: context.counter.count_message(last).tokens, len(raw))
    return _MAX_OVERCOUNT * last_tokens * context.tokens_per_raw_token <= limit_tokens


def _plan_overflow(context: RequestContext, limit_tokens: int) -> OverflowPlan:
    assert context.count.total is not None
    messages = [formats.parse_message(context.request.format, raw) for raw in context.request.messages]
    tokens = [
        round(context.counter.count_message(message).tokens * context.tokens_per_raw_token)
        for message in messages
    ]
    return plan_overflow(
        context.request,
        messages,
        tokens,
        context.count.total,
        limit_tokens=limit_tokens,
        options=context.options.overflow_options,
        can_compact=False,
        model=context.model,
    )
