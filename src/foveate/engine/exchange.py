"""One call: the request as sent, the response as it streams through, and the hooks that run at the end."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate import formats
from foveate.compaction.thinking import is_prefix_mismatch
from foveate.cost.admission import AdmittedCall
from foveate.cost.ledger import Charge
from foveate.engine.request import IncomingRequest, StepFailure, UpstreamRequest
from foveate.engine.request_context import CostFields, RequestContext
from foveate.engine.steps import CACHE, PREPARE_CHARGE
from foveate.errors import FoveateError
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.formats.response.answers import AnswerParts, StreamPartCollector, read_answer_parts
from foveate.formats.response.rate_limits import RateLimit, read_rate_limits
from foveate.model import CacheUsage, Format, Savings, SetParameter, SimulatedState, Usage
from foveate.prompt_cache.rejections import (
    Rejection,
    classify_rejection,
    find_rejected_parameters,
    remove_client_breakpoints,
)
from foveate.session.counting import run_in_thread_if_large

_LOG = logging.getLogger(__name__)

# Hardly any host writes faster with a large model (November 2026).
_MAX_TOKENS_PER_SECOND = 500

# A response that does not stream is parsed whole; no real one is larger.
_MAX_BODY_BYTES = 64 * 1024 * 1024
# The output of a model, in the deltas of all formats. A token is rarely less than two bytes of JSON.
_OUTPUT_TEXT = re.compile(
    rb'"(?:text|content|thinking|partial_json|arguments|delta|refusal|reasoning|reasoning_content)"\s*+:\s*+'
    rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)',
    re.DOTALL,
)
_BYTES_PER_TOKEN = 2
# Per stream: a few hundred tokens in their events. A thousand streams may be interrupted at once.
_MAX_UNCOUNTED_BYTES = 64 * 1024


class ExchangeHook(Protocol):
    """Runs at the end of every exchange. It must be quick, since it blocks the event loop."""

    def __call__(self, exchange: "Exchange", /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHooks:
    """What runs at the end of each call. A hook that fails is reported, and the others run nevertheless.

    - `before_last_byte` runs before the client has the whole response: whatever must not be lost if this
      process is killed right after the response.
    - `on_answer` runs after that, and also before the client has the whole response: whatever other workers
      must know before they get the next request of the session.
    - `after_response` runs once the last bytes for the client are written, and before its next request is read:
      whatever the next request of the session needs in this process.
    - `in_background` runs in batches, some milliseconds later, once the charges are persisted.
    """

    before_last_byte: Sequence[ExchangeHook] = ()
    on_answer: Sequence[ExchangeHook] = ()
    after_response: Sequence[ExchangeHook] = ()
    in_background: Sequence[ExchangeHook] = ()


class ExchangeObserver(Protocol):
    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        """Called when a step or a hook has failed."""

    def on_finished(self, exchange: "Exchange") -> None: ...


class ExchangeCompleter(Protocol):
    """Completes exchanges in the background: charges, pending writes, background hooks."""

    def enqueue(self, exchange: "Exchange") -> None: ...

    def store_writes(self, exchanges: "Sequence[Exchange]") -> None: ...

    async def drain(self) -> None:
        """Wait until all exchanges that are finished by now are completed."""


class Exchange:
    """A call from the moment it is sent. The relay reports the chunks of the response and its end."""

    def __init__(
        self,
        incoming: IncomingRequest,
        context: RequestContext | None,
        upstream_request: UpstreamRequest,
        *,
        clock: Callable[[], float],
        observer: ExchangeObserver,
        completer: ExchangeCompleter,
        hooks: CallHooks = CallHooks(),  # noqa: B008 - it is frozen
        received_at: float | None = None,
        write_request: Callable[[RequestContext], UpstreamRequest] | None = None,
        cost: CostFields | None = None,
    ) -> None:
        """`context` is None for a request that could not be parsed. `received_at`: when the request arrived.

        `write_request` writes the request again once our breakpoints or parameters are removed. `cost` is that
        of a call without a context.
        """
        self.incoming = incoming
        self.context = context
        self.upstream_request = upstream_request
        self.sent_at = self.response_started_at = self.ended_at = clock()
        self.received_at = self.sent_at if received_at is None else received_at
        self.status = 0
        self.breakpoint_rejection: Rejection | None = None
        self.rejected_parameters: frozenset[str] = frozenset()  # of those that we added
        # The provider rejected thinking blocks that do not fit what precedes them.
        self.has_invalid_thinking = False
        self.is_interrupted = False
        self.is_unsent = False
        self.charge: Charge | None = None  # for the ledger
        self.rate_limits: tuple[RateLimit, ...] = ()  # of the subscription that pays
        self.simulated_usage: Mapping[SimulatedState, CacheUsage] = {}  # input usage in each simulated state
        self.savings = Savings()
        self.cost = context.cost if context is not None else cost or CostFields()
        self._is_charge_unknown = False
        self._observer = observer
        self._completer = completer
        self._hooks = hooks
        self._write_request = write_request
        self._has_run_before_last_byte = not (hooks.before_last_byte or hooks.on_answer)
        self._clock = clock
        self._reader: ResponseReader | None = None

    async def should_resend(self, status: int, error_body: bytes) -> bool:
        """Return whether to send `upstream_request`, changed, again: an error response rejects what we added.

        That happens once for our breakpoints, and once for each of our parameters.
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
        """Remove our parameters that an error response names; the client's own are never removed."""
        added = {edit.path[0] for edit in context.cache.added_parameters if isinstance(edit, SetParameter)}
        rejected = find_rejected_parameters(status, error_body, added) if added else frozenset()
        if not rejected:
            return False
        self.rejected_parameters |= rejected
        context.cache.added_parameters = tuple(
            edit
            for edit in context.cache.added_parameters
            if not isinstance(edit, SetParameter) or edit.path[0] not in rejected
        )
        _LOG.info(
            "%s: upstream %s rejects %s for %s, sending the request again without it",
            self.incoming.id,
            self.incoming.upstream,
            ", ".join(sorted(rejected)),
            context.model,
        )
        return True

    async def _drop_rejected_breakpoints(self, context: RequestContext, status: int, error_body: bytes) -> bool:
        """Remove our breakpoints if an error response rejects them, and then the client's if it still does."""
        rejection = classify_rejection(status, error_body)
        if rejection is None or self.breakpoint_rejection is Rejection.CLIENT_BREAKPOINTS:
            return False
        if context.cache.breakpoints:
            self.breakpoint_rejection, context.cache.breakpoints = rejection, ()
            return True
        removals = remove_client_breakpoints(context.request) if rejection is Rejection.BREAKPOINTS else []
        if not removals:
            return False
        self.breakpoint_rejection = Rejection.CLIENT_BREAKPOINTS
        await context.apply_edits(CACHE, removals)
        return True

    def mark_unsent(self) -> None:
        self.is_unsent = True

    @property
    def is_subscription(self) -> bool:
        """Return whether a subscription pays, by the credentials or by the rate limits of the response."""
        return self.incoming.is_subscription or bool(self.rate_limits)

    def on_response_start(
        self,
        status: int,
        *,
        is_streaming: bool,
        is_framed: bool = False,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """`is_framed`: the response uses AWS event-stream frames."""
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
        parameters = self.context.cache.added_parameters if self.context is not None else ()
        return any(isinstance(edit, SetParameter) and edit.path[0] == "stream_options" for edit in parameters)

    @property
    def changes_response(self) -> bool:
        return self._reader is not None and self._reader.changes_body

    def on_chunk(self, chunk: bytes) -> bytes:
        """Return what the client gets for a chunk. The charge is recorded before the last one is returned."""
        if self._reader is None:
            return chunk
        forwarded = self._reader.on_chunk(chunk)
        if not self._has_run_before_last_byte and self._reader.has_ended:
            self._run_before_last_byte()
        return forwarded

    def flush(self) -> bytes:
        """Return what the client gets after the last chunk."""
        return self._reader.finish() if self._reader is not None else b""

    @property
    def has_ended(self) -> bool:
        return self._reader is not None and self._reader.has_ended

    @property
    def is_streaming(self) -> bool:
        return self._reader is not None and self._reader.is_streaming

    @property
    def usage(self) -> Usage | None:
        return self._reader.usage if self._reader is not None else None

    @property
    def response_body(self) -> bytes | None:
        return self._reader.body if self._reader is not None else None

    def response_parts(self) -> AnswerParts:
        return self._reader.parts() if self._reader is not None else AnswerParts()

    @property
    def has_complete_usage(self) -> bool:
        """A stream that breaks off, even if its connection ends properly, may have reported only a part."""
        reader, usage = self._reader, self.usage
        if reader is None or usage is None or reader.has_failed or usage.is_empty:
            return False
        return reader.is_complete or (not self.is_interrupted and reader.has_stopped)

    @property
    def may_be_charged(self) -> bool:
        """True unless the call was not sent or was answered with an error."""
        return not self.is_unsent if self.status == 0 else 200 <= self.status < 300

    @property
    def estimated_output_tokens(self) -> int | None:
        """An upper estimate of the output tokens of an interrupted stream; None if it did not stream.

        Hidden thinking is bounded by the elapsed time.
        """
        if self._reader is None or not self._reader.is_streaming:
            return None
        seconds = max(0.0, self.ended_at - self.sent_at)
        return max(self._reader.estimated_output_tokens, int(seconds * _MAX_TOKENS_PER_SECOND))

    @property
    def is_complete(self) -> bool:
        return not self.is_interrupted and self._reader is not None and self._reader.is_complete

    @property
    def unused_reservation(self) -> AdmittedCall | None:
        if self.charge is not None or self._is_charge_unknown:
            return None
        return self.cost.reservation

    def finish(self, *, is_interrupted: bool = False) -> None:
        """End the exchange and start its hooks; `is_interrupted`: the response is missing or incomplete."""
        self.is_interrupted = is_interrupted
        if not self._has_run_before_last_byte:
            self._run_before_last_byte()
        self.ended_at = self._clock()
        asyncio.get_running_loop().call_soon(self._run_hooks, self._hooks.after_response)
        self._completer.enqueue(self)

    async def wait_until_completed(self) -> None:
        await self._completer.drain()

    def store_writes(self) -> None:
        self._completer.store_writes((self,))

    def run_background_hooks(self) -> None:
        self._run_hooks((*self._hooks.in_background, self._observer.on_finished))

    def report_failure(self, task: str, error: Exception) -> None:
        """Log and report a failure, with a traceback if it is a bug of ours."""
        problem = StepFailure(task, f"{type(error).__name__}: {error}")
        bug = None if isinstance(error, FoveateError) else error
        _LOG.error("%s: %s failed: %s", self.incoming.id, task, problem.reason, exc_info=bug)
        self._observer.on_failure(self.incoming, problem)

    def _run_before_last_byte(self) -> None:
        self._has_run_before_last_byte = True
        self.ended_at = self._clock()
        try:
            for hook in self._hooks.before_last_byte:
                hook(self)
        except Exception as error:  # noqa: BLE001 - the client has its response
            self._is_charge_unknown = True  # whether the provider charges for the call
            self.report_failure(PREPARE_CHARGE, error)
        self._run_hooks(self._hooks.on_answer)

    def _run_hooks(self, hooks: Sequence[ExchangeHook]) -> None:
        for hook in hooks:
            try:
                hook(self)
            except Exception as error:  # noqa: BLE001 - the client has its response
                self.report_failure(type(hook).__name__, error)


class ResponseReader:
    """Reads a response while it is forwarded.

    `hides_usage`: the extra usage chunk is removed. `keeps_body`: the whole body is available at the end, also
    of a stream.
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
        self._api_format = api_format
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
        return self._filter is not None

    def on_chunk(self, chunk: bytes) -> bytes:
        """Return what the client gets for a chunk."""
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
        """Return what the client gets after the last chunk."""
        if self._stream is not None:
            self._stream.end()
        elif self._size_bytes <= _MAX_BODY_BYTES:
            self._body_usage = formats.read_response_usage(self._api_format, b"".join(self._chunks))
        return self._filter.end() if self._filter is not None else b""

    @property
    def usage(self) -> Usage | None:
        return self._stream.usage if self._stream is not None else self._body_usage

    @property
    def body(self) -> bytes | None:
        return b"".join(self._chunks) if self._keeps_body and self._size_bytes <= _MAX_BODY_BYTES else None

    def parts(self) -> AnswerParts:
        """The parts by which the response is recognised when the client sends it back; valid at the end."""
        if self._stream_parts is not None:
            return self._stream_parts.end()
        return read_answer_parts(self._api_format, b"".join(self._chunks))

    @property
    def is_streaming(self) -> bool:
        return self._stream is not None

    @property
    def estimated_output_tokens(self) -> int:
        """An upper estimate of the output tokens received so far."""
        return -(-self._output_meter.counted_bytes() // _BYTES_PER_TOKEN)

    @property
    def has_ended(self) -> bool:
        return self._stream is not None and self._stream.has_ended

    @property
    def has_failed(self) -> bool:
        return self._stream is not None and self._stream.error is not None

    @property
    def has_stopped(self) -> bool:
        """Return whether a stream says why it ends, even if its final event is missing."""
        return self._stream is None or bool(self._stream.stop_reason)

    @property
    def is_complete(self) -> bool:
        """Return whether the response itself says that it is complete."""
        return self._stream.is_complete if self._stream is not None else self.usage is not None


class _OutputMeter:
    """Measures the output of a stream.

    Only interrupted streams need it. So chunks are parsed on demand and many at a time, which takes half the
    time.
    """

    def __init__(self) -> None:
        self._uncounted: list[bytes] = []
        self._uncounted_bytes = 0
        self._counted_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._uncounted.append(chunk)
        self._uncounted_bytes += len(chunk)
        if self._uncounted_bytes > _MAX_UNCOUNTED_BYTES:
            self._count()

    def counted_bytes(self) -> int:
        self._count()
        return self._counted_bytes

    def _count(self) -> None:
        self._counted_bytes += sum(map(len, _OUTPUT_TEXT.findall(b"".join(self._uncounted))))
        self._uncounted.clear()
        self._uncounted_bytes = 0
