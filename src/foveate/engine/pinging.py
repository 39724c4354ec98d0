"""Keep-alive pings: sent just before an entry dies, with the client's own key, while a return is likely enough.

Off unless asked for. What that takes, the key among it, is held in memory only while a ping is planned: until
the session's next request, an error, or the last ping that pays.
"""

import asyncio
import logging
from collections.abc import Callable
from decimal import Decimal
from uuid import uuid4

from foveate.cache.pings import KeepAlive
from foveate.cache.rhythm import forecast_next_request
from foveate.cost.admission import Admission
from foveate.cost.ledger import Call, Category
from foveate.cost.savings import make_own_call_savings
from foveate.engine.bounds import CostCeiling
from foveate.engine.exchange import Exchange
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.remembered import SessionStates
from foveate.engine.summaries import PaidClient, PaymentOptions
from foveate.engine.warm import WarmSession, apply_keep_alive, plan_keep_alive, warm_session
from foveate.engine.work import RequestContext
from foveate.errors import FoveateError, MalformedRequest
from foveate.tokens.memo import LruCache
from foveate.upstream import JsonClient, JsonReply
from foveate.values import Comparison, Format, Savings
from foveate.wire.usage import find_usage

_LOG = logging.getLogger(__name__)

# The clock is looked at this often, since it may be set, and a machine may sleep.
_POLL_SECONDS = 0.25
# A ping that takes longer has missed its entry.
_TIMEOUT_SECONDS = 30.0
_MAX_BYTES = 256 * 1024 * 1024
_MAX_STOPPED = 4 * 1024
# An entry of which less than this part was read is gone.
_MIN_READ_SHARE = 0.5

_SessionKey = tuple[str, str]


class KeepAliveScheduler:
    """Pings for all sessions of a process. Closed by `close`."""

    def __init__(
        self,
        client: JsonClient,
        admission: Admission,
        spending: Callable[[], SpendingOptions],
        options: Callable[[str], AgentOptions],
        session_states: SessionStates,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._admission = admission
        self._spending = spending
        self._options = options
        self._session_states = session_states
        self._clock = clock
        self._planned: dict[_SessionKey, tuple[KeepAlive, WarmSession]] = {}
        self._in_flight: dict[_SessionKey, int] = {}
        self._stopped: LruCache[bool] = LruCache(_MAX_STOPPED)
        self._sending: set[asyncio.Task[None]] = set()
        self._poll_task: asyncio.Task[None] | None = None

    @property
    def planned_count(self) -> int:
        """How many sessions have a ping planned."""
        return len(self._planned)

    def cancel_planned(self, context: RequestContext) -> None:
        """A request of a session is about to be sent: whatever was planned for it is not."""
        key = _session_key(context)
        self._planned.pop(key, None)
        self._in_flight[key] = self._in_flight.get(key, 0) + 1

    def __call__(self, exchange: Exchange) -> None:
        """Plan a ping behind an answer, where none of the session's other requests is under way."""
        context = exchange.context
        if context is None or not context.options.sends_keep_alive:
            return
        key = _session_key(context)
        in_flight = self._in_flight.pop(key, 0) - 1
        if in_flight > 0:
            self._in_flight[key] = in_flight
            return
        if self._stopped.get(_key_bytes(key)):
            return
        warm = warm_session(exchange)
        if warm is not None:
            self._plan(key, warm)

    async def close(self) -> None:
        """Send no more, and break off what is under way."""
        self._planned.clear()
        tasks = [*self._sending, *([self._poll_task] if self._poll_task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _plan(self, key: _SessionKey, warm: WarmSession) -> None:
        options = self._options(warm.agent).keep_alive
        state = self._session_states.session(*key)
        expected = forecast_next_request(state.rhythm, self._session_states.agent_rhythm(warm.agent))
        ping = plan_keep_alive(
            warm, state.cache, expected, now=self._clock(), max_in_a_row=options.max_in_a_row
        )
        if ping is None or not self._has_room(ping, warm, options.max_sessions):
            return
        self._planned[key] = ping, warm
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll())

    def _has_room(self, ping: KeepAlive, warm: WarmSession, max_sessions: int) -> bool:
        """Whether one more may be planned; the one that saves least gives way to one that saves more."""
        if sum(other.size_bytes for _, other in self._planned.values()) + warm.size_bytes > _MAX_BYTES:
            return False
        if len(self._planned) < max_sessions:
            return True
        cheapest = min(self._planned, key=lambda other: self._planned[other][0].saved_tokens)
        if self._planned[cheapest][0].saved_tokens >= ping.saved_tokens:
            return False
        del self._planned[cheapest]
        return True

    async def _poll(self) -> None:
        """Send what is due, until nothing is planned any longer."""
        while self._planned:
            now = self._clock()
            due = [key for key, (ping, _) in self._planned.items() if ping.at <= now]
            for key in due:
                ping, warm = self._planned.pop(key)
                task = asyncio.create_task(self._send(key, ping, warm))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
            if not due:
                first = min(ping.at for ping, _ in self._planned.values())
                await asyncio.sleep(min(_POLL_SECONDS, max(0.0, first - now)))

    async def _send(self, key: _SessionKey, ping: KeepAlive, warm: WarmSession) -> None:
        """Send one, and plan the next; whatever goes wrong is the end of them for this session."""
        if self._in_flight.get(key) or not self._options(warm.agent).sends_keep_alive:
            return
        try:
            now = self._clock()
            state = self._session_states.session(*key)
            entry_tokens = sum(piece.tokens for piece in warm.prompt.pieces[: ping.pieces])
            next_warm = apply_keep_alive(warm, ping, state.cache, now=now)
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                reply = await self._post(next_warm, ping)
            if _read_tokens(reply) < _MIN_READ_SHARE * entry_tokens:
                raise _EntryExpired(f"{entry_tokens} tokens were not read: the entry is gone")
            served = state.cache.serve(next_warm.prompt, next_warm.rules, at=now)
            self._session_states.put(*key, self._session_states.session(*key).with_keep_alive(served.cache))
        except (FoveateError, TimeoutError, _EntryExpired) as error:
            _LOG.info("session %s gets no more pings: %s", key[1], error)
            self._stopped.put(_key_bytes(key), True)
        except Exception:  # noqa: BLE001 - nobody waits for it: whatever fails, the session is only colder
            _LOG.exception("a ping of session %s failed", key[1])
            self._stopped.put(_key_bytes(key), True)
        else:
            if not self._in_flight.get(key) and key not in self._planned:
                self._plan(key, next_warm)

    async def _post(self, warm: WarmSession, ping: KeepAlive) -> JsonReply:
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
        options = self._spending()
        cost_ceiling = CostCeiling(
            model=warm.model,
            provider=warm.provider,
            input_tokens=warm.input_tokens + (2 * warm.response_tokens if ping.includes_response else 0),
            output_tokens=1,
            at=call.at,
            ttl=warm.rules.ttls[-1],
        )
        reservation = await self._admission.admit(call, cost_ceiling.dollars(options.prices), options.caps)
        payment = PaymentOptions(
            admission=self._admission,
            options=self._spending,
            make_call=lambda: call,
            api_format=Format.ANTHROPIC,
            compare=self._compare_cost,
        )
        client = PaidClient(self._client.with_reuse(warm.endpoint.reuse_connection), payment, reservation)
        return await client.post_json(warm.endpoint.url, warm.body, warm.endpoint.headers)

    def _compare_cost(self, call: Call, dollars: Decimal | None) -> Savings:
        """Compare the cost of a keep-alive request, unless there is nothing to compare its session with."""
        if self._session_states.session(call.agent, call.session_id).would_exceed_window:
            return Savings(comparison=Comparison.WOULD_NOT_FIT)
        return make_own_call_savings(call, dollars)


class _EntryExpired(Exception):
    """What was to be kept is kept no longer."""


def _read_tokens(reply: JsonReply) -> int:
    try:
        usage = find_usage(Format.ANTHROPIC, reply)
    except MalformedRequest:
        return 0
    return usage.cache.read if usage is not None else 0


def _session_key(context: RequestContext) -> _SessionKey:
    return context.incoming.agent, context.session_id


def _key_bytes(key: _SessionKey) -> bytes:
    return "\0".join(key).encode("utf-8", "surrogatepass")
