"""The calls for summaries: each is let through under the caps by itself, and booked by itself."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from foveate import wire
from foveate.budget.windows import window_of
from foveate.cost.admission import Admission, Admitted
from foveate.cost.ledger import Call, Entry
from foveate.cost.savings import own_call, pricing
from foveate.engine.bounds import asked_of, at_most, longest_mark, unknown_features
from foveate.engine.options import MoneyOptions
from foveate.errors import CallRefused, MalformedRequest, UpstreamBroken, UpstreamStatus, UpstreamUnreachable
from foveate.tokens import counter_for
from foveate.upstream import Client, Reply
from foveate.values import CacheUsage, Format, Savings, Usage
from foveate.wire.usage import usage_in

# What a provider answers whose customer has no money left; who asks for a summary does not ask again.
_PAYMENT_REQUIRED = 402


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """How calls are paid for. `call` gives each a name of its own, `compare` tells what it adds to savings."""

    admission: Admission
    options: Callable[[], MoneyOptions]
    call: Callable[[], Call]
    spoken: Format
    compare: Callable[[Call, Decimal | None], Savings] = own_call


class PaidClient(Client):
    """Asks as `client` does, and pays. Of what was admitted beforehand, `first` is for the first call.

    If that is for a response of at most `output_tokens`, a request for a longer one is admitted anew.
    """

    def __init__(
        self, client: Client, payment: Payment, first: Admitted, *, output_tokens: int | None = None
    ) -> None:
        super().__init__(timeout_seconds=client.timeout_seconds)
        self._client = client
        self._payment = payment
        self._first: Admitted | None = first
        self._output_tokens = output_tokens

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """What `client` is answered, once a cap has room for it.

        Raises:
            UpstreamStatus: also where no cap has room: then nothing was sent, and nothing is billed.
            UpstreamError: as `client` does.
        """
        try:
            admitted = await self._admitted(body)
        except CallRefused as refused:
            raise UpstreamStatus(url, _PAYMENT_REQUIRED, str(refused)) from refused
        usage: Usage | None = None
        is_free = False
        self._payment.admission.announce(admitted.call, ceiling=admitted.ceiling)
        try:
            reply = await self._client.post_json(url, body, headers)
            usage = _usage(self._payment.spoken, reply)
        except (UpstreamStatus, UpstreamUnreachable) as error:
            is_free = not isinstance(error, UpstreamBroken)
            raise
        finally:
            paid = self._payment.admission.release(admitted) if is_free else self._booked(admitted, usage)
            await asyncio.shield(asyncio.ensure_future(paid))
        return reply

    async def release(self) -> None:
        """Free what was reserved for a first call that was not made."""
        first, self._first = self._first, None
        if first is not None:
            await self._payment.admission.release(first)

    async def _admitted(self, body: bytes) -> Admitted:
        first, self._first = self._first, None
        call, options = self._payment.call(), self._payment.options()
        request = wire.read(body, self._payment.spoken, model=call.model)
        if first is not None:
            longest, asked = self._output_tokens, asked_of(request).output_tokens
            if longest is None or (asked is not None and asked <= longest):
                return first
            await self._payment.admission.release(first)
        counted = await asyncio.to_thread(lambda: counter_for(request.model).request(request))
        window = window_of(request.model)
        most = at_most(
            request,
            counted.total,
            provider=call.provider,
            window_tokens=window.tokens if window is not None else None,
            ttl=longest_mark(request),
            at=call.at,
            unexplained=counted.unexplained,
            region=call.region or None,
            allowed=options.allow_fields,
        )
        is_known = not unknown_features(request, call.provider, options.allow_fields)
        ceiling = most.dollars(options.prices) if most is not None and is_known else None
        return await self._payment.admission.admit(call, ceiling, options.caps)

    async def _booked(self, admitted: Admitted, usage: Usage | None) -> None:
        call = admitted.call
        prices = self._payment.options().prices
        price = pricing(prices, call)
        dollars = price(usage) if usage is not None else None
        entry = Entry(
            call=call,
            usage=usage or Usage(cache=CacheUsage()),
            dollars=dollars,
            estimated_dollars=admitted.ceiling,
            savings=self._payment.compare(call, dollars),
            is_partial=usage is None,
            is_inherited=usage is not None
            and prices.is_inherited(call.model, usage, provider=call.provider, at=call.at),
        )
        self._payment.admission.jot(entry)
        await self._payment.admission.settle(entry)


def _usage(spoken: Format, reply: Reply) -> Usage | None:
    try:
        usage = usage_in(spoken, reply)
    except MalformedRequest:
        return None
    return None if usage is None or usage.is_empty else usage
