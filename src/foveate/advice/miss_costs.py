"""Cache misses of recorded calls: what was paid again, and why.

The causes are those that the gateway reports. A recording shows less than a request, though: if a call read
less than its messages explain, only its usage tells from where on the prompt was different.
"""

from dataclasses import dataclass

from foveate.advice.call_rates import InputRates
from foveate.model import Area, CacheUsage, Format
from foveate.prompt_cache.misses.causes import MissCause, describe_cause
from foveate.prompt_cache.misses.explain import NoMiss, explain_miss
from foveate.prompt_cache.misses.snapshot import RequestSnapshot
from foveate.prompt_cache.prompt.parameters import CacheParameter
from foveate.prompt_cache.rules import CachingMode
from foveate.replay.simulator.prompts import build_prompt, build_tail, with_breakpoints
from foveate.replay.simulator.reconstruct import (
    ReconstructedCall,
    UsageFinding,
    recorded_breakpoints,
    tolerance_tokens,
)

PREAMBLE_CHANGED = "preamble_changed"
_OWN_DESCRIPTIONS = {
    PREAMBLE_CHANGED: "the system prompt or a tool changed, as the usage shows",
    MissCause.UNEXPLAINED: "not in the log: a changed system prompt or tool, or an eviction",
    MissCause.OTHER_CONVERSATION: "the client started a new conversation, or compacted it",
}
# As in `explain_miss`: reading this share of what was cached is not a miss.
_MIN_READ_SHARE = 0.8


def describe_recorded_cause(cause: str) -> str:
    return _OWN_DESCRIPTIONS.get(cause) or describe_cause(cause)


@dataclass(slots=True)
class MissCost:
    misses: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def add(self, other: "MissCost") -> None:
        self.misses += other.misses
        self.tokens += other.tokens
        self.dollars += other.dollars


class MissCosts:
    """Sums the cost of cache misses by cause, for the calls of one recording in order.

    A miss costs the difference between what its tokens were charged at and the price of reading them.
    """

    def __init__(self, api_format: Format) -> None:
        self.by_cause: dict[str, MissCost] = {}
        self._api_format = api_format
        self._previous: dict[str, tuple[ReconstructedCall, CacheUsage]] = {}

    def add_call(self, call: ReconstructedCall, usage: CacheUsage, rates: InputRates) -> None:
        previous = self._previous.get(call.call.conversation)
        self._previous[call.call.conversation] = call, usage
        if previous is None or call.rules.caching is CachingMode.NONE:
            return
        found = self._find_miss(*previous, call, usage)
        if found is None:
            return
        cause, lost_tokens = found
        fresh_tokens = usage.input_tokens - usage.read
        lost_tokens = min(lost_tokens, fresh_tokens)
        if lost_tokens <= 0:
            return
        fresh_rate = rates.fresh_dollars(usage) / fresh_tokens
        dollars = lost_tokens * max(fresh_rate - rates.read, 0.0)
        self.by_cause.setdefault(cause, MissCost()).add(MissCost(misses=1, tokens=lost_tokens, dollars=dollars))

    def _find_miss(
        self,
        previous: ReconstructedCall,
        previous_usage: CacheUsage,
        call: ReconstructedCall,
        usage: CacheUsage,
    ) -> tuple[str, int] | None:
        if call.finding is UsageFinding.PREFIX_CHANGED:
            tolerance = tolerance_tokens(usage, call.rules)
            is_in_preamble = tolerance < usage.read < call.preamble.tokens - tolerance
            cause = PREAMBLE_CHANGED if is_in_preamble else MissCause.UNEXPLAINED
            return cause, call.expected.read - usage.read
        cached_tokens = (
            previous_usage.input_tokens
            if call.rules.caching is not CachingMode.BREAKPOINTS
            else previous_usage.input_tokens - previous_usage.uncached
        )
        if usage.read >= _MIN_READ_SHARE * min(cached_tokens, usage.input_tokens):
            return None
        gap_seconds = call.call.at - previous.call.at if call.call.at and previous.call.at else None
        explained = explain_miss(
            self._take_snapshot(previous),
            self._take_snapshot(call),
            call.rules,
            gap_seconds=gap_seconds,
            usage=usage,
        )
        return None if isinstance(explained, NoMiss) else (explained.cause, explained.lost_tokens)

    def _take_snapshot(self, call: ReconstructedCall) -> RequestSnapshot:
        tail = build_tail(call.preamble, call.last_node, lookback_positions=call.rules.lookback_positions)
        prompt = build_prompt(tail, call.full_nodes)
        roles = {
            piece.place.index: node.role
            for node in call.last_node.path()
            for piece in node.pieces
            if piece.place is not None
        }
        thinking = CacheParameter(
            name="thinking", area=Area.MESSAGES, json_text='"enabled"' if call.call.has_thinking else ""
        )
        return RequestSnapshot(
            format=self._api_format,
            prompt=with_breakpoints(prompt, recorded_breakpoints(call, prompt)),
            cache_parameters=(thinking,),
            roles=tuple(roles.get(index, "") for index in range(max(roles, default=-1) + 1)) or ("",),
            lengths_bytes=(0,) * len(prompt.pieces),
        )
