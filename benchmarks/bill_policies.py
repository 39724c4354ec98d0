"""Policies that `bill` compares: fixed triggers, clearing by age, and the defaults of peers."""

from dataclasses import replace

from foveate.compaction.edit_timing import Moment
from foveate.compaction.staleness import CLEARED_PREFIX
from foveate.replay.simulator.editing_run import (
    NO_EDITS,
    ClearedResult,
    EditingMoment,
    EditPolicy,
    HistoryEdits,
    SentResult,
    decide_by_threshold,
)
from foveate.replay.simulator.history_edits import SimulatedCompaction, simulate_compaction

TRIGGERS = tuple(range(30_000, 160_000, 10_000))
CLEARING_AGES = (5, 10, 20)
CLEARING_STEP_TOKENS = 20_000
# Size of a placeholder, and of results that are not worth one.
PLACEHOLDER_TOKENS = 40
MIN_RESULT_TOKENS = 100
# Anthropic's `clear_tool_uses_20250919` and LangChain's `ClearToolUsesEdit` have the same defaults
# (https://platform.claude.com/docs/en/build-with-claude/context-editing and langchain 1.x, read November 2026).
PEER_TRIGGER_TOKENS, PEER_KEPT_RESULTS = 100_000, 3
PEER_PLACEHOLDER_TOKENS = 6
# LangChain's `SummarizationMiddleware` retains 20 messages. It has no default trigger; its documentation uses
# 80% of the window.
LANGCHAIN_KEPT_MESSAGES, LANGCHAIN_WINDOW_SHARE = 20, 0.8


class NoEdits:
    def decide(self, moment: EditingMoment) -> HistoryEdits:
        return NO_EDITS


class FixedTrigger:
    """Compacts after each request of at least this many tokens."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        window = moment.window_threshold_tokens()
        return decide_by_threshold(moment, min(self._tokens, window) if window else self._tokens)


class ClearByAge:
    """Another policy, and clearing of results that were sent in more than `age` requests.

    With `step_tokens`, whenever the request has grown by that many; otherwise if its cached prefix has expired.
    """

    def __init__(self, policy: EditPolicy, age_requests: int, step_tokens: int | None = None) -> None:
        self._policy = policy
        self._age = age_requests
        self._step_tokens = step_tokens
        self._size_after: dict[str, int] = {}

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        edits = self._policy.decide(moment)
        if moment.moment is not Moment.ARRIVAL or not self._is_due(moment):
            return edits
        cleared = tuple(
            ClearedResult(result, PLACEHOLDER_TOKENS)
            for result in moment.results()
            if result.age_requests > self._age and result.tokens > MIN_RESULT_TOKENS
        )
        freed = sum(result.tokens - tokens for result, tokens in cleared)
        self._size_after[moment.call.call.conversation] = moment.call.input_tokens - freed
        return edits._replace(cleared=cleared)

    def _is_due(self, moment: EditingMoment) -> bool:
        if self._step_tokens is None:
            return is_cold(moment)
        size = self._size_after.get(moment.call.call.conversation)
        size = moment.call.preamble.tokens if size is None else min(size, moment.call.input_tokens)
        return moment.call.input_tokens >= size + self._step_tokens


def is_cold(moment: EditingMoment) -> bool:
    """Return whether no message of the request can be read from the cache."""
    entry = moment.longest_entry()
    return entry is None or entry.tokens <= moment.call.preamble.tokens


class ClearToolUses:
    """Clears all but the last results in each request above the trigger, as LangChain and Anthropic do.

    Neither remembers what it cleared, so each request is judged by its unedited size.
    """

    def __init__(self, *, counts_preamble: bool) -> None:
        self._counts_preamble = counts_preamble

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        if moment.moment is not Moment.ARRIVAL:
            return NO_EDITS
        call = moment.unedited
        tokens = call.input_tokens if self._counts_preamble else call.last_node.end_tokens
        if tokens <= PEER_TRIGGER_TOKENS:
            return NO_EDITS
        results: list[SentResult] = moment.results()[:-PEER_KEPT_RESULTS]
        return HistoryEdits(
            cleared=tuple(
                ClearedResult(result, min(PEER_PLACEHOLDER_TOKENS, result.tokens)) for result in results
            )
        )


class LangChainSummary:
    """Compacts before a request, as LangChain's middleware does."""

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        window = moment.window_tokens
        if moment.moment is not Moment.ARRIVAL or window is None:
            return NO_EDITS
        if moment.call.last_node.end_tokens < LANGCHAIN_WINDOW_SHARE * window:
            return NO_EDITS
        return HistoryEdits(self._compact(moment))

    def _compact(self, moment: EditingMoment) -> SimulatedCompaction | None:
        path = moment.history.path()
        tail_tokens = sum(node.tokens for node in path[-LANGCHAIN_KEPT_MESSAGES:])
        return simulate_compaction(
            moment.history,
            moment.reader,
            trigger_tokens=4 * tail_tokens,
            options=replace(moment.options, tail_keep_tokens=tail_tokens),
            earlier=moment.earlier_compaction,
            drops_thinking=moment.call.rules.binds_thinking,
        )


def peer_placeholder() -> str:
    return f"{CLEARED_PREFIX}]"
