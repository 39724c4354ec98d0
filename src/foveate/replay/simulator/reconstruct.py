"""Reconstructs what each call of a recording sent, from its messages and its usage.

Usage tells how many tokens were sent. The size of each message follows from how the totals grow, and the size
of the unrecorded system prompt and tools is what the first total exceeds its messages by. Usage also tells
how much was read from the cache. If that is less than the earlier calls left there, the prompt was different
from the recording (a time in the system prompt, a tool, a reminder). If it is more, someone else had sent the
same. Both hold under any policy, so both are taken from the usage, and counted.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import Rates
from foveate.errors import MalformedRequest
from foveate.model import Area, CacheUsage, Format, Place, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import ServedRequest, SimulatedCache, write_entry
from foveate.replay.recording import RecordedCall, RecordedMessage, Recording, RecordingSource
from foveate.replay.simulator.message_sizes import MessageSizer, divide_tokens, tokenizer_name
from foveate.replay.simulator.prompts import (
    AbbreviatedPrompts,
    HistoryNode,
    SimulatedPreamble,
    append_node,
    build_preamble,
    client_breakpoints,
    drop_thinking,
    reattach_node,
    rules_at,
)

# Number of breakpoints in a hidden system prompt: more would leave none for the messages.
_MAX_ENDS = 2
_CONVERSATION_END = -1
# A read within this share of the input, or this many tokens, counts as expected.
_TOLERANCE = 0.005
_TOLERANCE_TOKENS = 64
# A total that falls by more than this share cannot be explained by estimation errors.
_MIN_SHRINKAGE = 0.02
_NO_USAGE = CacheUsage()
# Agents that are known to place breakpoints.
_SOURCES_WITH_BREAKPOINTS = (RecordingSource.CLAUDE_CODE, RecordingSource.PI)


class ConversationState:
    """Reconstructed state of one conversation.

    `hidden_tokens` are the tokens before its messages that are not recorded: system prompt and tools, and
    after the last of `ends` (sizes up to which usage showed a cache read) the unrecorded start of the first
    message. `nodes` are its messages by id.
    """

    def __init__(self, name: str, root: str) -> None:
        self.hidden_tokens: int | None = None
        self.ends: tuple[int, ...] = ()
        self.nodes: dict[int, HistoryNode] = {}
        self.ttls: tuple[Ttl, Ttl] | None = None
        self.envelope = b""
        self.reserve_tokens = 0
        self._recorded_pieces: Sequence[PromptPiece] = ()
        self._recorded_breakpoints: Sequence[int] = ()
        self._scale = 1.0
        self._name = name
        self._root = root
        # By number of tokens: how often the preamble changed after that many tokens.
        self._changes: dict[int, int] = {}
        self._settings_version = 0
        self._preambles: dict[tuple[str, bool], SimulatedPreamble] = {}

    def copy_preamble_from(self, other: "ConversationState") -> None:
        self._name, self.ends, self._changes = other._name, other.ends, dict(other._changes)
        self.ttls = other.ttls

    def set_recorded_preamble(
        self, envelope: bytes, pieces: Sequence[PromptPiece], breakpoints: Sequence[int]
    ) -> None:
        self.envelope, self._recorded_breakpoints = envelope, breakpoints
        self._recorded_pieces = _scale_pieces(pieces, self._scale)
        self._preambles = {}

    def scale_preamble(self, factor: float) -> None:
        """Scale the counted tokens of the preamble, so that they match the usage."""
        self._recorded_pieces, self._scale = _scale_pieces(self._recorded_pieces, factor), self._scale * factor
        self._preambles = {}

    @property
    def is_preamble_recorded(self) -> bool:
        return bool(self._recorded_pieces)

    @property
    def has_recorded_breakpoints(self) -> bool:
        return bool(self._recorded_breakpoints)

    @property
    def preamble_tokens(self) -> int:
        return (
            sum(piece.tokens for piece in self._recorded_pieces)
            if self._recorded_pieces
            else self.hidden_tokens or 0
        )

    def current_preamble(self, model: str, *, has_thinking: bool) -> SimulatedPreamble:
        preamble = self._preambles.get((model, has_thinking))
        if preamble is None:
            settings = repr((has_thinking, self._settings_version)).encode()
            preamble = (
                self._build_recorded_preamble(model, settings)
                if self._recorded_pieces
                else self._build_hidden_preamble(model, settings)
            )
            self._preambles[model, has_thinking] = preamble
        return preamble

    def record_change(self, *, after_tokens: int | None = None) -> None:
        """Record that the preamble changed after this many tokens; without a number, that all messages did."""
        if after_tokens is None:
            self._settings_version += 1
        else:
            self._changes[after_tokens] = self._changes.get(after_tokens, 0) + 1
        self._preambles = {}

    def replace_hidden_preamble(self, tokens: int) -> None:
        self.hidden_tokens = tokens
        self.ends = tuple(end for end in self.ends if end < tokens)
        self.record_change(after_tokens=0)

    def find_or_add_end(self, tokens: int, tolerance_tokens: int) -> int:
        ends = self._recorded_ends() if self._recorded_pieces else self.ends
        near = [end for end in ends if abs(end - tokens) <= tolerance_tokens]
        if near or self._recorded_pieces:
            return min(near or ends, key=lambda end: abs(end - tokens))
        self.ends = tuple(sorted((*self.ends, tokens))[-_MAX_ENDS:])
        self._preambles = {}
        return tokens

    def rewrite(self, last: HistoryNode, keep: HistoryNode | None, scale: float = 1.0) -> HistoryNode:
        """Rebuild the history after `keep` with different content, scaled in size."""
        previous = keep
        for number, node in enumerate(last.path(after=keep)):
            pieces = [replace(piece, tokens=round(piece.tokens * scale)) for piece in node.pieces]
            if not number and pieces:
                pieces[0] = replace(
                    pieces[0], digest=compute_digest(b"rewritten" + pieces[0].digest + node.key)
                )
            previous = reattach_node(previous, node, pieces)
            if node.message is not None:
                self.nodes[id(node.message)] = previous
        return previous if previous is not None else last

    def _recorded_ends(self) -> list[int]:
        ends, end = [], 0
        for piece in self._recorded_pieces:
            end += piece.tokens
            ends.append(end)
        return ends

    def _build_recorded_preamble(self, model: str, settings: bytes) -> SimulatedPreamble:
        changes = sorted(self._changes.items())
        pieces, start = [], 0
        for piece in self._recorded_pieces:
            earlier_changes = [change for change in changes if change[0] <= start]
            changed_digest = (
                compute_digest(piece.digest + repr(earlier_changes).encode())
                if earlier_changes
                else piece.digest
            )
            pieces.append(replace(piece, digest=changed_digest))
            start += piece.tokens
        return build_preamble(model, pieces, self._recorded_breakpoints, settings)

    def _build_hidden_preamble(self, model: str, settings: bytes) -> SimulatedPreamble:
        """The key of each piece does not depend on the other ends."""
        total_tokens = self.hidden_tokens or 0
        ends = [end for end in self.ends if end < total_tokens]
        pieces, keys = [], []
        cuts = [0, *ends, total_tokens] if total_tokens else [0]
        for part, (start, end) in enumerate(pairwise(cuts)):
            is_system = part < len(ends) or not ends
            key = self._preamble_key(model, end if end < total_tokens else _CONVERSATION_END, start)
            keys.append(key)
            pieces.append(
                PromptPiece(
                    digest=key,
                    tokens=end - start,
                    kind="text",
                    area=Area.SYSTEM if is_system else Area.MESSAGES,
                    place=Place(Area.SYSTEM, part) if is_system else Place(Area.MESSAGES, _CONVERSATION_END),
                    accepts_breakpoint=is_system,
                )
            )
        return SimulatedPreamble(
            model=model,
            pieces=tuple(pieces),
            keys=tuple(keys),
            key=compute_digest(self._preamble_key(model, _CONVERSATION_END, total_tokens) + settings),
            tokens=total_tokens,
            breakpoints=tuple(range(len(ends) or len(pieces))),
        )

    def _preamble_key(self, model: str, end: int, start: int) -> bytes:
        """The key of the preamble up to an end; that of the conversation end is unique to this conversation."""
        changes = sorted((after, times) for after, times in self._changes.items() if after <= start)
        root = self._root if end == _CONVERSATION_END else ""
        return compute_digest(repr((model, self._name, end, root, changes)).encode("utf-8", "replace"))


def _scale_pieces(pieces: Sequence[PromptPiece], factor: float) -> Sequence[PromptPiece]:
    return [replace(piece, tokens=round(piece.tokens * factor)) for piece in pieces]


class UsageFinding(StrEnum):
    """Findings that only the usage of a call shows."""

    NOTHING = "nothing"
    PREFIX_CHANGED = "changed"  # less was read than expected: the prompt was different from some point on
    ALREADY_CACHED = "kept"  # more was read: someone else had sent the same


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExternalEntry:
    """A cache entry left by someone else: up to a piece of the preamble, or up to a message."""

    piece: int = -1
    node: HistoryNode | None = None

    @property
    def nodes(self) -> tuple[HistoryNode, ...]:
        return (self.node,) if self.node is not None else ()


# A struct, since one is created for every call, and structs are created several times as fast as dataclasses.
class ReconstructedCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One call as it was sent.

    `ttls` are the TTLs of the client's breakpoints in the system prompt and in messages; None without
    breakpoints. `expected` is the simulated usage before the recorded one was considered, `finding` what that
    showed, and `recorded` the simulated usage with it. `reserve_tokens` is the maximum output, if the request
    sets it.
    """

    call: RecordedCall
    rules: CacheRules
    preamble: SimulatedPreamble
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
        return self.external_entry.nodes if self.external_entry is not None else ()

    @property
    def input_tokens(self) -> int:
        return self.preamble.tokens + self.last_node.end_tokens


def reconstruct_calls(recording: Recording) -> list[ReconstructedCall]:
    return list(_CallReconstructor(recording).reconstruct())


def recorded_breakpoints(call: ReconstructedCall, prompt: CachedPrompt) -> dict[int, Ttl]:
    """The client's own breakpoints in `prompt`, by piece."""
    if call.ttls is None or call.rules.caching is CachingMode.AUTOMATIC:
        return {}
    preamble_ttl, tail_ttl = call.ttls
    breakpoints = client_breakpoints(
        prompt, call.preamble, call.last_node, preamble_ttl=preamble_ttl, tail_ttl=tail_ttl
    )
    if call.external_entry is not None:  # an entry that was read must have been found by a breakpoint
        breakpoints |= _external_entry_breakpoint(prompt, call.preamble, call.external_entry, call.ttls)
    return breakpoints


def _external_entry_breakpoint(
    prompt: CachedPrompt, preamble: SimulatedPreamble, external_entry: ExternalEntry, ttls: tuple[Ttl, Ttl]
) -> dict[int, Ttl]:
    if external_entry.node is None:
        return {external_entry.piece: ttls[0]}
    key = preamble.key + external_entry.node.key
    return {at: ttls[1] for at, prefix_key in enumerate(prompt.keys or ()) if prefix_key == key}


def add_external_entry(cache: SimulatedCache, sent_call: ReconstructedCall) -> SimulatedCache:
    """Add the external entry to `cache`: it would exist under any policy."""
    external_entry = sent_call.external_entry
    if external_entry is None or not sent_call.rules.ttls:
        return cache
    if external_entry.node is not None:
        key, tokens = (
            sent_call.preamble.key + external_entry.node.key,
            sent_call.preamble.tokens + external_entry.node.end_tokens,
        )
    else:
        key, tokens = (
            sent_call.preamble.keys[external_entry.piece],
            sent_call.preamble.end_tokens(external_entry.piece),
        )
    at, ttl = sent_call.call.at, sent_call.rules.ttls[0]
    return SimulatedCache(
        cache.entries.with_changes({key: write_entry(tokens, ttl, at=at, readable_at=at)}, at=at)
    )


def serve_call(
    cache: SimulatedCache, sent_call: ReconstructedCall, prompt: CachedPrompt, breakpoints: Mapping[int, Ttl]
) -> ServedRequest:
    call = sent_call.call
    return add_external_entry(cache, sent_call).serve_with_breakpoints(
        prompt, breakpoints, sent_call.rules, at=call.at, response_at=call.response_at
    )


class _CallReconstructor:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._cache = SimulatedCache()
        self._prompts = AbbreviatedPrompts()
        self._sizers: dict[str, MessageSizer] = {}
        # By tokenizer and message, since sizes depend on the tokenizer.
        self._conversations: dict[tuple[str, int], ConversationState] = {}
        self._latest_conversations: dict[tuple[str, str], ConversationState] = {}

    def reconstruct(self) -> Iterator[ReconstructedCall]:
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
        sent_call = ReconstructedCall(
            call=call,
            rules=rules,
            preamble=conversation.current_preamble(call.model, has_thinking=call.has_thinking),
            last_node=last,
            ttls=_client_ttls(call, conversation, rules, self._recording.source),
            output_tokens=call.usage.output_tokens
            if call.usage is not None
            else sizer.count_message(call.response),
            reserve_tokens=conversation.reserve_tokens,
        )
        served = self._serve(sent_call)
        expected, finding = served.usage, UsageFinding.NOTHING
        if call.usage is not None and sent_call.ttls is not None and rules.caching is not CachingMode.NONE:
            sent_call, served = self._apply_usage(sent_call, served, conversation, call.usage.cache)
            finding = sent_call.finding
            if is_first:  # what earlier sessions left is not unexpected
                finding, expected = UsageFinding.NOTHING, served.usage
        self._cache = served.cache
        reconstructed = replace(sent_call, expected=expected, recorded=served.usage, finding=finding)
        self._prompts.record_sent(reconstructed)
        return reconstructed

    def _find_conversation(
        self, call: RecordedCall, tokenizer: str
    ) -> tuple[ConversationState, list[RecordedMessage]]:
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
                conversation.copy_preamble_from(self._latest_conversations[name])
        self._latest_conversations[name] = conversation
        self._conversations.update(((tokenizer, id(message)), conversation) for message in new)
        return conversation, new

    def _serve(self, sent_call: ReconstructedCall) -> ServedRequest:
        prompt = self._prompts.build(sent_call)
        return serve_call(self._cache, sent_call, prompt, recorded_breakpoints(sent_call, prompt))

    def _apply_usage(
        self,
        sent_call: ReconstructedCall,
        served: ServedRequest,
        conversation: ConversationState,
        usage: CacheUsage,
    ) -> tuple[ReconstructedCall, ServedRequest]:
        difference = usage.read - served.usage.read
        tolerance = tolerance_tokens(usage, sent_call.rules)
        if abs(difference) <= tolerance:
            return sent_call, served
        if difference < 0:
            sent_call = _apply_prefix_change(sent_call, conversation, usage.read, tolerance)
            return sent_call, self._serve(sent_call)
        with_entry = replace(
            _apply_external_entry(sent_call, conversation, usage.read, tolerance),
            finding=UsageFinding.ALREADY_CACHED,
        )
        served_with_entry = self._serve(with_entry)
        is_nearer = abs(usage.read - served_with_entry.usage.read) < difference
        return (with_entry, served_with_entry) if is_nearer else (sent_call, served)


def tolerance_tokens(usage: CacheUsage, rules: CacheRules) -> int:
    """Maximum difference between the simulated and the recorded read."""
    return max(int(_TOLERANCE * usage.input_tokens), _TOLERANCE_TOKENS, rules.step_tokens)


def _apply_prefix_change(
    sent_call: ReconstructedCall, conversation: ConversationState, read: int, tolerance: int
) -> ReconstructedCall:
    """The call with a prompt that differs from where the recorded read ended."""
    last, preamble = sent_call.last_node, sent_call.preamble.tokens
    if read <= tolerance:
        conversation.record_change(after_tokens=0)
    elif read < preamble - tolerance:
        conversation.record_change(after_tokens=conversation.find_or_add_end(read, tolerance))
    elif read <= preamble + tolerance:
        conversation.record_change()
    else:
        last = conversation.rewrite(last, last.nearest(read - preamble))
    new_preamble = conversation.current_preamble(sent_call.call.model, has_thinking=sent_call.call.has_thinking)
    changed = replace(sent_call, preamble=new_preamble, last_node=last, finding=UsageFinding.PREFIX_CHANGED)
    # This may be the first call whose usage shows this end of the system prompt.
    return _apply_external_entry(changed, conversation, read, tolerance) if read > tolerance else changed


def _apply_external_entry(
    sent_call: ReconstructedCall, conversation: ConversationState, read: int, tolerance: int
) -> ReconstructedCall:
    """The call with the entry that was read although no earlier call had left it."""
    preamble = sent_call.preamble
    if read > preamble.tokens + tolerance:
        node = sent_call.last_node.nearest(read - preamble.tokens)
        return replace(sent_call, external_entry=ExternalEntry(node=node)) if node is not None else sent_call
    piece = len(preamble.pieces) - 1
    if read < preamble.tokens - tolerance:
        end = conversation.find_or_add_end(read, tolerance)
        preamble = conversation.current_preamble(sent_call.call.model, has_thinking=sent_call.call.has_thinking)
        piece = next((at for at in range(len(preamble.pieces)) if preamble.end_tokens(at) >= end), piece)
    return (
        replace(sent_call, preamble=preamble, external_entry=ExternalEntry(piece=piece))
        if piece >= 0
        else sent_call
    )


def _apply_envelope(conversation: ConversationState, call: RecordedCall, sizer: MessageSizer) -> None:
    if not call.envelope or conversation.envelope == call.envelope:
        return
    try:
        preamble = sizer.size_preamble(call.envelope)
    except MalformedRequest:
        return
    conversation.set_recorded_preamble(call.envelope, preamble.pieces, preamble.breakpoints)
    conversation.reserve_tokens = preamble.reserve_tokens


def _client_ttls(
    call: RecordedCall, conversation: ConversationState, rules: CacheRules, source: RecordingSource
) -> tuple[Ttl, Ttl] | None:
    """The TTLs of the client's breakpoints in the system prompt and in messages; None without breakpoints."""
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
        return None  # nothing shows that there were breakpoints
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
        # The size of the hidden preamble is inferred from that of the messages, so these are counted exactly,
        # once.
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
    """The tokens of the new messages; on the first call, also infer the size of the hidden preamble."""
    total = usage.input_tokens
    if not conversation.nodes and conversation.is_preamble_recorded:
        conversation.scale_preamble(total / max(conversation.preamble_tokens + sum(weights), 1))
    elif previous is None and not conversation.is_preamble_recorded and conversation.hidden_tokens is None:
        hidden_tokens = max(total - sum(weights), 0)
        # The first call mostly reads the system prompt, and that number is more reliable than a difference.
        is_near = abs(usage.read - hidden_tokens) <= _MIN_SHRINKAGE * total or len(weights) == 1
        if (
            usage.read
            and usage.read < total
            and is_near
            and usage.read > hidden_tokens - _MIN_SHRINKAGE * total
        ):
            hidden_tokens = usage.read
        conversation.hidden_tokens = hidden_tokens
    return total - conversation.preamble_tokens - (previous.end_tokens if previous is not None else 0)


def _shrink_history(
    usage: CacheUsage, conversation: ConversationState, previous: HistoryNode, new_tokens: int
) -> tuple[HistoryNode, int]:
    """The history before the new messages, and the tokens of these, if the total has fallen.

    Agents drop old tool results without logging it. What was still read is what stayed.
    """
    total, preamble = usage.input_tokens, conversation.preamble_tokens
    known = preamble + previous.end_tokens
    if known - total <= _MIN_SHRINKAGE * total:
        return previous, 0
    if not conversation.is_preamble_recorded and total < preamble + new_tokens:  # not even without any history
        conversation.replace_hidden_preamble(max(total - previous.end_tokens - new_tokens, 0))
        return previous, max(total - conversation.preamble_tokens - previous.end_tokens, 0)
    keep = previous.last_within(max(usage.read - preamble, 0))
    kept_tokens = keep.end_tokens if keep is not None else 0
    remaining = max(total - preamble - kept_tokens - new_tokens, 0)
    scale = remaining / (previous.end_tokens - kept_tokens) if previous.end_tokens > kept_tokens else 1.0
    after = conversation.rewrite(previous, keep, scale)
    return after, max(total - preamble - after.end_tokens, 0)


def convert_to_model(
    calls: Sequence[ReconstructedCall], model: str, api_format: Format
) -> list[ReconstructedCall]:
    """Convert calls to another model, with each message scaled by the ratio of both token counts.

    The hidden preamble and responses are scaled by the overall ratio. If both models use the same tokenizer,
    all sizes stay.
    """
    return list(map(_ModelConverter(calls, model, api_format).convert, calls))


class _ModelConverter:
    def __init__(self, calls: Sequence[ReconstructedCall], model: str, api_format: Format) -> None:
        self._model = model
        self._api_format = api_format
        self._sizers: dict[str, MessageSizer] = {}
        self._ratios: dict[int, float] = {}
        self._converted_nodes: dict[int, tuple[HistoryNode, HistoryNode]] = {}
        self._converted_preambles: dict[int, tuple[SimulatedPreamble, SimulatedPreamble]] = {}
        self._overall_ratio = self._compute_overall_ratio(calls)

    def convert(self, call: ReconstructedCall) -> ReconstructedCall:
        recorded_model = call.call.model
        external_entry = call.external_entry
        if external_entry is not None and external_entry.node is not None:
            external_entry = ExternalEntry(node=self._convert_node(external_entry.node, recorded_model))
        return replace(
            call,
            call=dataclasses.replace(call.call, model=self._model),
            rules=rules_at(self._model, call.call.at),
            preamble=self._convert_preamble(call.preamble),
            last_node=self._convert_node(call.last_node, recorded_model),
            output_tokens=round(call.output_tokens * self._overall_ratio),
            external_entry=external_entry,
        )

    def _sizer(self, model: str) -> MessageSizer:
        name = tokenizer_name(model)
        if name not in self._sizers:
            self._sizers[name] = MessageSizer(model, self._api_format)
        return self._sizers[name]

    def _message_ratio(self, message: RecordedMessage, recorded_model: str) -> float:
        if tokenizer_name(recorded_model) == tokenizer_name(self._model):
            return 1.0
        known = self._ratios.get(id(message))
        if known is None:
            before, after = (
                self._sizer(model).count_message(message.raw) for model in (recorded_model, self._model)
            )
            known = self._ratios[id(message)] = after / before if before else 1.0
        return known

    def _compute_overall_ratio(self, calls: Sequence[ReconstructedCall]) -> float:
        seen: set[int] = set()
        before = after = 0.0
        for call in calls:
            node: HistoryNode | None = call.last_node
            while node is not None and node.message is not None and id(node.message) not in seen:
                seen.add(id(node.message))
                before += node.tokens
                after += node.tokens * self._message_ratio(node.message, call.call.model)
                node = node.previous
        return after / before if before else 1.0

    def _convert_node(self, last: HistoryNode, recorded_model: str) -> HistoryNode:
        new = []
        node: HistoryNode | None = last
        while node is not None and id(node) not in self._converted_nodes:
            new.append(node)
            node = node.previous
        previous = self._converted_nodes[id(node)][1] if node is not None else None
        for new_node in reversed(new):
            ratio = (
                self._message_ratio(new_node.message, recorded_model) if new_node.message is not None else 1.0
            )
            pieces = [replace(piece, tokens=round(piece.tokens * ratio)) for piece in new_node.pieces]
            previous = reattach_node(previous, new_node, pieces)
            self._converted_nodes[id(new_node)] = (
                new_node,
                previous,
            )  # holds the original node, so that its id cannot be reused
        assert previous is not None
        return previous

    def _convert_preamble(self, preamble: SimulatedPreamble) -> SimulatedPreamble:
        if id(preamble) not in self._converted_preambles:
            pieces = tuple(
                replace(piece, tokens=round(piece.tokens * self._overall_ratio)) for piece in preamble.pieces
            )
            tokens = sum(piece.tokens for piece in pieces)
            converted = dataclasses.replace(preamble, model=self._model, pieces=pieces, tokens=tokens)
            self._converted_preambles[id(preamble)] = preamble, converted
        return self._converted_preambles[id(preamble)][1]


def find_rates(book: PriceBook, call: ReconstructedCall) -> Rates | None:
    return book.rates(call.call.model, provider=call.rules.provider, at=call.call.at)
