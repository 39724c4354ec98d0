"""Run in which the gateway edits histories: it compacts heads and clears tool results when a policy says so.

A policy is asked at three moments: before a request is sent, after its response, and when the session is idle
and its cache entries are about to expire.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from foveate.budget.model_limits import find_context_window
from foveate.compaction.boundary import compaction_threshold_tokens, is_compaction_due
from foveate.compaction.edit_timing import Moment
from foveate.compaction.plan import CompactionOptions
from foveate.compaction.store import EditDecision
from foveate.model import Area, CacheUsage, Format, Place, ToolResult, Ttl
from foveate.prompt_cache.keepalive import MARGIN_SECONDS
from foveate.prompt_cache.placement.arrival_times import GapHistogram
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest, extend_key
from foveate.prompt_cache.simulator import CacheEntry, SimulatedCache
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY, AdaptiveRun
from foveate.replay.simulator.history_edits import MessageReader, SimulatedCompaction, simulate_compaction
from foveate.replay.simulator.prompts import (
    TOOL_RESULT_KINDS,
    HistoryNode,
    build_prompt,
    build_tail,
    reattach_node,
)
from foveate.replay.simulator.reconstruct import ExternalEntry, ReconstructedCall

_INSTRUCTION_PLACE = Place(Area.MESSAGES, -4, 0)
_TOOL_ROLE = "tool"


class SimulatedSummary(NamedTuple):
    """The call that writes the summary of a compaction.

    `edit` is the compaction, if it is made after the last call and runs are compared.
    """

    usage: CacheUsage
    output_tokens: int
    edit: "SimulatedEdit | None" = None


class SimulatedCall(NamedTuple):
    """The usage of one call, and the summaries that were written since the previous one.

    `edits` are those since the previous call, and after the response. `unedited_usage` is the usage without any
    edit, if there was one and runs are compared. A named tuple, since one is created for every call and policy.
    """

    usage: CacheUsage
    summaries: tuple[SimulatedSummary, ...] = ()
    edits: "tuple[SimulatedEdit, ...]" = ()
    unedited_usage: CacheUsage | None = None

    @property
    def tokens(self) -> int:
        return self.usage.input_tokens


class SentResult(NamedTuple):
    """A tool result in the sent history, as piece `piece` of `node`.

    `age_requests` is the number of requests that contained it before this one.
    """

    node: HistoryNode
    piece: int
    part: ToolResult
    tokens: int
    age_requests: int


class ClearedResult(NamedTuple):
    """A result whose text is replaced by a placeholder of `tokens` tokens."""

    result: SentResult
    tokens: int


class HistoryEdits(NamedTuple):
    """`decision` says why, if the edits were made because they pay."""

    compaction: SimulatedCompaction | None = None
    cleared: Sequence[ClearedResult] = ()
    decision: EditDecision | None = None


class SimulatedEdit(NamedTuple):
    """An edit that was made at the `request`th request of a conversation."""

    conversation: str
    request: int
    moment: Moment
    is_compaction: bool
    freed_tokens: int
    decision: EditDecision | None


NO_EDITS = HistoryEdits()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EditingMoment:
    """What a policy decides from.

    `call` is the request with all edits so far; at `EXPIRY`, the last one. `unedited` is the client's.
    `requests` counts those of the conversation, this one included. `first_requests` maps messages (by id) to
    the first request that contained them. `keep_alive_tokens` is what a planned keep-alive is expected to save.
    """

    moment: Moment
    at: float
    call: ReconstructedCall
    unedited: ReconstructedCall
    requests: int
    first_requests: Mapping[int, int]
    earlier_compaction: SimulatedCompaction | None
    responses_since_compaction: int | None
    window_tokens: int | None
    cache: SimulatedCache
    gaps: GapHistogram
    reader: MessageReader
    options: CompactionOptions
    history: HistoryNode  # the client's history without the cleared results
    keep_alive_tokens: float = 0.0

    def plan_compaction(self, trigger_tokens: int) -> SimulatedCompaction | None:
        return simulate_compaction(
            self.history,
            self.reader,
            trigger_tokens=trigger_tokens,
            options=self.options,
            earlier=self.earlier_compaction,
            drops_thinking=self.call.rules.binds_thinking,
        )

    def window_threshold_tokens(self) -> int | None:
        """The size from which on the configured share of the window is exceeded; None without a window."""
        if self.window_tokens is None:
            return None
        return compaction_threshold_tokens(
            self.window_tokens, self.call.reserve_tokens, self.options.compact_at_pct
        )

    def exceeds_window(self) -> bool:
        return self.window_tokens is not None and self.call.input_tokens > self.window_tokens

    def longest_entry(self) -> CacheEntry | None:
        return find_longest_entry(self.call, self.cache, self.at)

    def results(self) -> list[SentResult]:
        """The tool results of the sent history, in order, without cleared ones."""
        results = []
        for node in self.call.last_node.path():
            pieces = _result_pieces(node)
            if not pieces or node.message is None:
                continue
            parts = [part for part in self.reader.read(node).parts if isinstance(part, ToolResult)]
            if len(parts) != len(pieces):
                continue
            first = self.first_requests.get(id(node.message), self.requests)
            for piece, part in zip(pieces, parts, strict=True):
                if node.pieces[piece].kind != _CLEARED_KIND:
                    results.append(
                        SentResult(node, piece, part, node.pieces[piece].tokens, self.requests - first)
                    )
        return results


class EditPolicy(Protocol):
    def decide(self, moment: EditingMoment) -> HistoryEdits:
        """Results are cleared only at `ARRIVAL`."""


class WindowTrigger:
    """Compacts after a request that exceeds a share of the window, and before one that exceeds the window."""

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        threshold = moment.window_threshold_tokens()
        if not threshold:
            return NO_EDITS
        return decide_by_threshold(moment, threshold)


def decide_by_threshold(moment: EditingMoment, threshold_tokens: int) -> HistoryEdits:
    match moment.moment:
        case Moment.ARRIVAL if moment.exceeds_window():
            return HistoryEdits(moment.plan_compaction(threshold_tokens))
        case Moment.RESPONSE if is_compaction_due(
            moment.call.input_tokens,
            threshold_tokens=threshold_tokens,
            turns_since_compaction=moment.responses_since_compaction,
            min_turns_between=moment.options.min_turns_between,
        ):
            return HistoryEdits(moment.plan_compaction(threshold_tokens))
        case _:
            return NO_EDITS


def context_window_tokens(model: str, window_tokens: int | None) -> int | None:
    if window_tokens is not None:
        return window_tokens
    window = find_context_window(model)
    return window.tokens if window is not None else None


def find_longest_entry(call: ReconstructedCall, cache: SimulatedCache, at: float) -> CacheEntry | None:
    preamble = call.preamble
    node: HistoryNode | None = call.last_node
    while node is not None:
        for key in reversed(node.keys):
            entry = cache.entries.find(preamble.key + key)
            if entry is not None and entry.is_readable(at):
                return entry
        node = node.previous
    for key in reversed(preamble.keys):
        entry = cache.entries.find(key)
        if entry is not None and entry.is_readable(at):
            return entry
    return None


@dataclass(slots=True, eq=False)
class ConversationEdits:
    """The edits of one conversation so far.

    `cleared` maps messages (by id) to their cleared pieces and the tokens of the placeholders.
    """

    compactions: list[SimulatedCompaction] = field(default_factory=list)
    cleared: dict[int, dict[int, int]] = field(default_factory=dict)
    _views: dict[int, tuple[HistoryNode, HistoryNode]] = field(default_factory=dict)

    def record(self, edits: HistoryEdits) -> None:
        if edits.compaction is not None:
            self.compactions.append(edits.compaction)
        if edits.cleared:
            for result, tokens in edits.cleared:
                self.cleared.setdefault(id(result.node.message), {})[result.piece] = tokens
            # A view of a message stays valid if nothing before it, or in it, has changed.
            changed = {id(result.node.message) for result, _ in edits.cleared}
            depth = min(
                (view[0].depth for view in self._views.values() if id(view[0].message) in changed), default=0
            )
            self._views = {key: view for key, view in self._views.items() if view[0].depth < depth}

    def clear_history(self, last_node: HistoryNode) -> HistoryNode:
        if not self.cleared:
            return last_node
        new = []
        node: HistoryNode | None = last_node
        while node is not None and id(node) not in self._views:
            new.append(node)
            node = node.previous
        previous = self._views[id(node)][1] if node is not None else None
        for new_node in reversed(new):
            cleared = self.cleared.get(id(new_node.message))
            if cleared is None and previous is new_node.previous:
                previous = new_node
            else:
                pieces = [
                    _placeholder(piece, cleared[at]) if cleared is not None and at in cleared else piece
                    for at, piece in enumerate(new_node.pieces)
                ]
                previous = reattach_node(previous, new_node, pieces)
            # holds the original node, so that its id cannot be reused
            self._views[id(new_node)] = new_node, previous
        assert previous is not None
        return previous

    def apply_compaction(self, history: HistoryNode) -> tuple[SimulatedCompaction | None, HistoryNode]:
        for compaction in reversed(self.compactions):
            last_node = compaction.apply(history)
            if last_node is not None:
                return compaction, last_node
        return None, history


_CLEARED_KIND = "cleared"


def _placeholder(piece: PromptPiece, tokens: int) -> PromptPiece:
    return replace(piece, digest=compute_digest(b"cleared\0" + piece.digest), tokens=tokens, kind=_CLEARED_KIND)


def _result_pieces(node: HistoryNode) -> list[int]:
    is_tool = node.role == _TOOL_ROLE
    return [
        at
        for at, piece in enumerate(node.pieces)
        if is_tool or piece.kind in TOOL_RESULT_KINDS or piece.kind == _CLEARED_KIND
    ]


@dataclass(slots=True, eq=False)
class _Conversation:
    edits: ConversationEdits = field(default_factory=ConversationEdits)
    requests: int = 0
    responses_since_compaction: int = 0
    first_requests: dict[int, int] = field(default_factory=dict)
    last: "_SentCall | None" = None

    def add_request(self, call: ReconstructedCall) -> None:
        self.requests += 1
        node: HistoryNode | None = call.last_node
        while node is not None and id(node.message) not in self.first_requests:
            self.first_requests[id(node.message)] = self.requests
            node = node.previous


class _SentCall(NamedTuple):
    unedited: ReconstructedCall
    call: ReconstructedCall
    history: HistoryNode
    compaction: SimulatedCompaction | None
    prompt: CachedPrompt | None = None
    breakpoints: Mapping[int, Ttl] = {}


class EditingRun:
    """The gateway with a policy for edits. Other runs may share `adaptive`: the first edit forks it.

    With `compares`, no other run shares it, and it serves the unedited calls after the first edit.
    """

    def __init__(
        self,
        adaptive: AdaptiveRun,
        policy: EditPolicy,
        *,
        api_format: Format,
        window_tokens: int | None,
        options: CompactionOptions = DEFAULT_GATEWAY.compaction_options,
        reader: MessageReader | None = None,
        compares: bool = False,
    ) -> None:
        self._adaptive = self._unedited = adaptive
        self._has_edited = False
        self._compares = compares
        self._edits: list[SimulatedEdit] = []
        self._policy = policy
        self._reader = reader or MessageReader(api_format)
        self._window_tokens = window_tokens
        self._options = options
        self._conversations: dict[str, _Conversation] = {}

    @property
    def adaptive(self) -> AdaptiveRun:
        """The run that serves its calls; another one after the first edit."""
        return self._adaptive

    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        conversation = self._conversations.setdefault(call.call.conversation, _Conversation())
        summaries = list(self._act_before_expiry(conversation, until=call.call.at))
        conversation.add_request(call)
        sent = _apply_edits(conversation, call)
        edits = self._policy.decide(self._make_moment(Moment.ARRIVAL, conversation, sent, at=call.call.at))
        if edits.compaction is not None:
            prompt = build_prompt(
                build_tail(
                    sent.call.preamble,
                    sent.call.last_node,
                    lookback_positions=sent.call.rules.lookback_positions,
                ),
                sent.call.full_nodes,
            )
            self._record(Moment.ARRIVAL, conversation, sent, edits)
            summaries.append(self._serve_summary(sent._replace(prompt=prompt), edits.compaction))
            sent = _apply_edits(conversation, call)
            # What is left is written again anyway.
            moment = self._make_moment(Moment.ARRIVAL, conversation, sent, at=call.call.at)
            edits = self._policy.decide(moment)._replace(compaction=None)
        if edits.cleared:
            self._record(Moment.ARRIVAL, conversation, sent, edits)
            sent = _apply_edits(conversation, call)
        unedited = self._unedited.serve(call)[0].usage if self._compares and self._has_edited else None
        served, prompt, breakpoints = self._adaptive.serve(sent.call)
        sent = conversation.last = sent._replace(prompt=prompt, breakpoints=breakpoints)
        conversation.responses_since_compaction += 1
        after = max(call.call.at, call.call.response_at)
        summaries += self._compact(Moment.RESPONSE, conversation, sent, at=after)
        made, self._edits = tuple(self._edits), []
        return SimulatedCall(served.usage, tuple(summaries), made, unedited)

    def finish(self) -> Iterator[tuple[ReconstructedCall, SimulatedSummary]]:
        """The summaries that are written after the last call of each conversation, before its cache expires."""
        for conversation in self._conversations.values():
            if conversation.last is not None:
                for summary in self._act_before_expiry(conversation, until=float("inf")):
                    edit = self._edits.pop() if self._compares else None
                    yield conversation.last.unedited, summary._replace(edit=edit)

    def edits(self, conversation: str) -> ConversationEdits:
        return self._conversations[conversation].edits

    def _act_before_expiry(self, conversation: _Conversation, *, until: float) -> Iterator[SimulatedSummary]:
        """Let the policy act whenever no request arrives before the cache entries of the last one expire."""
        last = conversation.last
        if last is None or not conversation.responses_since_compaction:
            return
        now, expires_at = max(last.call.call.at, last.call.call.response_at), 0.0
        while True:
            entry = find_longest_entry(last.call, self._adaptive.cache, now)
            if entry is None or until <= entry.expires_at or entry.expires_at <= expires_at:
                return
            expires_at = entry.expires_at
            now = max(now, expires_at - MARGIN_SECONDS)
            summaries = list(self._compact(Moment.EXPIRY, conversation, last, at=now))
            yield from summaries
            if summaries:
                return
            self._adaptive.send_keep_alives(until=expires_at)

    def _compact(
        self, kind: Moment, conversation: _Conversation, sent: _SentCall, *, at: float
    ) -> Iterator[SimulatedSummary]:
        edits = self._policy.decide(self._make_moment(kind, conversation, sent, at=at))
        if edits.compaction is not None:
            self._record(kind, conversation, sent, edits)
            self._adaptive.forget_keep_alive(sent.call.call.conversation)
            yield self._serve_summary(sent, edits.compaction, at=at)

    def _make_moment(
        self, kind: Moment, conversation: _Conversation, sent: _SentCall, *, at: float
    ) -> EditingMoment:
        call = sent.call
        return EditingMoment(
            moment=kind,
            at=at,
            call=call,
            unedited=sent.unedited,
            requests=conversation.requests,
            first_requests=conversation.first_requests,
            earlier_compaction=sent.compaction,
            responses_since_compaction=conversation.responses_since_compaction
            if sent.compaction is not None
            else None,
            window_tokens=context_window_tokens(call.call.model, self._window_tokens),
            cache=self._adaptive.cache,
            gaps=self._adaptive.gaps(call.call.conversation),
            reader=self._reader,
            options=self._options,
            history=sent.history,
            keep_alive_tokens=self._adaptive.planned_keep_alive_tokens(call.call.conversation)
            if kind is Moment.EXPIRY
            else 0.0,
        )

    def _record(
        self, moment: Moment, conversation: _Conversation, sent: _SentCall, edits: HistoryEdits
    ) -> None:
        if not self._has_edited:
            self._adaptive, self._has_edited = self._adaptive.fork(), True
        conversation.edits.record(edits)
        if self._compares:
            edited = _apply_edits(conversation, sent.unedited)
            self._edits.append(
                SimulatedEdit(
                    sent.unedited.call.conversation,
                    conversation.requests,
                    moment,
                    edits.compaction is not None,
                    sent.call.input_tokens - edited.call.input_tokens,
                    edits.decision,
                )
            )
        if edits.compaction is not None:
            conversation.responses_since_compaction = 0

    def _serve_summary(
        self, sent: _SentCall, compaction: SimulatedCompaction, *, at: float | None = None
    ) -> SimulatedSummary:
        """Serve the request for a summary: the request as sent, read from the cache, and an instruction."""
        call, prompt = sent.call, sent.prompt
        assert prompt is not None
        piece = PromptPiece(
            digest=compaction.replacement.key,
            tokens=compaction.instruction_tokens,
            kind="text",
            area=Area.MESSAGES,
            place=_INSTRUCTION_PLACE,
        )
        key = call.preamble.key + extend_key(call.last_node.key, piece)
        summary_prompt = CachedPrompt(
            model=prompt.model, pieces=(*prompt.pieces, piece), keys=(*(prompt.keys or ()), key)
        )
        if at is None:
            at = max(call.call.at, call.call.response_at)
        served = self._adaptive.cache.serve_with_breakpoints(
            summary_prompt, sent.breakpoints, call.rules, at=at
        )
        self._adaptive.cache = served.cache
        return SimulatedSummary(served.usage, compaction.summary_tokens)


def _apply_edits(conversation: _Conversation, call: ReconstructedCall) -> _SentCall:
    history = conversation.edits.clear_history(call.last_node)
    compaction, last_node = conversation.edits.apply_compaction(history)
    if last_node is call.last_node:
        return _SentCall(call, call, history, None)
    edited = replace(call, last_node=last_node, external_entry=_preamble_entry_only(call))
    return _SentCall(call, edited, history, compaction)


def _preamble_entry_only(call: ReconstructedCall) -> ExternalEntry | None:
    """The external entry, unless it ends at a message, whose history now differs."""
    return call.external_entry if call.external_entry is not None and call.external_entry.node is None else None
