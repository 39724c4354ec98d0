"""The step that reserves what a call may cost under its caps, or rejects the call."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from foveate.cost.admission import Admission, AdmittedCall
from foveate.cost.caps import Cap, UnknownPricePolicy, make_cap_uncheckable
from foveate.cost.ledger import Call, Category
from foveate.engine.context import RequestContext
from foveate.engine.options import SpendingOptions
from foveate.engine.spending.admission import admit_call, check_unknown_cost
from foveate.engine.spending.cost_ceiling import compute_cost_ceiling, limit_output, unknown_features
from foveate.engine.spending.cost_features import header_features, without_allowed
from foveate.engine.steps.names import CAPS
from foveate.errors import CallRefused, CapExceeded
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.model import STORED_HISTORY, ZERO_TOKENS
from foveate.session.counting import run_in_thread_if_large
from foveate.tokens.threads import run_in_thread

_UNKNOWN_SIZE_REASON = (
    "the provider keeps the earlier messages of this conversation, so its size is not known here"
)
_UNKNOWN_SIZE_REMEDY = "send the whole conversation with each request, or say `unknown: allow` with the cap"


class EnforceCaps:
    """What a call may cost is reserved under its caps, or the call is refused.

    Where no cap holds for it, that is worked out while its provider answers.
    """

    name = CAPS

    def __init__(
        self,
        admission: Admission,
        options: Callable[[], SpendingOptions],
        wait_for_charges: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`caught_up` waits until all that is billed by now is booked."""
        self._admission = admission
        self._options = options
        self._wait_for_charges = wait_for_charges

    async def apply(self, context: RequestContext) -> None:
        """Reserve it.

        Raises:
            CapExceeded: a cap has no room for it.
            CapUncheckable: its price is not known, or what was spent so far.
        """
        incoming, options = context.incoming, self._options()
        call = context.call = Call(
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
        if context.has_unknown_size:
            for cap in caps:
                if cap.unknown is UnknownPricePolicy.REFUSE:
                    raise make_cap_uncheckable(cap, _UNKNOWN_SIZE_REASON, _UNKNOWN_SIZE_REMEDY)
        try:
            unknown = await run_in_thread_if_large(
                lambda: set_cost_ceiling(context, options), size_bytes, min_bytes=LARGE_BYTES
            )
            check_unknown_cost(caps, unknown)
            context.reservation = await self._admit(context, call, caps, options)
        except CallRefused:
            raise
        except Exception as error:  # a cap is held whatever fails: then nobody can say that there is room
            reason = f"{type(error).__name__}: {error}"
            raise make_cap_uncheckable(caps[0], reason, "look into the log", is_outage=True) from error

    def _compute_ceiling_later(self, context: RequestContext, options: SpendingOptions) -> None:
        _try_cost_ceiling(context, options)
        self._admission.announce_ceiling(context.incoming.id, context.ceiling_dollars)

    async def _admit(
        self, context: RequestContext, call: Call, caps: Sequence[Cap], options: SpendingOptions
    ) -> AdmittedCall:
        """Admit a call, with an output limit that fits under the caps if it has none and needs one.

        Raises:
            CallRefused: as `Admission.admit` does.
        """
        unlimited = context.cost_ceiling
        while True:
            try:
                return await admit_call(
                    self._admission,
                    call,
                    context.ceiling_dollars,
                    caps,
                    wait_for_charges=self._wait_for_charges,
                )
            except CapExceeded as rejection:
                if (
                    unlimited is None
                    or context.ceiling_dollars is None
                    or context.ceiling_dollars <= rejection.room
                ):
                    raise
                if context.is_read_only:
                    raise
                # Another cap may then ask for a lower limit, and so may calls that were admitted meanwhile.
                context.output_limit, context.cost_ceiling = limit_output(
                    context.request,
                    unlimited,
                    rejection,
                    caps,
                    prices=options.prices,
                    min_tokens=options.min_output_tokens,
                )
                context.ceiling_dollars = context.cost_ceiling.dollars(options.prices)


def set_cost_ceiling(context: RequestContext, options: SpendingOptions) -> str:
    """Work out what a call can come to; nothing is known of one that was not counted.

    Returns what makes its cost unknown, if that is a feature of the request; a cap that allows it still
    reserves the rest. What the provider stores fits into the window, whatever its size.
    """
    prices, allowed = options.prices, options.allow_fields
    features = unknown_features(context.request, context.incoming.provider, allowed)
    features += without_allowed(header_features(context.incoming.cost_headers), allowed)
    unknown = str(features[0]) if features else ""
    count = ZERO_TOKENS if context.token_count is None and context.has_unknown_size else context.token_count
    if count is None:
        return unknown
    cost_ceiling = compute_cost_ceiling(
        context.request,
        count,
        provider=context.incoming.provider,
        window_tokens=context.max_window_tokens,
        ttl=context.max_ttl,
        at=context.received_at,
        unexplained=context.unexplained,
        counted_inputs=STORED_HISTORY if context.count_includes_stored else frozenset(),
        region=context.incoming.region or None,
        allowed=allowed,
    )
    context.ceiling_dollars = cost_ceiling.dollars(prices) if cost_ceiling is not None else None
    context.cost_ceiling = cost_ceiling
    if not unknown and cost_ceiling is not None and context.ceiling_dollars is None:
        return cost_ceiling.describe_unpriced(prices)
    return unknown


def _try_cost_ceiling(context: RequestContext, options: SpendingOptions) -> None:
    with suppress(Exception):  # a border: it is tried once more with the bill, and told then
        set_cost_ceiling(context, options)
