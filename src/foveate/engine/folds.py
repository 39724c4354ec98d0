"""Folds of sessions: behind an answer where a request crosses the threshold, at once where it would not fit.

What the summaries cost is booked as compaction, under the same caps as all else; where a cap has no room for
one, rules write it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from uuid import uuid4

from foveate import wire
from foveate.cost.admission import Admission
from foveate.cost.ledger import Call, Category
from foveate.cost.savings import own_call
from foveate.engine.bounds import AtMost, asked_of, longest_mark, most_input_tokens
from foveate.engine.exchange import Exchange
from foveate.engine.options import MoneyOptions
from foveate.engine.steps.overflow import subject_of
from foveate.engine.summaries import PaidClient, Payment
from foveate.engine.work import Work
from foveate.errors import CallRefused, FoveateError
from foveate.fold.cuts import Subject, trigger_of
from foveate.fold.folding import Folded, Folder
from foveate.fold.journal import Journal, Outcome
from foveate.fold.model import ModelSummariser
from foveate.upstream import Client
from foveate.values import Comparison, Savings, Usage

_LOG = logging.getLogger(__name__)

# What is sent with an instruction to sum it up is less than this many times as long.
_MORE_INPUT = 2
# As long as a summary may be, several times over.
_OUTPUT_TOKENS = 16_384
# So many at once: a fold reads a whole history.
_MOST_AT_ONCE = 4


class Folds:
    """Folds for all sessions of a process, as one `holder`."""

    def __init__(
        self,
        journal: Journal,
        client: Client,
        admission: Admission,
        cost: Callable[[], MoneyOptions],
        *,
        holder: str,
        clock: Callable[[], float],
        told: Callable[[str, Folded], None] = lambda _agent, _folded: None,
    ) -> None:
        """`told` is what is told of each, with the agent whose session it is of."""
        self._journal = journal
        self._client = client
        self._admission = admission
        self._cost = cost
        self._holder = holder
        self._clock = clock
        self._told = told
        # Called once a fold is kept, with its agent.
        self.kept: Callable[[str], None] = lambda _agent: None
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)

    def __call__(self, exchange: Exchange) -> None:
        """Fold behind an answer, where it is time; the next request has the summary."""
        work = exchange.work
        if work is None or not work.options.compacts or not 200 <= exchange.status < 300:
            return
        if work.is_unchanged:
            return
        if work.chain is None or work.found is None or work.count is None or work.window_tokens is None:
            return
        subject = subject_of(work, must_fit=False)
        if subject.sent_tokens < trigger_of(subject, work.options.fold) or work.session_id in self._under_way:
            return
        # What went out, with its marks: so the summary reads what is cached.
        incoming = exchange.incoming
        sent = wire.read(exchange.outgoing.body, incoming.spoken, model=incoming.served_model)
        task = asyncio.create_task(self._behind(work, replace(subject, sent=sent)))
        self._under_way[work.session_id] = task
        task.add_done_callback(lambda _: self._under_way.pop(work.session_id, None))

    async def now(self, work: Work, subject: Subject) -> Folded | None:
        """What becomes of a fold that a request waits for."""
        behind = self._under_way.get(work.session_id)
        if behind is not None:
            await asyncio.wait([behind])
        return await self._folded(work, subject)

    async def finished(self) -> None:
        """Wait for all that are under way, for who cannot let time pass."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    async def close(self) -> None:
        """Break off what is under way: its leases are given back, and nothing is half done."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _behind(self, work: Work, subject: Subject) -> None:
        async with self._places:
            try:
                await self._folded(work, subject)
            except Exception as error:  # noqa: BLE001 - nobody waits: whatever fails, the session goes on unfolded
                reason = f"{type(error).__name__}: {error}"
                fault = None if isinstance(error, FoveateError) else error
                told = "%s: the fold of session %s failed: %s"
                _LOG.error(told, work.incoming.id, work.session_id, reason, exc_info=fault)
                self._told(work.incoming.agent, Folded(outcome=Outcome.FAILED, reason=reason))

    async def _folded(self, work: Work, subject: Subject) -> Folded | None:
        no_model = ""
        try:
            client = await self._paid(work, subject)
        except CallRefused as refused:
            client, no_model = None, str(refused)
            _LOG.info("%s: no model is asked for a summary: %s", work.incoming.id, refused)
        endpoint = work.endpoint
        folder = Folder(
            self._journal,
            ModelSummariser(client, endpoint, model=work.options.summarizer_model)
            if client is not None and endpoint is not None
            else None,
            work.counter,
            holder=self._holder,
            clock=self._clock,
            options=work.options.fold,
            price=lambda model, usage: self._price(work, model, usage),
            no_model=no_model,
        )
        try:
            folded = await folder.fold(subject)
        finally:
            if client is not None:
                await asyncio.shield(asyncio.ensure_future(client.release()))
        if folded is not None:
            self.kept(work.incoming.agent)
            self._told(work.incoming.agent, folded)
        return folded

    async def _paid(self, work: Work, subject: Subject) -> PaidClient | None:
        """What asks for a summary, once the caps have room for a first call; None where no model is asked.

        Raises:
            CallRefused: a cap has no room for it.
        """
        endpoint = work.endpoint
        if endpoint is None:
            return None
        options, call, asked = self._cost(), self._call(work), asked_of(subject.sent)
        upper = _MORE_INPUT * max(subject.sent_tokens, work.count.upper if work.count else 0)
        input_tokens = most_input_tokens(
            subject.sent, upper, work.unexplained, window_tokens=work.widest_tokens
        )
        most = AtMost(
            model=call.model,
            provider=call.provider,
            input_tokens=input_tokens or 0,
            output_tokens=_OUTPUT_TOKENS,
            at=call.at,
            ttl=longest_mark(subject.sent),
            tier=asked.tier,
            region=call.region or asked.region,
            searches=asked.searches,
        )
        ceiling = most.dollars(options.prices) if input_tokens is not None else None
        first = await self._admission.admit(call, ceiling, options.caps)
        payment = Payment(
            admission=self._admission,
            options=self._cost,
            call=lambda: self._call(work),
            spoken=endpoint.spoken,
            compare=lambda call, charged: _compare(work, subject, call, charged),
        )
        client = self._client.with_reuse(endpoint.reuse)
        return PaidClient(client, payment, first, output_tokens=_OUTPUT_TOKENS)

    def _call(self, work: Work) -> Call:
        return Call(
            id=f"{work.incoming.id}-fold-{uuid4().hex}",
            agent=work.incoming.agent,
            session_id=work.session_id,
            provider=work.incoming.provider,
            model=work.options.summarizer_model or work.model,
            category=Category.COMPACTION,
            at=self._clock(),
            region=work.incoming.region,
            is_subscription=work.incoming.is_subscription,
        )

    def _price(self, work: Work, model: str, usage: Usage) -> Decimal | None:
        incoming = work.incoming
        price = self._cost().prices.price(
            model, usage, provider=incoming.provider, at=self._clock(), region=incoming.region
        )
        return price.dollars if price is not None else None


def _compare(work: Work, subject: Subject, call: Call, charged: Decimal | None) -> Savings:
    """Compare the cost of a summary: without Foveate it would not have been needed, or not have helped."""
    window, is_too_long = work.widest_tokens, False
    if subject.must_fit and work.count is not None and window is not None:
        is_too_long = work.count.tokens > window - work.output_reserve
    if work.state.would_not_fit or is_too_long:
        return Savings(comparison=Comparison.WOULD_NOT_FIT)
    return own_call(call, charged)
