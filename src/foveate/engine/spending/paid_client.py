"""An HTTP client for summaries and keep-alive requests: its calls are admitted under caps and recorded."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from foveate import formats
from foveate.budget.model_limits import find_context_window
from foveate.cost.admission import Admission, AdmittedCall
from foveate.cost.ledger import Call, Charge
from foveate.cost.savings import make_own_call_savings, make_price_function
from foveate.engine.options import SpendingOptions
from foveate.engine.spending.cost_ceiling import (
    compute_cost_ceiling,
    max_breakpoint_ttl,
    read_cost_parameters,
    unknown_features,
)
from foveate.errors import CallRefused, MalformedRequest, UpstreamBroken, UpstreamStatus, UpstreamUnreachable
from foveate.formats.response.usage import find_usage
from foveate.http import JsonClient, JsonReply
from foveate.model import CacheUsage, Format, Savings, Usage
from foveate.tokens import counter_for

# A provider's status for customers without credit; the caller does not retry it.
_PAYMENT_REQUIRED = 402


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOptions:
    """`make_call` creates the ledger's call, `compare` its effect on savings."""

    admission: Admission
    options: Callable[[], SpendingOptions]
    make_call: Callable[[], Call]
    api_format: Format
    compare: Callable[[Call, Decimal | None], Savings] = make_own_call_savings


class PaidClient(JsonClient):
    """Sends requests by `client`, and pays for them. `first_reservation` is used for the first call.

    If it covers at most `output_tokens`, a request for a longer response gets a new reservation.
    """

    def __init__(
        self,
        client: JsonClient,
        payment: PaymentOptions,
        first_reservation: AdmittedCall,
        *,
        output_tokens: int | None = None,
    ) -> None:
        super().__init__(timeout_seconds=client.timeout_seconds)
        self._client = client
        self._payment = payment
        self._first_reservation: AdmittedCall | None = first_reservation
        self._output_tokens = output_tokens

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> JsonReply:
        """Send a request once the caps have room for it.

        Raises:
            UpstreamStatus: also if a cap rejects the call; then nothing was sent or charged.
            UpstreamError: as `client` does.
        """
        try:
            reservation = await self._admit(body)
        except CallRefused as rejection:
            raise UpstreamStatus(url, _PAYMENT_REQUIRED, str(rejection)) from rejection
        usage: Usage | None = None
        is_free = False
        self._payment.admission.announce(reservation.call, ceiling=reservation.ceiling)
        try:
            reply = await self._client.post_json(url, body, headers)
            usage = _read_usage(self._payment.api_format, reply)
        except (UpstreamStatus, UpstreamUnreachable) as error:
            is_free = not isinstance(error, UpstreamBroken)
            raise
        finally:
            settlement = (
                self._payment.admission.release(reservation)
                if is_free
                else self._record_charge(reservation, usage)
            )
            await asyncio.shield(asyncio.ensure_future(settlement))
        return reply

    async def release(self) -> None:
        reservation, self._first_reservation = self._first_reservation, None
        if reservation is not None:
            await self._payment.admission.release(reservation)

    async def _admit(self, body: bytes) -> AdmittedCall:
        reservation, self._first_reservation = self._first_reservation, None
        call, options = self._payment.make_call(), self._payment.options()
        request = formats.parse_request(body, self._payment.api_format, model=call.model)
        if reservation is not None:
            reserved_tokens, requested_tokens = self._output_tokens, read_cost_parameters(request).output_tokens
            if reserved_tokens is None or (
                requested_tokens is not None and requested_tokens <= reserved_tokens
            ):
                return reservation
            await self._payment.admission.release(reservation)
        counted = await asyncio.to_thread(lambda: counter_for(request.model).count_request(request))
        window = find_context_window(request.model)
        cost_ceiling = compute_cost_ceiling(
            request,
            counted.total,
            provider=call.provider,
            window_tokens=window.tokens if window is not None else None,
            ttl=max_breakpoint_ttl(request),
            at=call.at,
            unexplained=counted.unexplained,
            region=call.region or None,
            allowed=options.allow_fields,
        )
        is_cost_known = not unknown_features(request, call.provider, options.allow_fields)
        ceiling = cost_ceiling.dollars(options.prices) if cost_ceiling is not None and is_cost_known else None
        return await self._payment.admission.admit(call, ceiling, options.caps)

    async def _record_charge(self, reservation: AdmittedCall, usage: Usage | None) -> None:
        call = reservation.call
        prices = self._payment.options().prices
        price = make_price_function(prices, call)
        dollars = price(usage) if usage is not None else None
        charge = Charge(
            call=call,
            usage=usage or Usage(cache=CacheUsage()),
            dollars=dollars,
            estimated_dollars=reservation.ceiling,
            savings=self._payment.compare(call, dollars),
            is_partial=usage is None,
            is_inherited=usage is not None
            and prices.is_inherited(call.model, usage, provider=call.provider, at=call.at),
        )
        self._payment.admission.log_charge(charge)
        await self._payment.admission.settle(charge)


def _read_usage(api_format: Format, reply: JsonReply) -> Usage | None:
    try:
        usage = find_usage(api_format, reply)
    except MalformedRequest:
        return None
    return None if usage is None or usage.is_empty else usage
