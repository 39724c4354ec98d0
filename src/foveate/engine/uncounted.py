"""Calls let through under their caps, also those that nobody can count."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from decimal import Decimal
from typing import Protocol

from foveate.cost.admission import Admission, AdmittedCall
from foveate.cost.caps import Cap, UnknownPricePolicy, make_cap_uncheckable
from foveate.cost.ledger import Call, Category
from foveate.engine.options import SpendingOptions
from foveate.errors import CapExceeded

_UNKNOWN_COST_REMEDY = (
    "leave it out, name it in `cost.allow_fields` if what it adds does not matter, or say `unknown: allow` with"
    " the cap"
)
_UNCOUNTED_REMEDY = "send what can be counted, or say `unknown: allow` with the cap"


class AdmitUncounted(Protocol):
    """Lets requests through that are sent as they came and booked nowhere."""

    async def __call__(self, request_id: str, agent: str, reason: str) -> None:
        """Let one through that cannot be counted for a `reason`.

        Raises:
            CallRefused: a cap holds for the agent that does not allow it, or is spent.
        """


class CapUncounted:
    """Lets them through where no cap holds, or all that do allow what has no known price and are not spent."""

    def __init__(
        self, admission: Admission, options: Callable[[], SpendingOptions], clock: Callable[[], float]
    ) -> None:
        self._admission = admission
        self._options = options
        self._clock = clock

    async def __call__(self, request_id: str, agent: str, reason: str) -> None:
        """Let one through, or refuse it."""
        call = Call(
            id=request_id,
            agent=agent,
            session_id=request_id,
            provider="",
            model="",
            category=Category.MAIN,
            at=self._clock(),
        )
        caps = [cap for cap in self._options().caps if cap.applies_to(call)]
        for cap in caps:
            if cap.unknown is UnknownPricePolicy.REFUSE:
                raise make_cap_uncheckable(cap, reason, _UNCOUNTED_REMEDY)
        if caps:
            await self._admission.release(await self._admission.admit(call, None, caps))


def check_unknown_cost(caps: Iterable[Cap], unknown: str) -> None:
    """Refuse a call with something `unknown` in it, if one of the caps that hold for it says so.

    Raises:
        CapUncheckable: nobody can say what it costs.
    """
    for cap in caps:
        if unknown and cap.unknown is UnknownPricePolicy.REFUSE:
            raise make_cap_uncheckable(
                cap, f"nobody knows how much {unknown} may add to the cost", _UNKNOWN_COST_REMEDY
            )


async def admit_call(
    admission: Admission,
    call: Call,
    ceiling: Decimal | None,
    caps: Sequence[Cap],
    *,
    wait_for_charges: Callable[[], Awaitable[None]] | None,
) -> AdmittedCall:
    """What is let through. Before it is refused, bills take the place of what their calls had reserved.

    Raises:
        CallRefused: as `Admission.admit` does.
    """
    try:
        return await admission.admit(call, ceiling, caps)
    except CapExceeded:
        if wait_for_charges is None:
            raise
    await wait_for_charges()
    return await admission.admit(call, ceiling, caps)
