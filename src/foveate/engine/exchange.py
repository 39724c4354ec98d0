"""One call: what is sent, the answer as it passes, and what is made of both at the end.

An answer on its way back: it passes as it comes, and what it says of itself is read beside.

Cache breakpoints that a client has placed, for models that take none.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from foveate import formats
from foveate.compaction.thinking import is_prefix_mismatch
from foveate.cost.admission import AdmittedCall
from foveate.cost.ledger import Charge
from foveate.engine.context import RequestContext
from foveate.engine.request import RoutedRequest, StepFailure, UpstreamRequest
from foveate.engine.steps.names import CACHE
from foveate.errors import FoveateError
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.formats.response.answers import AnswerParts, StreamPartCollector, read_answer_parts
from foveate.formats.response.rate_limits import RateLimit, read_rate_limits
from foveate.model import (
    CacheUsage,
    Edit,
    Format,
    RemoveBreakpoint,
    Request,
    SetParameter,
    SimulatedState,
    Usage,
)
from foveate.prompt_cache.rejections import Rejection, classify_rejection, find_rejected_parameters
from foveate.session.counting import run_in_thread_if_large

_REJECTED_REASON = "the model takes no breakpoints"


def remove_client_breakpoints(request: Request) -> list[Edit]:
    """Edits that remove all breakpoints of the client, of a model that takes none."""
    if request.format is not Format.ANTHROPIC or b"cache_control" not in request.body:
        return []
    places = [block.place for block in formats.request_blocks(request) if block.breakpoint_ttl is not None]
    edits: list[Edit] = [RemoveBreakpoint(place=place, reason=_REJECTED_REASON) for place in places]
    if "cache_control" in get_parameters(request):
        edits.append(SetParameter(path=("cache_control",), value=None, reason=_REJECTED_REASON))
    return edits


# An answer that does not stream is looked at whole, and there is no need to keep more of it than any can have.
_MAX_BODY_BYTES = 64 * 1024 * 1024
# What a model writes, in the deltas of any format. A token is hardly ever less than two bytes of JSON.
_OUTPUT_TEXT = re.compile(
    rb'"(?:text|content|thinking|partial_json|arguments|delta|refusal|reasoning|reasoning_content)"\s*+:\s*+'
    rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)',
    re.DOTALL,
)
_BYTES_PER_TOKEN = 2
# Of each stream, to be counted where its bill does not come: a few hundred tokens in their events. There may
# be a thousand streams, and all may break off at once.
_MAX_UNCOUNTED_BYTES = 64 * 1024


class ResponseReader:
    """Looks at the pieces of one answer. `hides_usage`: the client gets it without the extra chunk of usage.

    `keeps`: it can be had whole at its end, also where it streams.
    """

    def __init__(
        self,
        api_format: Format,
        *,
        is_streaming: bool,
        hides_usage: bool,
        keeps_body: bool = False,
        is_framed: bool = False,
    ) -> None:
        self._spoken = api_format
        self._keeps_body = keeps_body or not is_streaming
        self._stream = formats.StreamReader(api_format, is_framed=is_framed) if is_streaming else None
        self._stream_parts = StreamPartCollector(api_format) if is_streaming else None
        self._filter = formats.UsageChunkFilter() if is_streaming and hides_usage else None
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._output_meter = _OutputMeter()
        self._body_usage: Usage | None = None

    @property
    def changes_body(self) -> bool:
        """Whether the client may get other bytes than the provider sent."""
        return self._filter is not None

    def on_chunk(self, chunk: bytes) -> bytes:
        """What the client gets of a piece."""
        if self._stream is not None:
            self._stream.feed(chunk)
            self._output_meter.add(chunk)
        if self._stream_parts is not None:
            self._stream_parts.feed(chunk)
        if self._keeps_body and self._size_bytes <= _MAX_BODY_BYTES:
            self._chunks.append(chunk)
            self._size_bytes += len(chunk)
        return self._filter.feed(chunk) if self._filter is not None else chunk

    def finish(self) -> bytes:
        """What the client gets at the end."""
        if self._stream is not None:
            self._stream.end()
        elif self._size_bytes <= _MAX_BODY_BYTES:
            self._body_usage = formats.read_response_usage(self._spoken, b"".join(self._chunks))
        return self._filter.end() if self._filter is not None else b""

    @property
    def usage(self) -> Usage | None:
        """The bill, as far as it came."""
        return self._stream.usage if self._stream is not None else self._body_usage

    @property
    def body(self) -> bytes | None:
        """All of it; None where that was not kept."""
        return b"".join(self._chunks) if self._keeps_body and self._size_bytes <= _MAX_BODY_BYTES else None

    def parts(self) -> AnswerParts:
        """Return the parts by which the answer is recognised when the client sends it back; for its end."""
        if self._stream_parts is not None:
            return self._stream_parts.end()
        return read_answer_parts(self._spoken, b"".join(self._chunks))

    @property
    def is_streaming(self) -> bool:
        """Whether it comes as it is written."""
        return self._stream is not None

    @property
    def estimated_output_tokens(self) -> int:
        """About how many tokens of a stream have come, rather more than fewer."""
        return -(-self._output_meter.counted_bytes() // _BYTES_PER_TOKEN)

    @property
    def has_ended(self) -> bool:
        """Whether the last event of a stream has come: nothing is told after it."""
        return self._stream is not None and self._stream.has_ended

    @property
    def has_failed(self) -> bool:
        """Whether it told of an error in its middle."""
        return self._stream is not None and self._stream.error is not None

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its end by its own account."""
        return self._stream.is_complete if self._stream is not None else self.usage is not None


class _OutputMeter:
    """How much a model has written of a stream, of which only one without a whole bill has to know.

    So the last pieces are not looked at until somebody asks, and many together: that takes half the time.
    """

    def __init__(self) -> None:
        self._uncounted: list[bytes] = []
        self._uncounted_bytes = 0
        self._counted_bytes = 0

    def add(self, chunk: bytes) -> None:
        """One more piece has come."""
        self._uncounted.append(chunk)
        self._uncounted_bytes += len(chunk)
        if self._uncounted_bytes > _MAX_UNCOUNTED_BYTES:
            self._count()

    def counted_bytes(self) -> int:
        """What is written in all of them."""
        self._count()
        return self._counted_bytes

    def _count(self) -> None:
        self._counted_bytes += sum(map(len, _OUTPUT_TEXT.findall(b"".join(self._uncounted))))
        self._uncounted.clear()
        self._uncounted_bytes = 0


_LOG = logging.getLogger(__name__)

# As fast as all but a few hosts have large models write (November 2026).
_MAX_TOKENS_PER_SECOND = 500


class ExchangeHook(Protocol):
    """Something that is done with every exchange at its end: quick, since nothing else goes on meanwhile."""

    def __call__(self, exchange: "Exchange", /) -> None:
        """Do it, or begin to."""


class ExchangeObserver(Protocol):
    """Is told what becomes of exchanges."""

    def on_failure(self, incoming: RoutedRequest, problem: StepFailure) -> None:
        """A step failed, and the request goes out without it; or something that is done at its end."""

    def on_finished(self, exchange: "Exchange") -> None:
        """An exchange has come to its end, and all that is done with it is done."""


class ExchangeCompleter(Protocol):
    """Completes exchanges in the background: their charges, what is stored of them, their last hooks."""

    def enqueue(self, exchange: "Exchange") -> None:
        """Have an exchange completed that is over."""

    def store_writes(self, exchanges: "Sequence[Exchange]") -> None:
        """Begin to store what is to be stored of requests."""

    async def drain(self) -> None:
        """Wait until all exchanges that are over by now are completed."""


class Exchange:
    """A call from the moment it is sent. Whoever relays it says what comes, and at last that it is over."""

    def __init__(
        self,
        incoming: RoutedRequest,
        context: RequestContext | None,
        upstream_request: UpstreamRequest,
        *,
        background_hooks: Sequence[ExchangeHook],
        clock: Callable[[], float],
        observer: ExchangeObserver,
        completer: ExchangeCompleter,
        received_at: float | None = None,
        write_request: Callable[[RequestContext], UpstreamRequest] | None = None,
        record_charge: ExchangeHook | None = None,
        session_hooks: Sequence[ExchangeHook] = (),
        reservation: AdmittedCall | None = None,
    ) -> None:
        """`work` is None for a request that could not be understood. `came_at`: when it was here.

        `write` makes of the work what is sent once our marks are taken out of it.

        `note` is done before the client has all of it, `remember` before its next request, and `settle`
        `behind` the answer, once its bill is booked. `admitted` is what its work was let through as, or it.
        """
        self.incoming = incoming
        self.context = context
        self.upstream_request = upstream_request
        self.sent_at = self.response_started_at = self.ended_at = clock()
        self.received_at = self.sent_at if received_at is None else received_at
        self.status = 0
        self.breakpoint_rejection: Rejection | None = None
        self.rejected_parameters: frozenset[str] = frozenset()  # of those that we added
        self.has_invalid_thinking = False  # some were refused, since they do not fit what stands before them
        self.is_interrupted = False
        self.is_unsent = False
        self.charge: Charge | None = None  # what is booked
        self.rate_limits: tuple[RateLimit, ...] = ()  # of the subscription that pays for it
        self.simulated_usage: Mapping[SimulatedState, CacheUsage] = {}  # its input in each state
        self._reservation = reservation
        self._is_charge_unknown = False
        self._observer = observer
        self._completer = completer
        self._background_hooks = background_hooks
        self._write_request = write_request
        self._record_charge = record_charge
        self._is_charge_recorded = record_charge is None
        self._session_hooks = session_hooks
        self._clock = clock
        self._reader: ResponseReader | None = None

    async def should_resend(self, status: int, error_body: bytes) -> bool:
        """Whether `outgoing` is to be sent once more, as it is then: an answer refuses what we added to it.

        That happens once for our marks, and once for each of our parameters.
        """
        context = self.context
        if context is None:
            return False
        self.has_invalid_thinking = context.rules.binds_thinking and is_prefix_mismatch(status, error_body)
        write_request = self._write_request
        if write_request is None or not (
            self._drop_rejected_parameters(context, status, error_body)
            or await self._drop_rejected_breakpoints(context, status, error_body)
        ):
            return False
        self.upstream_request = await run_in_thread_if_large(
            lambda: write_request(context), len(context.request.body), min_bytes=LARGE_BYTES
        )
        return True

    def _drop_rejected_parameters(self, context: RequestContext, status: int, error_body: bytes) -> bool:
        """Remove our parameters that an error response names; a parameter of the client's is none of them."""
        added = {edit.path[0] for edit in context.added_parameters if isinstance(edit, SetParameter)}
        rejected = find_rejected_parameters(status, error_body, added) if added else frozenset()
        if not rejected:
            return False
        self.rejected_parameters |= rejected
        context.added_parameters = tuple(
            edit
            for edit in context.added_parameters
            if not isinstance(edit, SetParameter) or edit.path[0] not in rejected
        )
        _LOG.info(
            "%s: upstream %s refuses %s for %s, sending the request again without it",
            self.incoming.id,
            self.incoming.upstream,
            ", ".join(sorted(rejected)),
            context.model,
        )
        return True

    async def _drop_rejected_breakpoints(self, context: RequestContext, status: int, error_body: bytes) -> bool:
        """Remove our breakpoints if an error response refuses them, and then the client's if it still does."""
        rejection = classify_rejection(status, error_body)
        if rejection is None or self.breakpoint_rejection is Rejection.CLIENT_BREAKPOINTS:
            return False
        if context.breakpoints:
            self.breakpoint_rejection, context.breakpoints = rejection, ()
            return True
        removals = remove_client_breakpoints(context.request) if rejection is Rejection.BREAKPOINTS else []
        if not removals:
            return False
        self.breakpoint_rejection = Rejection.CLIENT_BREAKPOINTS
        await context.apply_edits(CACHE, removals)
        return True

    def mark_unsent(self) -> None:
        """The provider was not reached."""
        self.is_unsent = True

    @property
    def is_subscription(self) -> bool:
        """Whether a subscription pays for it, by its credentials or by what the provider says of limits."""
        return self.incoming.is_subscription or bool(self.rate_limits)

    def on_response_start(
        self,
        status: int,
        *,
        is_streaming: bool,
        is_framed: bool = False,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """The head of the answer that the client gets has come; `is_framed`: it is in the frames of AWS."""
        self.response_started_at = self._clock()
        self.rate_limits = read_rate_limits(headers, now=self.response_started_at)
        self.status = status
        self._reader = ResponseReader(
            self.incoming.api_format,
            is_streaming=is_streaming,
            is_framed=is_framed,
            hides_usage=is_streaming and self._added_usage_request(),
            keeps_body=self.incoming.keeps_response
            or (self.context is not None and self.context.options.sends_keep_alive),
        )

    def _added_usage_request(self) -> bool:
        parameters = self.context.added_parameters if self.context is not None else ()
        return any(isinstance(edit, SetParameter) and edit.path[0] == "stream_options" for edit in parameters)

    @property
    def changes_response(self) -> bool:
        """Whether the client may get other bytes than the provider sent."""
        return self._reader is not None and self._reader.changes_body

    def on_chunk(self, chunk: bytes) -> bytes:
        """What the client gets of a piece of the answer; at the end of a stream, its bill is noted before."""
        if self._reader is None:
            return chunk
        forwarded = self._reader.on_chunk(chunk)
        if not self._is_charge_recorded and self._reader.has_ended:
            self._record_charge_once()
        return forwarded

    def flush(self) -> bytes:
        """What the client gets after the last piece."""
        return self._reader.finish() if self._reader is not None else b""

    @property
    def has_ended(self) -> bool:
        """Whether the last event of a stream has come."""
        return self._reader is not None and self._reader.has_ended

    @property
    def is_streaming(self) -> bool:
        """Whether the answer comes as it is written."""
        return self._reader is not None and self._reader.is_streaming

    @property
    def usage(self) -> Usage | None:
        """The bill, as far as it came."""
        return self._reader.usage if self._reader is not None else None

    @property
    def response_body(self) -> bytes | None:
        """All that was answered; None where it was not kept."""
        return self._reader.body if self._reader is not None else None

    def response_parts(self) -> AnswerParts:
        """Return the parts by which the answer is recognised when the client sends it back."""
        return self._reader.parts() if self._reader is not None else AnswerParts()

    @property
    def has_complete_usage(self) -> bool:
        """Whether the bill is whole: a stream that breaks off may have told only a first part of it."""
        reader, usage = self._reader, self.usage
        if reader is None or usage is None or reader.has_failed or usage.is_empty:
            return False
        return not self.is_interrupted or reader.is_complete

    @property
    def may_be_charged(self) -> bool:
        """Whether the provider may bill it, told or not: it was asked, and has not said no."""
        return not self.is_unsent if self.status == 0 else 200 <= self.status < 300

    @property
    def estimated_output_tokens(self) -> int | None:
        """At least about as many tokens as have been written; None where that cannot be seen.

        What a model thinks may not be shown, but takes its time.
        """
        if self._reader is None or not self._reader.is_streaming:
            return None
        seconds = max(0.0, self.ended_at - self.sent_at)
        return max(self._reader.estimated_output_tokens, int(seconds * _MAX_TOKENS_PER_SECOND))

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its end."""
        return not self.is_interrupted and self._reader is not None and self._reader.is_complete

    @property
    def unused_reservation(self) -> AdmittedCall | None:
        """What it was let through as, where it costs nothing: what was reserved for it is to be freed."""
        if self.charge is not None or self._is_charge_unknown:
            return None
        return self._reservation if self.context is None else self.context.reservation

    def finish(self, *, is_interrupted: bool = False) -> None:
        """Nothing more comes; `is_broken`: the answer was not there, broke off, or nobody wanted its rest.

        What is to be done with it is done from now on, whether or not anybody waits for it.
        """
        self.is_interrupted = is_interrupted
        if not self._is_charge_recorded:
            self._record_charge_once()
        self.ended_at = self._clock()
        # Not before what the client is still to get is written, and before anything that it sends then is read.
        asyncio.get_running_loop().call_soon(self._run_hooks, self._session_hooks)
        self._completer.enqueue(self)

    async def wait_until_completed(self) -> None:
        """Wait until all is done with it."""
        await self._completer.drain()

    def store_writes(self) -> None:
        """Begin to keep what is to be kept of the request."""
        self._completer.store_writes((self,))

    def run_background_hooks(self) -> None:
        """Do what is done last."""
        self._run_hooks((*self._background_hooks, self._observer.on_finished))

    def report_failure(self, task: str, error: Exception) -> None:
        """Tell that something could not be done with it; of a fault of ours, with where it happened."""
        problem = StepFailure(task, f"{type(error).__name__}: {error}")
        bug = None if isinstance(error, FoveateError) else error
        _LOG.error("%s: %s failed: %s", self.incoming.id, task, problem.reason, exc_info=bug)
        self._observer.on_failure(self.incoming, problem)

    def _record_charge_once(self) -> None:
        self._is_charge_recorded = True
        self.ended_at = self._clock()
        try:
            if self._record_charge is not None:
                self._record_charge(self)
        except Exception as error:  # noqa: BLE001 - a border as that of steps
            self._is_charge_unknown = True  # whether it is billed
            self.report_failure("note", error)

    def _run_hooks(self, hooks: Sequence[ExchangeHook]) -> None:
        for hook in hooks:
            try:
                hook(self)
            except Exception as error:  # noqa: BLE001 - a border as that of steps: the client has its answer
                self.report_failure(type(hook).__name__, error)
