"""Traces: what was done to each request, saved in batches after the response, and what fills its window.

Sizes of messages are noted with the parsed history, so that a session that grows by a turn measures one turn.
The parts of a window add up to its token count, however that was made.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from foveate import errors, formats
from foveate.engine.background.debouncer import Debouncer
from foveate.engine.exchange import Exchange
from foveate.engine.observer import SessionCacheMiss
from foveate.engine.redaction import redact_keys
from foveate.engine.request import AppliedEdit, IncomingRequest, StepFailure, UpstreamRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.steps import SECTIONS, SENT_MESSAGES
from foveate.errors import FoveateError, StoreUnavailable
from foveate.formats.blocks import get_cached_blocks
from foveate.model import (
    Area,
    Block,
    CacheBreakpoint,
    Edit,
    InsertParts,
    Place,
    RemoveBreakpoint,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    Request,
    SetParameter,
)
from foveate.session.traces import CacheMiss, Trace, TracedEdit, TraceStore, WindowSection
from foveate.tokens import RequestCounter

_LOG = logging.getLogger(__name__)

SYSTEM = "system"
TOOLS = "tools"
SUMMARY = "summary"
USER = "user"
MODEL = "assistant"
THINKING = "thinking"
RESULTS = "tool results"
MEDIA = "images and files"
_MESSAGE_PARTS = (USER, MODEL, THINKING, RESULTS, MEDIA, SYSTEM)
_SYSTEM_INDEX = _MESSAGE_PARTS.index(SYSTEM)
_NO_SIZES = (0.0,) * len(_MESSAGE_PARTS)
_BYTES_PER_TOKEN = 4
# The size of an image says nothing about its tokens, of which it has about this many at most.
_MAX_MEDIA_BYTES = 1_600 * _BYTES_PER_TOKEN

_Sizes = tuple[float, ...]
SAVE_INTERVAL_SECONDS = 0.25
MAX_WAITING, MAX_WAITING_BYTES = 4_096, 64 * 1024 * 1024
"""Limits of traces that wait for a slow store; beyond these, traces are dropped."""
MAX_EDITS = 60
"""Edits beyond this number are only counted."""


def break_down_window(context: RequestContext) -> tuple[WindowSection, ...]:
    """The parts of the request as sent, in the order in which a model reads them, without empty ones.

    Empty if the request was not counted or not parsed.

    Raises:
        MalformedRequest: a message cannot be parsed.
    """
    history = context.sent_history
    if context.count.total is None or history is None:
        return ()
    request, counter = context.request, context.counter
    message_sizes = list(_measure_messages(request, history, counter))
    system, tools = _measure_envelope(request, history, counter)
    if history.leading_system_messages:
        system += counter.tally_head(request, history).tokens  # the system messages that a chat begins with
    system += message_sizes[_SYSTEM_INDEX]
    injected_before, injected_after = _measure_injected(context)
    summary = min(context.compaction.tokens_after, message_sizes[0]) if context.compaction is not None else 0.0
    message_sizes[0] = max(0.0, message_sizes[0] - sum(injected_after.values()) - summary)
    sizes = [
        (TOOLS, tools),
        (SYSTEM, max(0.0, system - sum(injected_before.values()))),
        *injected_before.items(),
        (SUMMARY, summary),
        *zip(_MESSAGE_PARTS[:_SYSTEM_INDEX], message_sizes, strict=False),
        *injected_after.items(),
    ]
    return _round_to_total(sizes, context.count.total.tokens)


def _measure_messages(request: Request, history: formats.MessageHistory, counter: RequestCounter) -> _Sizes:
    nodes = history.nodes
    known_nodes = len(nodes)
    while known_nodes and counter not in nodes[known_nodes - 1].memo:
        known_nodes -= 1
    sizes: _Sizes = nodes[known_nodes - 1].memo[counter] if known_nodes else _NO_SIZES
    for at in range(known_nodes, len(nodes)):
        blocks = get_cached_blocks(nodes[at])
        if blocks is None:
            blocks = formats.blocks_at(request, history, at)
        sizes = _add_message(sizes, blocks, _message_tokens(history, at, counter))
        nodes[at].memo[counter] = sizes
    return sizes


def _message_tokens(history: formats.MessageHistory, at: int, counter: RequestCounter) -> float:
    try:
        measured = counter.measured_at(history, at)
    except KeyError:  # not counted alone: it was edited since, or the provider has counted
        return len(history.nodes[at].raw) / _BYTES_PER_TOKEN
    return measured.tokens + measured.image_tokens + measured.thinking_tokens


def _add_message(sizes: _Sizes, blocks: Sequence[Block], tokens: float) -> _Sizes:
    if len(blocks) == 1:
        part = _MESSAGE_PARTS.index(_part_name(blocks[0].kind, blocks[0].role))
        return (*sizes[:part], sizes[part] + tokens, *sizes[part + 1 :])
    lengths = [0] * len(_MESSAGE_PARTS)
    for block in blocks:
        kind = _part_name(block.kind, block.role)
        length = (
            min(len(block.canonical_json), _MAX_MEDIA_BYTES) if kind == MEDIA else len(block.canonical_json)
        )
        lengths[_MESSAGE_PARTS.index(kind)] += length
    total = sum(lengths) or 1
    return tuple([size + tokens * length / total for size, length in zip(sizes, lengths, strict=True)])


@lru_cache(maxsize=256)
def _part_name(kind: str, role: str) -> str:
    lowered = kind.lower()
    if "result" in lowered or lowered.endswith("_output") or "functionresponse" in lowered.replace("_", ""):
        return RESULTS
    if "thinking" in lowered or "reasoning" in lowered:
        return THINKING
    if any(word in lowered for word in ("image", "document", "file", "inlinedata", "inline_data", "audio")):
        return MEDIA
    if role in ("system", "developer"):
        return SYSTEM
    return MODEL if role in ("assistant", "model") or "call" in lowered else USER


def _measure_envelope(
    request: Request, history: formats.MessageHistory, counter: RequestCounter
) -> tuple[float, float]:
    """The tokens of the system prompt and the tools, as counted, or by their lengths."""
    if counter.new_envelope_bytes(request):
        tools = sum(map(len, request.tools))
        system = len(request.body) - sum(map(len, request.messages)) - tools
        return system / _BYTES_PER_TOKEN, tools / _BYTES_PER_TOKEN
    try:
        loads = counter.tally_at(history, len(history.nodes) - 1).loaded_tools if history.nodes else ()
    except KeyError:
        loads = ()
    opening = counter.cached_envelope_count(request, history, loads)
    return opening.system.tokens + opening.system.image_tokens, opening.tools.tokens


def _measure_injected(context: RequestContext) -> tuple[dict[str, float], dict[str, float]]:
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for applied in context.applied_edits:
        edit = applied.edit
        if applied.step == SECTIONS and isinstance(edit, InsertParts):
            _, _, description = edit.reason.partition("section ")
            name = f"injected {description.partition(',')[0] or 'earlier'}"
            sizes = before if edit.place.area is Area.SYSTEM or edit.role == "system" else after
            sizes[name] = sizes.get(name, 0.0) - edit.saved_tokens
    return before, after


def _round_to_total(sizes: Sequence[tuple[str, float]], total_tokens: int) -> tuple[WindowSection, ...]:
    total = sum([size for _, size in sizes])
    if total <= 0:
        return ()
    rate, reached, rounded_tokens = total_tokens / total, 0.0, 0
    sections: list[WindowSection] = []
    for name, size in sizes:
        reached += size * rate
        if tokens := round(reached) - rounded_tokens:
            rounded_tokens += tokens
            sections.append(WindowSection(name, tokens))
    return tuple(sections)


class FinishedRequest(NamedTuple):
    """A finished request as far as it is traced, without its response, which may be long."""

    incoming: IncomingRequest
    context: RequestContext
    upstream_request: UpstreamRequest
    status: int
    received_at: float
    sent_at: float


class SaveTraces:
    """Saves traces of the requests of a process. For one event loop."""

    def __init__(
        self,
        traces: TraceStore,
        *,
        interval_seconds: float = SAVE_INTERVAL_SECONDS,
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._traces = traces
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0
        self._max_waiting = max_waiting
        self._waiting: list[FinishedRequest] = []
        self._misses: list[SessionCacheMiss] = []
        self._dropped = 0
        self._debouncer = Debouncer(self._write, interval_seconds)

    @property
    def dropped_count(self) -> int:
        """The number of traces that could not be saved: the store was unavailable or too slow."""
        return self._dropped

    def __call__(self, exchange: Exchange) -> None:
        finished = finished_request(exchange)
        if finished is None:
            return
        size = self._waiting_bytes + len(exchange.incoming.body)
        if self._waiting and (len(self._waiting) >= self._max_waiting or size > self._max_waiting_bytes):
            self._dropped += 1
            return
        self._waiting.append(finished)
        self._waiting_bytes = size
        self._debouncer.request()

    def add_cache_miss(self, miss: SessionCacheMiss) -> None:
        if len(self._misses) < self._max_waiting:
            self._misses.append(miss)
            self._debouncer.request()

    async def close(self) -> None:
        await self._debouncer.close()

    async def _write(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        misses, self._misses = self._misses, []
        if not waiting and not misses:
            return
        try:
            traces = await asyncio.to_thread(_make_traces, waiting)
            await self._traces.save(traces, [(miss.request_id, trace_cache_miss(miss)) for miss in misses])
        except StoreUnavailable as error:
            self._dropped += len(waiting)
            _LOG.warning("traces of %d requests could not be saved: %s", len(waiting), error)
        except Exception:  # noqa: BLE001 - nobody waits for it: whatever fails, requests go on
            self._dropped += len(waiting)
            _LOG.exception("traces could not be saved")


def finished_request(exchange: Exchange) -> FinishedRequest | None:
    """None if the exchange was not parsed or not sent."""
    if exchange.context is None or exchange.is_unsent:
        return None
    return FinishedRequest(
        incoming=exchange.incoming,
        context=exchange.context,
        upstream_request=exchange.upstream_request,
        status=exchange.status,
        received_at=exchange.received_at,
        sent_at=exchange.sent_at,
    )


def _make_traces(waiting: Sequence[FinishedRequest]) -> list[Trace]:
    return [make_trace(finished) for finished in waiting]


def make_trace(finished: FinishedRequest) -> Trace:
    incoming, context, upstream_request = finished.incoming, finished.context, finished.upstream_request
    applied_edits = upstream_request.applied_edits
    count = context.count.total
    return Trace(
        id=incoming.id,
        agent=incoming.agent,
        session_id=context.session_id,
        provider=incoming.provider,
        model=context.model,
        at=finished.sent_at,
        status=finished.status,
        tokens=None if count is None else count.tokens,
        exact=count is not None and count.exact,
        window_tokens=context.window_tokens,
        reserved_tokens=context.output_reserve_tokens,
        added_seconds=max(0.0, finished.sent_at - finished.received_at),
        sections=_window_sections(context),
        edits=tuple(trace_edits(applied_edits[:MAX_EDITS])),
        edits_left_out=max(0, len(applied_edits) - MAX_EDITS),
        problems=tuple(_redact_problem(problem) for problem in upstream_request.problems[:MAX_EDITS]),
        compaction_id=context.compaction.id if context.compaction is not None else None,
    )


def _window_sections(context: RequestContext) -> tuple[WindowSection, ...]:
    try:
        return break_down_window(context)
    except FoveateError:  # a request that cannot be parsed was sent as it is
        return ()


def trace_edits(applied_edits: Iterable[AppliedEdit]) -> Iterable[TracedEdit]:
    """Describe edits: what each does and where, never the text it writes."""
    for applied in applied_edits:
        action, place = _describe_edit(applied.edit)
        yield TracedEdit(
            step=applied.step,
            does=action,
            place=place,
            reason=applied.edit.reason,
            saved_tokens=applied.edit.saved_tokens,
        )


def trace_cache_miss(miss: SessionCacheMiss) -> CacheMiss:
    verdict = miss.verdict
    return CacheMiss(
        cause=str(verdict.cause),
        where="" if verdict.place is None else _describe_place(verdict.place),
        lost_tokens=verdict.lost_tokens,
        lost_dollars=verdict.lost_dollars,
        is_planned=miss.is_planned,
    )


def _describe_edit(edit: Edit) -> tuple[str, str]:
    match edit:
        case CacheBreakpoint():
            return f"mark {edit.ttl}" if edit.ttl is not None else "mark", _describe_place(edit.place)
        case RemoveBreakpoint():
            return "unmark", _describe_place(edit.place)
        case ReplaceText():
            return "cut", _describe_place(edit.place)
        case ReplaceMessages():
            last = edit.end - 1
            action = "drop" if not edit.messages else "replace" if last >= edit.start else "insert"
            return action, f"messages[{edit.start}]" if last <= edit.start else f"messages[{edit.start}-{last}]"
        case InsertParts():
            return "insert", _describe_place(edit.place)
        case ReorderTools():
            return "reorder", "tools"
        case SetParameter():
            return "set", ".".join(edit.path)


def _describe_place(place: Place) -> str:
    block = "" if place.block is None else f" block {place.block}"
    return f"{place.area}[{place.index}]{block}"


def _redact_problem(problem: StepFailure) -> tuple[str, str]:
    """Describe a problem; the message of an error that is not ours may contain text of the request."""
    kind, colon, _ = problem.reason.partition(": ")
    is_error = bool(colon) and kind.isidentifier() and kind[0].isupper()
    return problem.step, kind if is_error and not hasattr(errors, kind) else redact_keys(problem.reason)


class KeepSentMessages:
    """Keeps the parsed messages once no step changes them: available now, expensive to find later."""

    name = SENT_MESSAGES

    async def apply(self, context: RequestContext) -> None:
        context.sent_history = formats.message_history(context.request)
