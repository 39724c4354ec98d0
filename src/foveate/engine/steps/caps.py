"""The step that reserves what a call may cost under its caps, or rejects the call."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from foveate.cost.admission import Admission, Admitted
from foveate.cost.caps import Cap, Unknown, unchecked
from foveate.cost.ledger import Call, Category
from foveate.engine.bounds import at_most, unknown_features
from foveate.engine.cost_features import header_features, without_allowed
from foveate.engine.options import MoneyOptions
from foveate.engine.output_limits import limit_output
from foveate.engine.steps.names import COST
from foveate.engine.uncounted import check_unknown, let_through
from foveate.engine.work import Work
from foveate.errors import CallRefused, CapExceeded
from foveate.session.counting import beside
from foveate.tokens.threads import run_in_thread
from foveate.values import NOTHING, STORED_HISTORY
from foveate.wire.large_json import LARGE_BYTES

_UNKNOWN_SIZE = "the provider keeps the earlier messages of this conversation, so its size is not known here"
_SEND_ALL = "send the whole conversation with each request, or say `unknown: allow` with the cap"


class HoldCaps:
    """What a call may cost is reserved under its caps, or the call is refused.

    Where no cap holds for it, that is worked out while its provider answers.
    """

    name = COST

    def __init__(
        self,
        admission: Admission,
        options: Callable[[], MoneyOptions],
        caught_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`caught_up` waits until all that is billed by now is booked."""
        self._admission = admission
        self._options = options
        self._caught_up = caught_up

    async def take(self, work: Work) -> None:
        """Reserve it.

        Raises:
            CapExceeded: a cap has no room for it.
            CapUncheckable: its price is not known, or what was spent so far.
        """
        incoming, options = work.incoming, self._options()
        call = work.call = Call(
            id=incoming.id,
            agent=incoming.agent,
            session_id=work.session_id,
            provider=incoming.provider,
            model=work.model,
            category=Category.MAIN,
            at=work.now,
            region=incoming.region,
            is_subscription=incoming.is_subscription,
        )
        held = [cap for cap in options.caps if cap.holds(call)]
        size_bytes = len(work.request.body)
        if not held:
            if size_bytes < LARGE_BYTES:
                asyncio.get_running_loop().call_soon(self._expect_meanwhile, work, options)
            else:
                await run_in_thread(lambda: _try_to_expect(work, options), size_bytes)
            return
        if work.has_unknown_size:
            for cap in held:
                if cap.unknown is Unknown.REFUSE:
                    raise unchecked(cap, _UNKNOWN_SIZE, _SEND_ALL)
        try:
            unknown = await beside(lambda: expect(work, options), size_bytes, least_bytes=LARGE_BYTES)
            check_unknown(held, unknown)
            work.admitted = await self._admit(work, call, held, options)
        except CallRefused:
            raise
        except Exception as error:  # a cap is held whatever fails: then nobody can say that there is room
            said = f"{type(error).__name__}: {error}"
            raise unchecked(held[0], said, "look into the log", is_outage=True) from error

    def _expect_meanwhile(self, work: Work, options: MoneyOptions) -> None:
        _try_to_expect(work, options)
        self._admission.announce_ceiling(work.incoming.id, work.ceiling)

    async def _admit(self, work: Work, call: Call, caps: Sequence[Cap], options: MoneyOptions) -> Admitted:
        """Admit a call, with an output limit that fits under the caps if it has none and needs one.

        Raises:
            CallRefused: as `Admission.admit` does.
        """
        whole = work.at_most
        while True:
            try:
                return await let_through(self._admission, call, work.ceiling, caps, caught_up=self._caught_up)
            except CapExceeded as refused:
                if whole is None or work.ceiling is None or work.ceiling <= refused.room:
                    raise
                if work.is_unchanged:
                    raise
                # Another cap may then ask for a lower limit, and so may calls that were admitted meanwhile.
                work.output_limit, work.at_most = limit_output(
                    work.request,
                    whole,
                    refused,
                    caps,
                    prices=options.prices,
                    min_tokens=options.min_output_tokens,
                )
                work.ceiling = work.at_most.dollars(options.prices)


def expect(work: Work, options: MoneyOptions) -> str:
    """Work out what a call can come to; nothing is known of one that was not counted.

    Returns what makes its cost unknown, if that is a feature of the request; a cap that allows it still
    reserves the rest. What the provider stores fits into the window, whatever its size.
    """
    prices, allowed = options.prices, options.allow_fields
    features = unknown_features(work.request, work.incoming.provider, allowed)
    features += without_allowed(header_features(work.incoming.cost_headers), allowed)
    unknown = str(features[0]) if features else ""
    count = NOTHING if work.count is None and work.has_unknown_size else work.count
    if count is None:
        return unknown
    most = at_most(
        work.request,
        count,
        provider=work.incoming.provider,
        window_tokens=work.widest_tokens,
        ttl=work.longest_ttl,
        at=work.now,
        unexplained=work.unexplained,
        counted=STORED_HISTORY if work.counts_stored else frozenset(),
        region=work.incoming.region or None,
        allowed=allowed,
    )
    work.ceiling = most.dollars(prices) if most is not None else None
    work.at_most = most
    if not unknown and most is not None and work.ceiling is None:
        return most.unpriced(prices)
    return unknown


def _try_to_expect(work: Work, options: MoneyOptions) -> None:
    with suppress(Exception):  # a border: it is tried once more with the bill, and told then
        expect(work, options)
