"""The step that reserves the cost ceiling of a call under its caps, or rejects the call."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from foveate.cost.admission import Admission, AdmittedCall
from foveate.cost.caps import Cap, UnknownPricePolicy, make_cap_uncheckable
from foveate.cost.ledger import Call, Category
from foveate.engine.options import SpendingOptions
from foveate.engine.request_context import RequestContext
from foveate.engine.spending.cost_ceiling import compute_cost_ceiling, limit_output, unknown_features
from foveate.engine.spending.observed_admission import UNCOUNTED_REMEDY, admit_call, check_unknown_cost
from foveate.engine.spending.unknown_costs import header_features, without_allowed
from foveate.engine.steps import CAPS
from foveate.errors import CallRefused, CapExceeded
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.model import STORED_HISTORY, ZERO_TOKENS
from foveate.session.counting import run_in_thread_if_large
from foveate.tokens.worker_threads import run_in_thread

_UNKNOWN_SIZE_REASON = "the provider stores the earlier messages of this conversation, so its size is unknown"
_UNKNOWN_SIZE_REMEDY = "send the whole conversation with each request, or set `unknown: allow` for the cap"


class EnforceCaps:
    """Reserves the cost ceiling of a call under all caps.

    Without caps, computes it while the provider responds.
    """

    name = CAPS

    def __init__(
        self,
        admission: Admission,
        options: Callable[[], SpendingOptions],
        wait_for_charges: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wait_for_charges` waits until all charges so far are recorded."""
        self._admission = admission
        self._options = options
        self._wait_for_charges = wait_for_charges

    async def apply(self, context: RequestContext) -> None:
        """Reserve the cost ceiling.

        Raises:
            CapExceeded: a cap has no room for it.
            CapUncheckable: the price, or the amount spent so far, is unknown.
        """
        incoming, options = context.incoming, self._options()
        call = context.cost.call = Call(
            id=incoming.id,
            agent=incoming.agent,
            session_id=context.session_id,
            provider=incoming.provider,
            model=context.model,
            category=Category.MAIN,
            at=context.received_at,
            region=incoming.region,
            is_subscription=incoming.is_subscription,
        )
        caps = [cap for cap in options.caps if cap.applies_to(call)]
        size_bytes = len(context.request.body)
        if not caps:
            if size_bytes < LARGE_BYTES:
                asyncio.get_running_loop().call_soon(self._compute_ceiling_later, context, options)
            else:
                await run_in_thread(lambda: _try_cost_ceiling(context, options), size_bytes)
            return
        strict_cap = next((cap for cap in caps if cap.unknown is UnknownPricePolicy.REJECT), None)
        if context.has_unknown_size and strict_cap is not None:
            raise make_cap_uncheckable(strict_cap, _UNKNOWN_SIZE_REASON, _UNKNOWN_SIZE_REMEDY)
        try:
            unknown = await run_in_thread_if_large(
                lambda: check_cost_ceiling(context, options), size_bytes, min_bytes=LARGE_BYTES
            )
            check_unknown_cost(caps, unknown)
            if context.cost.ceiling is None and strict_cap is not None:
                raise make_cap_uncheckable(strict_cap, "the number of its tokens is unknown", UNCOUNTED_REMEDY)
            context.cost.reservation = await self._admit(context, call, caps, options)
        except CallRefused:
            raise
        except Exception as error:  # fail closed: without a check, nobody knows whether there is room
            reason = f"{type(error).__name__}: {error}"
            raise make_cap_uncheckable(caps[0], reason, "see the gateway's log", is_outage=True) from error

    def _compute_ceiling_later(self, context: RequestContext, options: SpendingOptions) -> None:
        _try_cost_ceiling(context, options)
        self._admission.announce_ceiling(context.incoming.id, context.cost.ceiling_dollars)

    async def _admit(
        self, context: RequestContext, call: Call, caps: Sequence[Cap], options: SpendingOptions
    ) -> AdmittedCall:
        """Admit a call; if it has no output limit and needs one, set one that fits under the caps.

        Raises:
            CallRefused: as `Admission.admit` does.
        """
        unlimited = context.cost.ceiling
        while True:
            try:
                return await admit_call(
                    self._admission,
                    call,
                    context.cost.ceiling_dollars,
                    caps,
                    wait_for_charges=self._wait_for_charges,
                )
            except CapExceeded as rejection:
                if (
                    unlimited is None
                    or context.cost.ceiling_dollars is None
                    or context.cost.ceiling_dollars <= rejection.room
                ):
                    raise
                if context.is_read_only:
                    raise
                # Another cap, or calls admitted meanwhile, may then require a lower limit.
                context.cost.output_limit, context.cost.ceiling = limit_output(
                    context.request,
                    unlimited,
                    rejection,
                    caps,
                    prices=options.prices,
                    min_tokens=options.min_output_tokens,
                )
                context.cost.ceiling_dollars = context.cost.ceiling.dollars(options.prices)


def check_cost_ceiling(context: RequestContext, options: SpendingOptions) -> str:
    """Compute the cost ceiling of a call, and return the feature that makes the cost unknown, if any.

    A cap that allows the feature still reserves the rest.
    """
    allowed = options.allow_fields
    features = unknown_features(context.request, context.incoming.provider, allowed)
    features += without_allowed(header_features(context.incoming.cost_headers), allowed)
    set_cost_ceiling(context, options)
    if features:
        return str(features[0])
    ceiling, is_priced = context.cost.ceiling, context.cost.ceiling_dollars is not None
    return "" if ceiling is None or is_priced else ceiling.describe_unpriced(options.prices)


def set_cost_ceiling(context: RequestContext, options: SpendingOptions) -> None:
    """Compute the cost ceiling of a call; it stays unknown if the call was not counted.

    What the provider stores fits into the window, whatever its size.
    """
    count = ZERO_TOKENS if context.count.total is None and context.has_unknown_size else context.count.total
    if count is None:
        return
    cost_ceiling = compute_cost_ceiling(
        context.request,
        count,
        provider=context.incoming.provider,
        window_tokens=context.max_window_tokens,
        ttl=context.max_ttl,
        at=context.received_at,
        unexplained=context.unexplained,
        counted_inputs=STORED_HISTORY if context.count.includes_stored else frozenset(),
        region=context.incoming.region or None,
        allowed=options.allow_fields,
    )
    context.cost.ceiling_dollars = cost_ceiling.dollars(options.prices) if cost_ceiling is not None else None
    context.cost.ceiling = cost_ceiling


def _try_cost_ceiling(context: RequestContext, options: SpendingOptions) -> None:
    with suppress(Exception):  # it is tried again, and reported, with the charge
        set_cost_ceiling(context, options)
