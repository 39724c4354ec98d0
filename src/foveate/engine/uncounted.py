"""Requests that nobody can count: under a cap they are refused, as all is whose price is not known."""

from collections.abc import Callable
from typing import Protocol

from foveate.cost.admission import Admission
from foveate.cost.caps import Unknown, unchecked
from foveate.cost.ledger import Call, Category
from foveate.engine.options import MoneyOptions

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
