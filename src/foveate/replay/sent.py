"""What each call of a recording sent: told from its messages, and from its bill where they are not all.

A bill says how many tokens were sent, so what each message weighs is told from how the sums grow, and the
system prompt and the tools, which logs do not hold, are what the first bill has beyond its messages. It also
says how much of that the provider's cache knew. Where this is less than what the calls before have left there,
something was another than the recording shows: a time in the system prompt, a tool, a reminder. Where it is
more, somebody else had sent the same. Both hold whatever the policy: both are taken from the bill, and counted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from foveate.cache.entries import write_entry
from foveate.cache.prompts import CachedPrompt
from foveate.cache.rules import CacheRules, CachingMode
from foveate.cache.simulate import ServedRequest, SimulatedCache
from foveate.errors import MalformedRequest
from foveate.replay.in_short import AbbreviatedPrompts
from foveate.replay.marking import client_breakpoints, rules_at
from foveate.replay.recordings import RecordedCall, RecordedMessage, Recording, RecordingSource
from foveate.replay.serving import (
    BreakpointPosition,
    client_positions,
    serve_positions,
    uses_breakpoint_lookback,
)
from foveate.replay.sizes import MessageSizer, divide_tokens, tokenizer_name
from foveate.replay.stretches import HistoryNode, PromptFront, append_node, drop_thinking
from foveate.replay.talks import ConversationState
from foveate.values import CacheUsage, Ttl

# A read that is off by no more than this share of the input, or these tokens, is the one that was expected.
_TOLERANCE = 0.005
_TOLERANCE_TOKENS = 64
# A sum that falls by more than this share cannot come from how texts were weighed.
_MIN_SHRINKAGE = 0.02

_NO_USAGE = CacheUsage()
# Agents that are known to put marks.
_SOURCES_WITH_BREAKPOINTS = (RecordingSource.CLAUDE_CODE, RecordingSource.PI)


class UsageFinding(StrEnum):
    """What only the bill of a call tells."""

    NOTHING = "nothing"
    PREFIX_CHANGED = "changed"  # less was read than had been left: from somewhere on, another prompt was sent
    ALREADY_CACHED = "kept"  # more was read: somebody else had sent the same


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExternalEntry:
    """What somebody else had left in the cache: up to a piece of the front, or up to a message."""

    piece: int = -1
    node: HistoryNode | None = None

    @property
    def nodes(self) -> tuple[HistoryNode, ...]:
        """The message at which it ends, where it is one."""
        return (self.node,) if self.node is not None else ()


# Made for every call, and a struct is made several times as fast as a dataclass.
class ReconstructedCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One call as it was sent.

    `ttls` are for how long the client asked to keep its system prompt and its messages; None where it put no
    marks. `expected` is what its bill would have been by all that was known before, and `told` what the bill
    then told beyond that; `recorded` is what the simulation makes of it with all of that. `reserve_tokens` is
    how long the answer may be, where the request says it.
    """

    call: RecordedCall
    rules: CacheRules
    front: PromptFront
    last_node: HistoryNode
    ttls: tuple[Ttl, Ttl] | None
    output_tokens: int
    expected: CacheUsage = _NO_USAGE
    recorded: CacheUsage = _NO_USAGE
    finding: UsageFinding = UsageFinding.NOTHING
    external_entry: ExternalEntry | None = None
    reserve_tokens: int = 0

    @property
    def full_nodes(self) -> tuple[HistoryNode, ...]:
        """The message at which what somebody else had left ends, where it is one."""
        return self.external_entry.nodes if self.external_entry is not None else ()

    @property
    def input_tokens(self) -> int:
        """All that was sent."""
        return self.front.tokens + self.last_node.end_tokens


def reconstruct_calls(recording: Recording) -> list[ReconstructedCall]:
    """What the calls of a recording sent, in their order."""
    return list(_CallReconstructor(recording).reconstruct())


def recorded_breakpoints(call: ReconstructedCall, prompt: CachedPrompt) -> dict[int, Ttl]:
    """The marks that the client itself had put into `prompt`, by the pieces that they stand on."""
    if call.ttls is None or call.rules.caching is CachingMode.AUTOMATIC:
        return {}
    front_ttl, tail_ttl = call.ttls
    breakpoints = client_breakpoints(prompt, call.front, call.last_node, front_ttl=front_ttl, tail_ttl=tail_ttl)
    if call.external_entry is not None:  # an entry that was read is one that a mark has found
        breakpoints |= _external_entry_breakpoint(prompt, call.front, call.external_entry, call.ttls)
    return breakpoints


def _external_entry_breakpoint(
    prompt: CachedPrompt, front: PromptFront, external_entry: ExternalEntry, ttls: tuple[Ttl, Ttl]
) -> dict[int, Ttl]:
    if external_entry.node is None:
        return {external_entry.piece: ttls[0]}
    key = front.key + external_entry.node.key
    return {at: ttls[1] for at, prefix_key in enumerate(prompt.keys or ()) if prefix_key == key}


def recorded_positions(call: ReconstructedCall) -> list[BreakpointPosition]:
    """The same marks, where they are looked for on the way back."""
    if call.ttls is None:
        return []
    front_ttl, tail_ttl = call.ttls
    positions = client_positions(call.front, call.last_node, front_ttl=front_ttl, tail_ttl=tail_ttl)
    external_entry = call.external_entry
    if external_entry is not None and external_entry.node is None:
        positions.append(BreakpointPosition(None, external_entry.piece, front_ttl))
    elif (
        external_entry is not None
        and external_entry.node is not None
        and external_entry.node.pieces
        and call.last_node.descends_from(external_entry.node)
    ):
        positions.append(BreakpointPosition(external_entry.node, len(external_entry.node.pieces) - 1, tail_ttl))
    return positions


def add_external_entry(cache: SimulatedCache, sent: ReconstructedCall) -> SimulatedCache:
    """`cache` with what somebody else had left there: it would have been there whatever the policy."""
    external_entry = sent.external_entry
    if external_entry is None or not sent.rules.ttls:
        return cache
    if external_entry.node is not None:
        key, tokens = (
            sent.front.key + external_entry.node.key,
            sent.front.tokens + external_entry.node.end_tokens,
        )
    else:
        key, tokens = sent.front.keys[external_entry.piece], sent.front.end_tokens(external_entry.piece)
    at, ttl = sent.call.at, sent.rules.ttls[0]
    return SimulatedCache(
        cache.entries.with_changes({key: write_entry(tokens, ttl, at=at, readable_at=at)}, at=at)
    )


def serve_call(
    cache: SimulatedCache, sent: ReconstructedCall, prompt: CachedPrompt, breakpoints: Mapping[int, Ttl]
) -> ServedRequest:
    """A call as it is billed, sent as `prompt` with these marks."""
    call = sent.call
    return add_external_entry(cache, sent).serve_with_breakpoints(
        prompt, breakpoints, sent.rules, at=call.at, response_at=call.response_at
    )


def serve_call_by_lookback(
    cache: SimulatedCache, sent: ReconstructedCall, positions: Iterable[BreakpointPosition]
) -> ServedRequest:
    """The same with marks that are looked for on the way back."""
    call, with_external = sent.call, add_external_entry(cache, sent)
    return serve_positions(
        with_external,
        sent.front,
        sent.last_node,
        positions,
        sent.rules,
        at=call.at,
        response_at=call.response_at,
    )


class _CallReconstructor:
    """Goes through the calls of a recording, and keeps beside what they leave in the provider's cache."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._cache = SimulatedCache()
        self._prompts = AbbreviatedPrompts()
        self._sizers: dict[str, MessageSizer] = {}
        # By tokenizer and message, whose sizes are those of that tokenizer.
        self._conversations: dict[tuple[str, int], ConversationState] = {}
        self._latest_conversations: dict[tuple[str, str], ConversationState] = {}

    def reconstruct(self) -> Iterator[ReconstructedCall]:
        """Each call as it was sent."""
        return map(self._reconstruct_call, self._recording.calls)

    def _reconstruct_call(self, call: RecordedCall) -> ReconstructedCall:
        rules = rules_at(call.model, call.at)
        tokenizer = tokenizer_name(call.model)
        sizer = self._sizers.get(tokenizer)
        if sizer is None:
            sizer = self._sizers[tokenizer] = MessageSizer(call.model, self._recording.format)
        conversation, new = self._find_conversation(call, tokenizer)
        is_first = not conversation.nodes
        _apply_envelope(conversation, call, sizer)
        last = _place_messages(call, conversation, new, sizer, rules)
        sent = ReconstructedCall(
            call=call,
            rules=rules,
            front=conversation.current_front(call.model, has_thinking=call.has_thinking),
            last_node=last,
            ttls=_client_ttls(call, conversation, rules, self._recording.source),
            output_tokens=call.usage.output_tokens
            if call.usage is not None
            else sizer.count_message(call.response),
            reserve_tokens=conversation.reserve_tokens,
        )
        served = self._serve(sent)
        expected, finding = served.usage, UsageFinding.NOTHING
        if call.usage is not None and sent.ttls is not None and rules.caching is not CachingMode.NONE:
            sent, served = self._apply_usage(sent, served, conversation, call.usage.cache)
            finding = sent.finding
            if is_first:  # what sessions before it have left is nobody's surprise
                finding, expected = UsageFinding.NOTHING, served.usage
        self._cache = served.cache
        reconstructed = replace(sent, expected=expected, recorded=served.usage, finding=finding)
        self._prompts.record_sent(reconstructed)
        return reconstructed

    def _find_conversation(
        self, call: RecordedCall, tokenizer: str
    ) -> tuple[ConversationState, list[RecordedMessage]]:
        """The conversation that a call goes on with, and its messages that are new."""
        new: list[RecordedMessage] = []
        message: RecordedMessage | None = call.last_message
        while message is not None and (tokenizer, id(message)) not in self._conversations:
            new.append(message)
            message = message.previous
        new.reverse()
        name = call.conversation, call.model
        if message is not None:
            conversation = self._conversations[tokenizer, id(message)]
        else:
            conversation = ConversationState(call.conversation, call.id)
            conversation.hidden_tokens = self._recording.hidden_tokens
            if name in self._latest_conversations:
                conversation.copy_front_from(self._latest_conversations[name])
        self._latest_conversations[name] = conversation
        self._conversations.update(((tokenizer, id(said)), conversation) for said in new)
        return conversation, new

    def _serve(self, sent: ReconstructedCall) -> ServedRequest:
        if uses_breakpoint_lookback(sent.rules):
            return serve_call_by_lookback(self._cache, sent, recorded_positions(sent))
        prompt = self._prompts.build(sent)
        return serve_call(self._cache, sent, prompt, recorded_breakpoints(sent, prompt))

    def _apply_usage(
        self, sent: ReconstructedCall, served: ServedRequest, conversation: ConversationState, usage: CacheUsage
    ) -> tuple[ReconstructedCall, ServedRequest]:
        """The same, with what only the bill tells."""
        difference = usage.read - served.usage.read
        tolerance = tolerance_tokens(usage, sent.rules)
        if abs(difference) <= tolerance:
            return sent, served
        if difference < 0:
            sent = _apply_prefix_change(sent, conversation, usage.read, tolerance)
            return sent, self._serve(sent)
        with_entry = replace(
            _apply_external_entry(sent, conversation, usage.read, tolerance),
            finding=UsageFinding.ALREADY_CACHED,
        )
        served_with_entry = self._serve(with_entry)
        is_nearer = abs(usage.read - served_with_entry.usage.read) < difference
        return (with_entry, served_with_entry) if is_nearer else (sent, served)


def tolerance_tokens(usage: CacheUsage, rules: CacheRules) -> int:
    """By how many tokens a read may be off and still be the one that was billed."""
    return max(int(_TOLERANCE * usage.input_tokens), _TOLERANCE_TOKENS, rules.step_tokens)


def _apply_prefix_change(
    sent: ReconstructedCall, conversation: ConversationState, read: int, tolerance: int
) -> ReconstructedCall:
    """What was sent, if it was another prompt from where the bill stopped reading."""
    last, front = sent.last_node, sent.front.tokens
    if read <= tolerance:
        conversation.record_change(after_tokens=0)
    elif read < front - tolerance:
        conversation.record_change(after_tokens=conversation.find_or_add_end(read, tolerance))
    elif read <= front + tolerance:
        conversation.record_change()
    else:
        last = conversation.rewrite(last, last.nearest(read - front))
    new_front = conversation.current_front(sent.call.model, has_thinking=sent.call.has_thinking)
    changed = replace(sent, front=new_front, last_node=last, finding=UsageFinding.PREFIX_CHANGED)
    # It may be the first time that a bill shows this end of the system prompt.
    return _apply_external_entry(changed, conversation, read, tolerance) if read > tolerance else changed


def _apply_external_entry(
    sent: ReconstructedCall, conversation: ConversationState, read: int, tolerance: int
) -> ReconstructedCall:
    """What was sent, with the entry that the bill read and no call before had left."""
    front = sent.front
    if read > front.tokens + tolerance:
        node = sent.last_node.nearest(read - front.tokens)
        return replace(sent, external_entry=ExternalEntry(node=node)) if node is not None else sent
    piece = len(front.pieces) - 1
    if read < front.tokens - tolerance:
        end = conversation.find_or_add_end(read, tolerance)
        front = conversation.current_front(sent.call.model, has_thinking=sent.call.has_thinking)
        piece = next((at for at in range(len(front.pieces)) if front.end_tokens(at) >= end), piece)
    return replace(sent, front=front, external_entry=ExternalEntry(piece=piece)) if piece >= 0 else sent


def _apply_envelope(conversation: ConversationState, call: RecordedCall, sizer: MessageSizer) -> None:
    """Take over what was recorded of a call beside its messages."""
    if not call.envelope or conversation.envelope == call.envelope:
        return
    try:
        front = sizer.size_front(call.envelope)
    except MalformedRequest:
        return
    conversation.set_recorded_front(call.envelope, front.pieces, front.breakpoints)
    conversation.reserve_tokens = front.reserve_tokens


def _client_ttls(
    call: RecordedCall, conversation: ConversationState, rules: CacheRules, source: RecordingSource
) -> tuple[Ttl, Ttl] | None:
    """For how long a client asked to keep its system prompt and its messages; None where it did not."""
    default_ttl = rules.ttls[0] if rules.ttls else Ttl.FIVE_MINUTES
    usage = call.usage.cache if call.usage is not None else None
    if usage is not None and rules.caching is CachingMode.BREAKPOINTS:
        is_long_enough = usage.input_tokens >= rules.minimum_tokens
        if is_long_enough and not (usage.read or usage.written_5m or usage.written_1h):
            return None
        if usage.written_1h:
            conversation.ttls = Ttl.ONE_HOUR, Ttl.FIVE_MINUTES if usage.written_5m else Ttl.ONE_HOUR
        elif usage.written_5m:
            conversation.ttls = default_ttl, default_ttl
    if (
        usage is None
        and source not in _SOURCES_WITH_BREAKPOINTS
        and not conversation.has_recorded_breakpoints
        and call.breakpoint_ttl is None
    ):
        return None  # nothing says that there were marks
    requested = (
        call.breakpoint_ttl
        if call.breakpoint_ttl is not None and call.breakpoint_ttl in rules.ttls
        else default_ttl
    )
    return conversation.ttls or (requested, requested)


def _place_messages(
    call: RecordedCall,
    conversation: ConversationState,
    new: Sequence[RecordedMessage],
    sizer: MessageSizer,
    rules: CacheRules,
) -> HistoryNode:
    """The last message of a call in its place, those before it that are new too."""
    first = new[0] if new else call.last_message
    previous = conversation.nodes.get(id(first.previous)) if new and first.previous is not None else None
    if not new:
        previous = conversation.nodes[id(call.last_message)]
    messages = [sizer.size_message(recorded) for recorded in new]
    turn_starts = [at for at, message in enumerate(messages) if message.opens_turn(new[at].role)]
    last_turn_start = turn_starts[-1] if turn_starts and rules.drops_thinking else 0
    if turn_starts and rules.drops_thinking and previous is not None:
        previous = drop_thinking(previous)
    messages = [
        message.without_thinking() if at < last_turn_start else message for at, message in enumerate(messages)
    ]
    if call.usage is None:
        sizes = [sizer.count_message(recorded.raw) for recorded in new]
    else:
        # What stands before the messages is told from what they weigh: so these are counted well, once.
        count_exactly = previous is None and conversation.hidden_tokens is None
        weights = [
            sizer.count_message(recorded.raw) if count_exactly else message.tokens
            for recorded, message in zip(new, messages, strict=True)
        ]
        new_tokens = _measure_new_tokens(call.usage.cache, conversation, previous, weights)
        if new_tokens < 0 and previous is not None:
            previous, new_tokens = _shrink_history(call.usage.cache, conversation, previous, sum(weights))
        sizes = divide_tokens(max(new_tokens, 0), weights)
    for recorded, message, size in zip(new, messages, sizes, strict=True):
        previous = append_node(previous, message.pieces(size, rules), message=recorded, role=recorded.role)
        conversation.nodes[id(recorded)] = previous
    assert previous is not None
    return previous


def _measure_new_tokens(
    usage: CacheUsage, conversation: ConversationState, previous: HistoryNode | None, weights: Sequence[int]
) -> int:
    """How many tokens the new messages have; of a first call, what stands before them is told too."""
    total = usage.input_tokens
    if not conversation.nodes and conversation.is_front_recorded:
        conversation.scale_front(total / max(conversation.front_tokens + sum(weights), 1))
    elif previous is None and not conversation.is_front_recorded and conversation.hidden_tokens is None:
        hidden_tokens = max(total - sum(weights), 0)
        # What a first call reads is mostly the system prompt, and its sum is surer than a difference.
        is_near = abs(usage.read - hidden_tokens) <= _MIN_SHRINKAGE * total or len(weights) == 1
        if (
            usage.read
            and usage.read < total
            and is_near
            and usage.read > hidden_tokens - _MIN_SHRINKAGE * total
        ):
            hidden_tokens = usage.read
        conversation.hidden_tokens = hidden_tokens
    return total - conversation.front_tokens - (previous.end_tokens if previous is not None else 0)


def _shrink_history(
    usage: CacheUsage, conversation: ConversationState, previous: HistoryNode, new_tokens: int
) -> tuple[HistoryNode, int]:
    """The history behind which new messages stand, and how many tokens these have, where the sum has fallen.

    Agents leave out old results of tools without a word in their logs. What the bill still read is what stayed.
    """
    total, front = usage.input_tokens, conversation.front_tokens
    known = front + previous.end_tokens
    if known - total <= _MIN_SHRINKAGE * total:
        return previous, 0
    if not conversation.is_front_recorded and total < front + new_tokens:  # not even without any history
        conversation.replace_hidden_front(max(total - previous.end_tokens - new_tokens, 0))
        return previous, max(total - conversation.front_tokens - previous.end_tokens, 0)
    keep = previous.last_within(max(usage.read - front, 0))
    kept_tokens = keep.end_tokens if keep is not None else 0
    remaining = max(total - front - kept_tokens - new_tokens, 0)
    scale = remaining / (previous.end_tokens - kept_tokens) if previous.end_tokens > kept_tokens else 1.0
    after = conversation.rewrite(previous, keep, scale)
    return after, max(total - front - after.end_tokens, 0)
