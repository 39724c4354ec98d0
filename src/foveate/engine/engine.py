"""The engine: every request passes the same steps in the same order. A step that fails is skipped."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from foveate import formats
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.counting.offline_counters import load_counter
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.observer import Observer
from foveate.engine.options import AgentOptions
from foveate.engine.relay import ResponseEvent, Transport, UpstreamsWithoutCounts, relay_call
from foveate.engine.request import IncomingRequest, StepFailure, UpstreamRequest, check_model_name
from foveate.engine.request_context import RequestContext, Step
from foveate.engine.spending.charges import ChargeRecorder
from foveate.engine.spending.observed_admission import AdmitUncounted
from foveate.engine.steps import ROUTE
from foveate.engine.steps.overflow import CompactNow
from foveate.errors import (
    BudgetExceeded,
    CallRefused,
    DoesNotFit,
    DuplicateKey,
    FoveateError,
    MalformedRequest,
    RequestLimitExceeded,
)
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.formats.json_text.parse import is_set
from foveate.model import Format, SetParameter
from foveate.prompt_cache.rules import BETA_HEADER, resolve_beta_header
from foveate.session.counting import run_in_thread_if_large
from foveate.tokens.worker_threads import run_in_thread

_LOG = logging.getLogger(__name__)
# Parsing less than this is faster than handing it to a thread.
_THREAD_BYTES = 128 * 1024
# Errors that become responses to the client; anything else is a failed step.
_REJECTIONS = (BudgetExceeded, CallRefused, DoesNotFit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Prepares requests with its `steps`, in order.

    `options` returns the current options of an agent. `read_only_steps` run instead of `steps` for requests
    that must not be changed. `admit_uncounted` decides about requests that cannot be parsed. `beta_override` is
    the value of `ANTHROPIC_CACHE_BETA`. `preview` prepares what would be sent, without side effects.
    `compact_now` compacts a session on demand, whatever its size.

    `charges` opens the charge of each call; `hooks` and the `completion_queue` run at its end.
    `forget_conversation` takes the agent, the upstream and the id of a stored conversation
    that was changed.
    """

    steps: Sequence[Step]
    options: Callable[[str], AgentOptions]
    clock: Callable[[], float]
    observer: Observer
    admit_uncounted: AdmitUncounted
    beta_override: str | None = None
    preview: "Engine | None" = None
    hooks: CallHooks = CallHooks()  # noqa: RUF009 - it is frozen
    charges: ChargeRecorder | None = None
    completion_queue: CompletionQueue = field(default_factory=CompletionQueue)
    compact_now: CompactNow | None = None
    recount: Callable[[RequestContext], Awaitable[None]] | None = None
    read_only_steps: Sequence[Step] = ()
    forget_conversation: Callable[[str, str, str], None] | None = None
    upstreams_without_counts: UpstreamsWithoutCounts = field(default_factory=UpstreamsWithoutCounts)

    def send(self, incoming: IncomingRequest, transport: Transport) -> AsyncGenerator[ResponseEvent]:
        """Prepare a request, send it, and yield its response; see `relay_call` and `prepare`."""
        return relay_call(lambda: self.prepare(incoming), transport)

    def count(self, incoming: IncomingRequest, transport: Transport) -> AsyncGenerator[ResponseEvent]:
        """Prepare a count request as if it were sent, and yield the count of the upstream, or the local one."""
        engine = self.preview or self
        return relay_call(
            lambda: engine.prepare(incoming), transport, upstreams_without_counts=self.upstreams_without_counts
        )

    async def prepare(self, incoming: IncomingRequest) -> Exchange:
        """Prepare a request for its upstream. One that cannot be parsed is sent as it is, unless a cap applies.

        Raises:
            BudgetExceeded: the sections to be injected do not fit in the agent's limits.
            DuplicateKey: the upstream could read another value than Foveate does.
            DoesNotFit: the request exceeds the window and may not be reduced.
            CallRefused: a cap rejects it.
            RequestLimitExceeded: it has more messages, tools or levels than allowed.
        """
        received_at = self.clock()
        try:
            context = await self._read(incoming)
        except (DuplicateKey, RequestLimitExceeded):
            raise
        except FoveateError as error:
            problem = self._log_failure(incoming, "read", error)
            self.observer.on_failure(incoming, problem)
            await self.admit_uncounted(incoming.id, incoming.agent, f"the request cannot be read ({error})")
            upstream_request = UpstreamRequest(body=incoming.body, problems=(problem,))
            return self._make_exchange(incoming, None, upstream_request, received_at)
        await load_counter(context.options.counter, context.request.model)
        step_started_at = context.received_at
        for step in self.read_only_steps if context.is_read_only else self.steps:
            try:
                await step.apply(context)
            except _REJECTIONS:
                self._report_problems(context)
                if context.session.in_flight is not None:
                    context.session.in_flight.abandon()
                # The session is stored nevertheless: later requests may continue from this one.
                self._make_exchange(incoming, context, UpstreamRequest(body=b""), received_at).store_writes()
                raise
            except Exception as error:  # noqa: BLE001 - whatever fails in a step, the request goes out
                context.problems.append(self._log_failure(incoming, step.name, error))
            now = self.clock()
            self.observer.on_step(step.name, now - step_started_at)
            step_started_at = now
        try:
            upstream_request = await run_in_thread_if_large(
                lambda: self._write_request(context), len(context.request.body), min_bytes=LARGE_BYTES
            )
        except BaseException:  # releases the reservation
            unsent_exchange = self._make_exchange(incoming, context, UpstreamRequest(body=b""), received_at)
            unsent_exchange.mark_unsent()
            unsent_exchange.finish(is_interrupted=True)
            raise
        if context.problems:
            self._report_problems(context)
        if self.charges is not None and context.cost.call is not None:
            count = context.count.total
            context.cost.estimated_input_tokens = count.tokens if count is not None else None
            self.charges.open(context.cost)
        return self._make_exchange(incoming, context, upstream_request, received_at)

    def _report_problems(self, context: RequestContext) -> None:
        for problem in context.problems:
            self.observer.on_failure(context.incoming, problem)

    async def _read(self, incoming: IncomingRequest) -> RequestContext:
        """Parse a request, in a thread if much of it is new."""
        body = incoming.body
        known_bytes = (
            formats.known_bytes(body, incoming.api_format) if _THREAD_BYTES <= len(body) < LARGE_BYTES else 0
        )
        if len(body) - known_bytes < _THREAD_BYTES:
            return self._begin_context(incoming)
        return await run_in_thread(lambda: self._begin_context(incoming), len(body))

    def _begin_context(self, incoming: IncomingRequest) -> RequestContext:
        request = formats.parse_request(
            incoming.body, incoming.api_format, limits=incoming.limits, model=incoming.served_model
        )
        check_model_name(request.model)
        now = self.clock()
        context = RequestContext(
            incoming=incoming,
            options=self.options(incoming.agent),
            received_at=now,
            original=request,
            request=request,
            uses_thread=request.format is Format.ANTHROPIC and is_set(get_parameters(request).get("thread")),
        )
        if incoming.model is not None:
            rename = SetParameter(
                path=("model",), value=incoming.model, reason="the upstream's name of the model"
            )
            context.apply_edits_now(ROUTE, (rename,), base_request=request)
            context.original = context.request
        return context

    def _write_request(self, context: RequestContext) -> UpstreamRequest:
        if context.is_read_only:
            return UpstreamRequest(body=context.request.body, problems=tuple(context.problems))
        body = self._write_body(context)
        betas = resolve_beta_header(self.beta_override, context.betas)
        headers = (
            context.cache.added_headers
            if betas == context.incoming.betas
            else {**context.cache.added_headers, BETA_HEADER: betas}
        )
        return UpstreamRequest(
            body=body,
            headers=headers,
            applied_edits=context.all_edits(),
            problems=tuple(context.problems),
        )

    def _write_body(self, context: RequestContext) -> bytes:
        """Write the body; if an edit cannot be written, drop the breakpoints, then the added parameters."""
        try:
            return context.write_body()
        except FoveateError as error:
            context.problems.append(self._log_failure(context.incoming, "write", error))
            context.cache.breakpoints = ()
        try:
            return context.write_body()
        except FoveateError as error:
            context.problems.append(self._log_failure(context.incoming, "write", error))
            context.cache.added_parameters = ()
        return context.write_body()

    def _make_exchange(
        self,
        incoming: IncomingRequest,
        context: RequestContext | None,
        upstream_request: UpstreamRequest,
        received_at: float,
    ) -> Exchange:
        return Exchange(
            incoming,
            context,
            upstream_request,
            hooks=self.hooks,
            clock=self.clock,
            observer=self.observer,
            received_at=received_at,
            write_request=self._write_request,
            completer=self.completion_queue,
        )

    async def close(self) -> None:
        await self.completion_queue.close()
        if self.preview is not None:
            await self.preview.close()

    def _log_failure(self, incoming: IncomingRequest, step: str, error: Exception) -> StepFailure:
        """Log a failure, with a traceback if it is a bug of ours."""
        problem = StepFailure(step, f"{type(error).__name__}: {error}")
        is_expected = isinstance(error, FoveateError)
        if not isinstance(error, MalformedRequest):
            _LOG.warning("%s: step %s failed: %s", incoming.id, step, problem.reason, exc_info=not is_expected)
        return problem
