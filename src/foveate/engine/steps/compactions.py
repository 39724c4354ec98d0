"""Steps that replace compacted history by its summary, and drop turns beyond a limit."""

import time
from collections.abc import Sequence

from foveate import formats
from foveate.compaction.applied_compactions import load_application_history, record_applications
from foveate.compaction.apply import build_compaction_edits, find_active_compaction
from foveate.compaction.clearing import build_clearing_edits
from foveate.compaction.overflow import limit_turns
from foveate.compaction.store import Compaction, CompactionOutcome, CompactionStore
from foveate.compaction.thinking import required_betas
from foveate.compaction.tool_results import result_limit_tokens, truncate_tool_results
from foveate.engine.context import RequestContext
from foveate.engine.request import StepFailure
from foveate.engine.steps.names import COMPACTION, LIMIT_TURNS
from foveate.errors import StoreUnavailable
from foveate.model import Edit, ReplaceText
from foveate.session.counting import run_in_thread_if_large
from foveate.session.hash_chain import HashChain

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
