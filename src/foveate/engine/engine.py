"""The engine: one way through for every request, the same steps in the same order, and each may fail alone."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from foveate import wire
from foveate.cache.beta_header import HEADER as BETAS
from foveate.cache.beta_header import beta_header
from foveate.engine.behind import Behind
from foveate.engine.calls import Incoming, Outgoing, Problem, check_model
from foveate.engine.exchange import Exchange, Settle
from foveate.engine.options import AgentOptions
from foveate.engine.steps.names import ROUTE
from foveate.engine.steps.overflow import FoldNow
from foveate.engine.steps.step import Step
from foveate.engine.uncounted import Uncounted
from foveate.engine.watch import Watch
from foveate.engine.work import Work
from foveate.errors import (
    BudgetExceeded,
    CallRefused,
    DoesNotFit,
    DuplicateKey,
    FoveateError,
    MalformedRequest,
    RequestLimitExceeded,
)
from foveate.session.counting import beside
from foveate.tokens.threads import run_in_thread
from foveate.values import Format, SetParameter
from foveate.wire.around import parameters_of
from foveate.wire.body import is_said
from foveate.wire.large_json import LARGE_BYTES

_LOG = logging.getLogger(__name__)
# What is shorter is read sooner than a thread is there.
_MUCH_BYTES = 128 * 1024
# These are answers to the client, and no failures of a step.
_REFUSALS = (BudgetExceeded, CallRefused, DoesNotFit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Prepares requests by its `steps`, in their order. `options` are those that hold for an agent now.

    `settle` is done, in order, with every exchange that has come to its end. `uncounted` lets requests through
    that cannot be read. `beta_override` is what `ANTHROPIC_CACHE_BETA` says. `preview` prepares what would be
    sent, and leaves no trace of it. `note` is done with an exchange before its client has all of the answer,
    `remember` before its next request, and `settle` `behind` its answer. `fold_now` folds what somebody asks
    for, whatever its size. `observe` are the steps of requests that may not be changed.
    `announce` is done with a request right before it is sent.
    `forget_conversation` is told the agent, the upstream and the id of a stored conversation that was changed.
    """

    steps: Sequence[Step]
    settle: Sequence[Settle]
    options: Callable[[str], AgentOptions]
    clock: Callable[[], float]
    watch: Watch
    uncounted: Uncounted
    beta_override: str | None = None
    preview: "Engine | None" = None
    note: Callable[[Exchange], None] | None = None
    announce: Callable[[Work], None] | None = None
    remember: Sequence[Settle] = ()
    behind: Behind = field(default_factory=Behind)
    fold_now: FoldNow | None = None
    recount: Callable[[Work], Awaitable[None]] | None = None
    observe: Sequence[Step] = ()
    forget_conversation: Callable[[str, str, str], None] | None = None

    async def prepare(self, incoming: Incoming) -> Exchange:
        """What is sent in the place of a request; one that cannot be understood is sent as it came.

        But not under a cap, which nobody could hold it to.

        Raises:
            BudgetExceeded: the sections to be injected do not fit in the agent's limits.
            DuplicateKey: its upstream could read another value than Foveate does.
            DoesNotFit: it is larger than the window, and may not be made smaller.
            CallRefused: a cap keeps it from being made.
            RequestLimitExceeded: it has more messages, tools or levels than are read.
        """
        came_at = self.clock()
        try:
            work = await self._read(incoming)
        except (DuplicateKey, RequestLimitExceeded):
            raise
        except FoveateError as error:
            problem = self._failed(incoming, "read", error)
            self.watch.failed(incoming, problem)
            await self.uncounted(incoming.id, incoming.agent, f"the request cannot be read ({error})")
            sent = Outgoing(body=incoming.body, problems=(problem,))
            return self._exchange(incoming, None, sent, came_at)
        before = work.now
        for step in self.observe if work.is_unchanged else self.steps:
            try:
                await step.take(work)
            except _REFUSALS:
                self._tell(work)
                # What it says is kept all the same: others may go on from there.
                self._exchange(incoming, work, Outgoing(body=b""), came_at).keep()
                raise
            except Exception as error:  # noqa: BLE001 - a step's border: whatever fails in it, the request goes out
                work.problems.append(self._failed(incoming, step.name, error))
            now = self.clock()
            self.watch.took(step.name, now - before)
            before = now
        try:
            sent = await beside(lambda: self._written(work), len(work.request.body), least_bytes=LARGE_BYTES)
        except BaseException:  # what was reserved for it is free again
            unsent = self._exchange(incoming, work, Outgoing(body=b""), came_at)
            unsent.unsent()
            unsent.over(is_broken=True)
            raise
        if work.problems:
            self._tell(work)
        if self.announce is not None:
            self.announce(work)
        return self._exchange(incoming, work, sent, came_at)

    def _tell(self, work: Work) -> None:
        for problem in work.problems:
            self.watch.failed(work.incoming, problem)

    async def _read(self, incoming: Incoming) -> Work:
        """Read a request; in a thread if there is much of it that was not read before."""
        body = incoming.body
        known = wire.known_bytes(body, incoming.spoken) if _MUCH_BYTES <= len(body) < LARGE_BYTES else 0
        if len(body) - known < _MUCH_BYTES:
            return self._begun(incoming)
        return await run_in_thread(lambda: self._begun(incoming), len(body))

    def _begun(self, incoming: Incoming) -> Work:
        request = wire.read(incoming.body, incoming.spoken, limits=incoming.limits, model=incoming.served_model)
        check_model(request.model)
        now = self.clock()
        work = Work(
            incoming=incoming,
            options=self.options(incoming.agent),
            now=now,
            came=request,
            request=request,
            uses_thread=request.format is Format.ANTHROPIC and is_said(parameters_of(request).get("thread")),
        )
        if incoming.model is not None:
            named = SetParameter(path=("model",), value=incoming.model, reason="its name at the upstream")
            work.edit_now(ROUTE, (named,), of=request)
            work.came = work.request
        return work

    def _written(self, work: Work) -> Outgoing:
        if work.is_unchanged:
            return Outgoing(body=work.request.body, problems=tuple(work.problems))
        body = self._body(work)
        betas = beta_header(self.beta_override, work.betas)
        headers = work.headers if betas == work.incoming.betas else {**work.headers, BETAS: betas}
        return Outgoing(
            body=body,
            headers=headers,
            done=work.all_done(),
            problems=tuple(work.problems),
        )

    def _body(self, work: Work) -> bytes:
        """Write the body that goes out; if an edit cannot be written, without breakpoints, then as it is."""
        try:
            return work.written()
        except FoveateError as error:
            work.problems.append(self._failed(work.incoming, "write", error))
            work.marks = ()
        try:
            return work.written()
        except FoveateError as error:
            work.problems.append(self._failed(work.incoming, "write", error))
            work.parameters = ()
        return work.written()

    def _exchange(self, incoming: Incoming, work: Work | None, outgoing: Outgoing, came_at: float) -> Exchange:
        return Exchange(
            incoming,
            work,
            outgoing,
            settle=self.settle,
            clock=self.clock,
            watch=self.watch,
            came_at=came_at,
            write=self._written,
            note=self.note,
            remember=self.remember,
            behind=self.behind,
        )

    async def close(self) -> None:
        """Wait until all is done with what is over."""
        await self.behind.end()
        if self.preview is not None:
            await self.preview.close()

    def _failed(self, incoming: Incoming, step: str, error: Exception) -> Problem:
        """A failure, told in the log; of one that is nobody's fault but ours, with where it happened."""
        problem = Problem(step, f"{type(error).__name__}: {error}")
        expected = isinstance(error, FoveateError)
        if not isinstance(error, MalformedRequest):
            _LOG.warning("%s: step %s failed: %s", incoming.id, step, problem.reason, exc_info=not expected)
        return problem
