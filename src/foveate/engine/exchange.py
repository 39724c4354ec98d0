"""One call: what is sent, the answer as it passes, and what is made of both at the end."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from foveate.cache.refusals import Refusal, refusal, refused_parameters
from foveate.cost.admission import Admitted
from foveate.cost.ledger import Entry
from foveate.engine.answers import AnswerReader
from foveate.engine.calls import Incoming, Outgoing, Problem
from foveate.engine.client_breakpoints import client_removals
from foveate.engine.steps.names import CACHE
from foveate.engine.work import Work
from foveate.errors import FoveateError
from foveate.fold.thoughts import is_mismatch
from foveate.session.counting import beside
from foveate.values import CacheUsage, SetParameter, SimulatedState, Usage
from foveate.wire.answer_parts import AnswerParts
from foveate.wire.large_json import LARGE_BYTES
from foveate.wire.rate_limits import RateLimit, rate_limits_in

_LOG = logging.getLogger(__name__)

# As fast as all but a few hosts have large models write (November 2026).
_TOKENS_PER_SECOND = 500


class Settle(Protocol):
    """Something that is done with every exchange at its end: quick, since nothing else goes on meanwhile."""

    def __call__(self, exchange: "Exchange", /) -> None:
        """Do it, or begin to."""


class ExchangeObserver(Protocol):
    """Is told what becomes of exchanges."""

    def failed(self, incoming: Incoming, problem: Problem) -> None:
        """A step failed, and the request goes out without it; or something that is done at its end."""

    def ended(self, exchange: "Exchange") -> None:
        """An exchange has come to its end, and all that is done with it is done."""


class Completion(Protocol):
    """Completes exchanges in the background: their charges, what is stored of them, their last hooks."""

    def put(self, exchange: "Exchange") -> None:
        """Have an exchange completed that is over."""

    def keep(self, exchanges: "Sequence[Exchange]") -> None:
        """Begin to store what is to be stored of requests."""

    async def settled(self) -> None:
        """Wait until all exchanges that are over by now are completed."""


class Exchange:
    """A call from the moment it is sent. Whoever relays it says what comes, and at last that it is over."""

    def __init__(
        self,
        incoming: Incoming,
        work: Work | None,
        outgoing: Outgoing,
        *,
        settle: Sequence[Settle],
        clock: Callable[[], float],
        watch: ExchangeObserver,
        behind: Completion,
        came_at: float | None = None,
        write: Callable[[Work], Outgoing] | None = None,
        note: Settle | None = None,
        remember: Sequence[Settle] = (),
        admitted: Admitted | None = None,
    ) -> None:
        """`work` is None for a request that could not be understood. `came_at`: when it was here.

        `write` makes of the work what is sent once our marks are taken out of it.

        `note` is done before the client has all of it, `remember` before its next request, and `settle`
        `behind` the answer, once its bill is booked. `admitted` is what its work was let through as, or it.
        """
        self.incoming = incoming
        self.work = work
        self.outgoing = outgoing
        self.sent_at = self.begun_at = self.ended_at = clock()
        self.came_at = self.sent_at if came_at is None else came_at
        self.status = 0
        self.refused: Refusal | None = None
        self.refused_parameters: frozenset[str] = frozenset()  # of those that we added
        self.has_bad_thoughts = False  # some were refused, since they do not fit what stands before them
        self.is_broken = False
        self.is_unsent = False
        self.entry: Entry | None = None  # what is booked
        self.rate_limits: tuple[RateLimit, ...] = ()  # of the subscription that pays for it
        self.simulated: Mapping[SimulatedState, CacheUsage] = {}  # its input in each state
        self._admitted = admitted
        self._is_unknown = False
        self._watch = watch
        self._behind = behind
        self._settle = settle
        self._write = write
        self._note = note
        self._is_noted = note is None
        self._remember = remember
        self._clock = clock
        self._answer: AnswerReader | None = None

    async def goes_again(self, status: int, said: bytes) -> bool:
        """Whether `outgoing` is to be sent once more, as it is then: an answer refuses what we added to it.

        That happens once for our marks, and once for each of our parameters.
        """
        work = self.work
        if work is None:
            return False
        self.has_bad_thoughts = work.rules.binds_thinking and is_mismatch(status, said)
        write = self._write
        if write is None or not (
            self._drop_parameters(work, status, said) or await self._drop_marks(work, status, said)
        ):
            return False
        self.outgoing = await beside(lambda: write(work), len(work.request.body), least_bytes=LARGE_BYTES)
        return True

    def _drop_parameters(self, work: Work, status: int, said: bytes) -> bool:
        """Remove our parameters that an error response names; a parameter of the client's is none of them."""
        added = {edit.path[0] for edit in work.parameters if isinstance(edit, SetParameter)}
        refused = refused_parameters(status, said, added) if added else frozenset()
        if not refused:
            return False
        self.refused_parameters |= refused
        work.parameters = tuple(
            edit
            for edit in work.parameters
            if not isinstance(edit, SetParameter) or edit.path[0] not in refused
        )
        _LOG.info(
            "%s: upstream %s refuses %s for %s, sending the request again without it",
            self.incoming.id,
            self.incoming.upstream,
            ", ".join(sorted(refused)),
            work.model,
        )
        return True

    async def _drop_marks(self, work: Work, status: int, said: bytes) -> bool:
        """Remove our breakpoints if an error response refuses them, and then the client's if it still does."""
        found = refusal(status, said)
        if found is None or self.refused is Refusal.CLIENT:
            return False
        if work.marks:
            self.refused, work.marks = found, ()
            return True
        removals = client_removals(work.request) if found is Refusal.MARKS else []
        if not removals:
            return False
        self.refused = Refusal.CLIENT
        await work.edit(CACHE, removals)
        return True

    def unsent(self) -> None:
        """The provider was not reached."""
        self.is_unsent = True

    @property
    def is_subscription(self) -> bool:
        """Whether a subscription pays for it, by its credentials or by what the provider says of limits."""
        return self.incoming.is_subscription or bool(self.rate_limits)

    def begun(
        self,
        status: int,
        *,
        streams: bool,
        is_framed: bool = False,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """The head of the answer that the client gets has come; `is_framed`: it is in the frames of AWS."""
        self.begun_at = self._clock()
        self.rate_limits = rate_limits_in(headers, now=self.begun_at)
        self.status = status
        self._answer = AnswerReader(
            self.incoming.spoken,
            streams=streams,
            is_framed=is_framed,
            hides_usage=streams and self._asks_for_usage(),
            keeps=self.incoming.keeps_answer or (self.work is not None and self.work.options.sends_pings),
        )

    def _asks_for_usage(self) -> bool:
        parameters = self.work.parameters if self.work is not None else ()
        return any(isinstance(edit, SetParameter) and edit.path[0] == "stream_options" for edit in parameters)

    @property
    def changes_answer(self) -> bool:
        """Whether the client may get other bytes than the provider sent."""
        return self._answer is not None and self._answer.changes

    def passed(self, piece: bytes) -> bytes:
        """What the client gets of a piece of the answer; at the end of a stream, its bill is noted before."""
        if self._answer is None:
            return piece
        passed = self._answer.passed(piece)
        if not self._is_noted and self._answer.has_ended:
            self._have_noted()
        return passed

    def rest(self) -> bytes:
        """What the client gets after the last piece."""
        return self._answer.ended() if self._answer is not None else b""

    @property
    def has_ended(self) -> bool:
        """Whether the last event of a stream has come."""
        return self._answer is not None and self._answer.has_ended

    @property
    def streams(self) -> bool:
        """Whether the answer comes as it is written."""
        return self._answer is not None and self._answer.streams

    @property
    def usage(self) -> Usage | None:
        """The bill, as far as it came."""
        return self._answer.usage if self._answer is not None else None

    @property
    def answer(self) -> bytes | None:
        """All that was answered; None where it was not kept."""
        return self._answer.whole if self._answer is not None else None

    def answer_parts(self) -> AnswerParts:
        """Return the parts by which the answer is recognised when the client sends it back."""
        return self._answer.parts() if self._answer is not None else AnswerParts()

    @property
    def has_bill(self) -> bool:
        """Whether the bill is whole: a stream that breaks off may have told only a first part of it."""
        answer, usage = self._answer, self.usage
        if answer is None or usage is None or answer.has_failed or usage.is_empty:
            return False
        return not self.is_broken or answer.is_whole

    @property
    def may_be_billed(self) -> bool:
        """Whether the provider may bill it, told or not: it was asked, and has not said no."""
        return not self.is_unsent if self.status == 0 else 200 <= self.status < 300

    @property
    def written_tokens(self) -> int | None:
        """At least about as many tokens as have been written; None where that cannot be seen.

        What a model thinks may not be shown, but takes its time.
        """
        if self._answer is None or not self._answer.streams:
            return None
        seconds = max(0.0, self.ended_at - self.sent_at)
        return max(self._answer.written_tokens, int(seconds * _TOKENS_PER_SECOND))

    @property
    def is_whole(self) -> bool:
        """Whether the answer came to its end."""
        return not self.is_broken and self._answer is not None and self._answer.is_whole

    @property
    def unbilled(self) -> Admitted | None:
        """What it was let through as, where it costs nothing: what was reserved for it is to be freed."""
        if self.entry is not None or self._is_unknown:
            return None
        return self._admitted if self.work is None else self.work.admitted

    def over(self, *, is_broken: bool = False) -> None:
        """Nothing more comes; `is_broken`: the answer was not there, broke off, or nobody wanted its rest.

        What is to be done with it is done from now on, whether or not anybody waits for it.
        """
        self.is_broken = is_broken
        if not self._is_noted:
            self._have_noted()
        self.ended_at = self._clock()
        # Not before what the client is still to get is written, and before anything that it sends then is read.
        asyncio.get_running_loop().call_soon(self._do, self._remember)
        self._behind.put(self)

    async def settled(self) -> None:
        """Wait until all is done with it."""
        await self._behind.settled()

    def keep(self) -> None:
        """Begin to keep what is to be kept of the request."""
        self._behind.keep((self,))

    def settle(self) -> None:
        """Do what is done last."""
        self._do((*self._settle, self._watch.ended))

    def failed(self, what: str, error: Exception) -> None:
        """Tell that something could not be done with it; of a fault of ours, with where it happened."""
        problem = Problem(what, f"{type(error).__name__}: {error}")
        fault = None if isinstance(error, FoveateError) else error
        _LOG.error("%s: %s failed: %s", self.incoming.id, what, problem.reason, exc_info=fault)
        self._watch.failed(self.incoming, problem)

    def _have_noted(self) -> None:
        self._is_noted = True
        self.ended_at = self._clock()
        try:
            if self._note is not None:
                self._note(self)
        except Exception as error:  # noqa: BLE001 - a border as that of steps
            self._is_unknown = True  # whether it is billed
            self.failed("note", error)

    def _do(self, settles: Sequence[Settle]) -> None:
        for settle in settles:
            try:
                settle(self)
            except Exception as error:  # noqa: BLE001 - a border as that of steps: the client has its answer
                self.failed(type(settle).__name__, error)
