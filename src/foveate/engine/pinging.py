"""Keep-alive pings: sent just before an entry dies, with the client's own key, while a return is likely enough.

Off unless asked for. What that takes, the key among it, is held in memory only while a ping is planned: until
the session's next request, an error, or the last ping that pays.
"""

import asyncio
import logging
from collections.abc import Callable
from decimal import Decimal
from uuid import uuid4

from foveate.cache.pings import Ping
from foveate.cache.rhythm import forecast
from foveate.cost.admission import Admission
from foveate.cost.ledger import Call, Category
from foveate.cost.savings import own_call
from foveate.engine.bounds import AtMost
from foveate.engine.exchange import Exchange
from foveate.engine.options import AgentOptions, MoneyOptions
from foveate.engine.remembered import Remembered
from foveate.engine.summaries import PaidClient, Payment
from foveate.engine.warm import Warm, pinging, planned, warm_of
from foveate.engine.work import Work
from foveate.errors import FoveateError, MalformedRequest
from foveate.tokens.memo import Memo
from foveate.upstream import Client, Reply
from foveate.values import Comparison, Format, Savings
from foveate.wire.usage import usage_in

_LOG = logging.getLogger(__name__)

# The clock is looked at this often, since it may be set, and a machine may sleep.
_LOOK_SECONDS = 0.25
# A ping that takes longer has missed its entry.
_LONGEST_SECONDS = 30.0
_MOST_BYTES = 256 * 1024 * 1024
_KEPT_ENDED = 4 * 1024
# An entry of which less than this part was read is gone.
_MISSED = 0.5

_Key = tuple[str, str]


class Pings:
    """Pings for all sessions of a process. Closed by `close`."""

    def __init__(
        self,
        client: Client,
        admission: Admission,
        cost: Callable[[], MoneyOptions],
        options: Callable[[str], AgentOptions],
        remembered: Remembered,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._admission = admission
        self._cost = cost
        self._options = options
        self._remembered = remembered
        self._clock = clock
        self._planned: dict[_Key, tuple[Ping, Warm]] = {}
        self._under_way: dict[_Key, int] = {}
        self._ended: Memo[bool] = Memo(_KEPT_ENDED)
        self._sending: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many sessions have a ping planned."""
        return len(self._planned)

    def came(self, work: Work) -> None:
        """A request of a session is about to be sent: whatever was planned for it is not."""
        key = _key(work)
        self._planned.pop(key, None)
        self._under_way[key] = self._under_way.get(key, 0) + 1

    def __call__(self, exchange: Exchange) -> None:
        """Plan a ping behind an answer, where none of the session's other requests is under way."""
        work = exchange.work
        if work is None or not work.options.sends_pings:
            return
        key = _key(work)
        left = self._under_way.pop(key, 0) - 1
        if left > 0:
            self._under_way[key] = left
            return
        if self._ended.get(_name(key)):
            return
        warm = warm_of(exchange)
        if warm is not None:
            self._plan(key, warm)

    async def close(self) -> None:
        """Send no more, and break off what is under way."""
        self._planned.clear()
        tasks = [*self._sending, *([self._looking] if self._looking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _plan(self, key: _Key, warm: Warm) -> None:
        options = self._options(warm.agent).pings
        state = self._remembered.session(*key)
        expected = forecast(state.rhythm, self._remembered.agent(warm.agent))
        ping = planned(warm, state.cache, expected, now=self._clock(), most=options.most_in_a_row)
        if ping is None or not self._has_room(ping, warm, options.most_sessions):
            return
        self._planned[key] = ping, warm
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def _has_room(self, ping: Ping, warm: Warm, most_sessions: int) -> bool:
        """Whether one more may be planned; the one that saves least gives way to one that saves more."""
        if sum(other.size_bytes for _, other in self._planned.values()) + warm.size_bytes > _MOST_BYTES:
            return False
        if len(self._planned) < most_sessions:
            return True
        least = min(self._planned, key=lambda other: self._planned[other][0].saved_tokens)
        if self._planned[least][0].saved_tokens >= ping.saved_tokens:
            return False
        del self._planned[least]
        return True

    async def _look(self) -> None:
        """Send what is due, until nothing is planned any longer."""
        while self._planned:
            now = self._clock()
            due = [key for key, (ping, _) in self._planned.items() if ping.at <= now]
            for key in due:
                ping, warm = self._planned.pop(key)
                task = asyncio.create_task(self._sent(key, ping, warm))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
            if not due:
                first = min(ping.at for ping, _ in self._planned.values())
                await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, first - now)))

    async def _sent(self, key: _Key, ping: Ping, warm: Warm) -> None:
        """Send one, and plan the next; whatever goes wrong is the end of them for this session."""
        if self._under_way.get(key) or not self._options(warm.agent).sends_pings:
            return
        try:
            now = self._clock()
            state = self._remembered.session(*key)
            read = sum(piece.tokens for piece in warm.prompt.pieces[: ping.pieces])
            after = pinging(warm, ping, state.cache, now=now)
            async with asyncio.timeout(_LONGEST_SECONDS):
                reply = await self._paid(after, ping)
            if _read_tokens(reply) < _MISSED * read:
                raise _Gone(f"{read} tokens were not read: the entry is gone")
            served = state.cache.serve(after.prompt, after.rules, at=now)
            self._remembered.put(*key, self._remembered.session(*key).kept_alive(served.cache))
        except (FoveateError, TimeoutError, _Gone) as error:
            _LOG.info("session %s gets no more pings: %s", key[1], error)
            self._ended.put(_name(key), True)
        except Exception:  # noqa: BLE001 - nobody waits for it: whatever fails, the session is only colder
            _LOG.exception("a ping of session %s failed", key[1])
            self._ended.put(_name(key), True)
        else:
            if not self._under_way.get(key) and key not in self._planned:
                self._plan(key, after)

    async def _paid(self, warm: Warm, ping: Ping) -> Reply:
        """What a ping is answered, once a cap has room for it."""
        call = Call(
            id=f"ping-{uuid4().hex}",
            agent=warm.agent,
            session_id=warm.session_id,
            provider=warm.provider,
            model=warm.model,
            category=Category.PING,
            at=self._clock(),
            is_subscription=warm.is_subscription,
        )
        options = self._cost()
        most = AtMost(
            model=warm.model,
            provider=warm.provider,
            input_tokens=warm.input_tokens + (2 * warm.answer_tokens if ping.with_answer else 0),
            output_tokens=1,
            at=call.at,
            ttl=warm.rules.ttls[-1],
        )
        first = await self._admission.admit(call, most.dollars(options.prices), options.caps)
        payment = Payment(
            admission=self._admission,
            options=self._cost,
            call=lambda: call,
            spoken=Format.ANTHROPIC,
            compare=self._compare,
        )
        client = PaidClient(self._client.with_reuse(warm.endpoint.reuse), payment, first)
        return await client.post_json(warm.endpoint.url, warm.body, warm.endpoint.headers)

    def _compare(self, call: Call, charged: Decimal | None) -> Savings:
        """Compare the cost of a keep-alive request, unless there is nothing to compare its session with."""
        if self._remembered.session(call.agent, call.session_id).would_not_fit:
            return Savings(comparison=Comparison.WOULD_NOT_FIT)
        return own_call(call, charged)


class _Gone(Exception):
    """What was to be kept is kept no longer."""


def _read_tokens(reply: Reply) -> int:
    try:
        usage = usage_in(Format.ANTHROPIC, reply)
    except MalformedRequest:
        return 0
    return usage.cache.read if usage is not None else 0


def _key(work: Work) -> _Key:
    return work.incoming.agent, work.session_id


def _name(key: _Key) -> bytes:
    return "\0".join(key).encode("utf-8", "surrogatepass")
