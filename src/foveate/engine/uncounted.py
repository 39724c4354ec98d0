"""Calls let through under their caps, also those that nobody can count."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from decimal import Decimal
from typing import Protocol

from foveate.cost.admission import Admission, Admitted
from foveate.cost.caps import Cap, Unknown, unchecked
from foveate.cost.ledger import Call, Category
from foveate.engine.options import MoneyOptions
from foveate.errors import CapExceeded

_LEAVE_OUT = (
    "leave it out, name it in `cost.allow_fields` if what it adds does not matter, or say `unknown: allow` with"
    " the cap"
)
_REMEDY = "send what can be counted, or say `unknown: allow` with the cap"


class Uncounted(Protocol):
    """Lets requests through that are sent as they came and booked nowhere."""

    async def __call__(self, request_id: str, agent: str, reason: str) -> None:
        """Let one through that cannot be counted for a `reason`.

        Raises:
            CallRefused: a cap holds for the agent that does not allow it, or is spent.
        """


class HoldUncounted:
    """Lets them through where no cap holds, or all that do allow what has no known price and are not spent."""

    def __init__(
        self, admission: Admission, options: Callable[[], MoneyOptions], clock: Callable[[], float]
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
        held = [cap for cap in self._options().caps if cap.holds(call)]
        for cap in held:
            if cap.unknown is Unknown.REFUSE:
                raise unchecked(cap, reason, _REMEDY)
        if held:
            await self._admission.release(await self._admission.admit(call, None, held))


def check_unknown(caps: Iterable[Cap], unknown: str) -> None:
    """Refuse a call with something `unknown` in it, if one of the caps that hold for it says so.

    Raises:
        CapUncheckable: nobody can say what it costs.
    """
    for cap in caps:
        if unknown and cap.unknown is Unknown.REFUSE:
            raise unchecked(cap, f"nobody knows how much {unknown} may add to the cost", _LEAVE_OUT)


async def let_through(
    admission: Admission,
    call: Call,
    ceiling: Decimal | None,
    caps: Sequence[Cap],
    *,
    caught_up: Callable[[], Awaitable[None]] | None,
) -> Admitted:
    """What is let through. Before it is refused, bills take the place of what their calls had reserved.

    Raises:
        CallRefused: as `Admission.admit` does.
    """
    try:
        return await admission.admit(call, ceiling, caps)
    except CapExceeded:
        if caught_up is None:
            raise
    await caught_up()
    return await admission.admit(call, ceiling, caps)
