"""Reuse of prefixes is saved in the background, shared between gateways, and bounded."""

from collections.abc import Mapping

from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.request import IncomingRequest, UpstreamRequest
from foveate.engine.steps.cache import MAX_LOGS, PrefixLogs, SaveReuse, load_prefix_logs
from foveate.errors import StoreUnavailable
from foveate.model import Format
from foveate.prompt_cache.placement.prefix_reuse import AgentReuse

INCOMING = IncomingRequest(
    id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="anthropic", body=b""
)


class InMemoryStore:
    """A store in memory that can be unavailable."""

    def __init__(self) -> None:
        self.saved: dict[str, AgentReuse] = {}
        self.is_unavailable = False

    async def load(self, *, since: float, limit: int) -> Mapping[str, AgentReuse]:
        self._check_available()
        return dict(self.saved)

    async def save(self, learnt: Mapping[str, AgentReuse], *, now: float) -> None:
        self._check_available()
        self.saved |= learnt

    def _check_available(self) -> None:
        if self.is_unavailable:
            raise StoreUnavailable("the store", "it is away")


def make_exchange() -> Exchange:
    return Exchange(
        INCOMING,
        None,
        UpstreamRequest(body=b""),
        clock=lambda: 0.0,
        observer=NO_OBSERVER,
        completer=CompletionQueue(),
    )


async def test_reuse_is_saved_and_known_after_a_restart() -> None:
    store, logs = InMemoryStore(), PrefixLogs()
    saver = SaveReuse(store, logs, clock=lambda: 1.0, interval_seconds=60)
    logs.open("ana").reuse = AgentReuse(requests=3)
    saver(make_exchange())
    await saver.close()

    assert (await load_prefix_logs(store)).open("ana").reuse.requests == 3


async def test_reuse_that_another_gateway_saw_in_more_requests_is_adopted() -> None:
    store, logs = InMemoryStore(), PrefixLogs()
    saver = SaveReuse(store, logs, clock=lambda: 1.0, interval_seconds=60)
    store.saved = {"bo": AgentReuse(requests=9), "cy": AgentReuse(requests=9)}
    logs.open("ana").reuse = AgentReuse(requests=3)
    logs.open("cy").reuse = AgentReuse(requests=20)
    await saver.close()

    assert [logs.open(agent).reuse.requests for agent in ("ana", "bo", "cy")] == [3, 9, 20]


async def test_an_unavailable_store_only_delays_saving() -> None:
    store, logs = InMemoryStore(), PrefixLogs()
    store.is_unavailable = True
    assert (await load_prefix_logs(store)).open("ana").reuse == AgentReuse()
    saver = SaveReuse(store, logs, clock=lambda: 1.0, interval_seconds=60)
    logs.open("ana").reuse = AgentReuse(requests=3)
    await saver.close()
    store.is_unavailable = False
    logs.open("ana")
    await saver.close()

    assert store.saved["ana"].requests == 3


def test_the_reuse_of_many_agents_is_kept_longer_than_their_prefixes() -> None:
    logs = PrefixLogs()
    for number in range(2 * MAX_LOGS):
        logs.open(f"agent {number}").reuse = AgentReuse(requests=number)

    assert logs.open("agent 5").reuse.requests == 5
    assert len(logs.take_changes()) <= 1024


def test_what_an_agent_reuses_is_learned_from_all_of_its_accounts() -> None:
    logs = PrefixLogs()
    first, second = logs.open("ana", "first"), logs.open("ana", "second")
    second.reuse = AgentReuse(requests=7)

    assert first is not second
    assert logs.open("ana", "first") is first
    assert first.reuse.requests == 7
    assert logs.take_changes()["ana"].requests == 7
    for number in range(MAX_LOGS):  # both are forgotten
        logs.open(f"agent {number}")
    assert logs.open("ana", "first") is not first
    assert logs.open("ana", "first").reuse.requests == 7
