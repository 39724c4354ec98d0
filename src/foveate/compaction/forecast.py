"""Forecast the remaining requests of a session: how many, how large, and whether they find a warm cache.

A new session is forecast from recorded agents (`forecast.toml`), then more and more from its own requests and
from its agent's other sessions.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypedDict, cast

from foveate.model import Ttl
from foveate.prompt_cache.placement.arrival_times import NO_GAPS, ArrivalForecast, GapHistogram

_TABLE = Path(__file__).with_name("forecast.toml")
# The remaining requests are grouped: the next, the one after it, and then twice as many in each group.
_GROUP_ENDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# No more requests are counted than there were so far, or this many: the mean of lengths that vary so much is
# decided by a few very long sessions.
_MIN_HORIZON_REQUESTS = 16


class TurnPrior(TypedDict):
    ends: float
    cold: float
    returns: float


class ActivityPrior(TypedDict):
    end_shape: float
    end_exposure_requests: float
    agent_weight_sessions: float
    growth_tokens: float
    growth_weight_requests: float
    tool_called: TurnPrior
    turn_ended: TurnPrior


@cache
def load_prior() -> ActivityPrior:
    return cast("ActivityPrior", tomllib.loads(_TABLE.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureRequests:
    """A group of future requests: their expected number, their growth since now, and the share that finds the
    cache expired.
    """

    expected: float
    grown_tokens: float
    cold_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Future requests in order; the first group is the next request alone, the second the one after it."""

    requests: tuple[FutureRequests, ...]
    growth_tokens: float

    @property
    def expected_requests(self) -> float:
        return sum(group.expected for group in self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionActivity:
    """The requests of a session so far, and by how much they grew.

    `calls_tool`: the last response calls a tool, so the client goes on by itself.
    """

    requests: int = 0
    grown_tokens: int = 0
    calls_tool: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentActivity:
    """The recent sessions of an agent that have ended, and their requests; by how much `grown_requests` of its
    latest requests grew, and the gaps between them.
    """

    sessions: int = 0
    requests: int = 0
    grown_tokens: int = 0
    grown_requests: int = 0
    gaps: GapHistogram = NO_GAPS


NO_AGENT_ACTIVITY = AgentActivity()


class ActivityStore(Protocol):
    async def load(self, *, ended_before: float) -> Mapping[str, AgentActivity]:
        """The activity of agents; sessions without requests since `ended_before` have ended.

        Reads a limited number of the newest rows, however many there are.

        Raises:
            StoreUnavailable: it cannot be read.
        """


def estimate_cold_share(arrivals: ArrivalForecast, ttl: Ttl | None) -> float:
    """The share of requests that find their cache entries expired."""
    ttl_seconds = ttl.seconds if ttl is not None else 0
    returns = arrivals.probability(0, math.inf)
    return max(0.0, 1 - arrivals.probability(0, ttl_seconds) / returns) if returns else 1.0


def forecast_requests(
    session: SessionActivity,
    *,
    agent: AgentActivity = NO_AGENT_ACTIVITY,
    cold_share: float,
    is_idle: bool = False,
    prior: ActivityPrior | None = None,
) -> Forecast:
    """Forecast the requests after the current one.

    `cold_share` is the share of later requests that find the cache expired. With `is_idle`, nothing has come
    for so long that the cache is about to expire. `prior` replaces that of recorded agents, for experiments.
    """
    prior = prior or load_prior()
    turn = prior["tool_called"] if session.calls_tool else prior["turn_ended"]
    growth = _estimate_growth(session, agent, prior)
    exposure = prior["end_exposure_requests"] * _lifetime_ratio(agent, prior) + session.requests
    continues = turn["returns"] if is_idle else 1 - turn["ends"]
    groups = []
    horizon = max(session.requests, _MIN_HORIZON_REQUESTS)
    for start, limit in pairwise(_GROUP_ENDS):
        if start >= horizon:
            break
        is_next, end = not start, min(limit, horizon)
        groups.append(
            FutureRequests(
                expected=continues
                * (1.0 if is_next else _expected_between(start - 1, end - 1, exposure, prior["end_shape"])),
                grown_tokens=growth * (start + end + 1) / 2,
                cold_share=(1.0 if is_idle else turn["cold"]) if is_next else cold_share,
            )
        )
    return Forecast(requests=tuple(groups), growth_tokens=growth)


def _expected_between(start: int, end: int, exposure: float, shape: float) -> float:
    """The expected number of requests after the first `start` and up to `end`, if the next one comes."""

    def after(requests: int) -> float:
        remaining: float = (exposure / (exposure + requests)) ** shape
        return remaining * (exposure + requests) / (shape - 1)

    return after(start) - after(end)


def _lifetime_ratio(agent: AgentActivity, prior: ActivityPrior) -> float:
    """How much longer than recorded sessions those of the agent are."""
    mean = prior["end_exposure_requests"] / (prior["end_shape"] - 1)
    weight = prior["agent_weight_sessions"]
    return (weight * mean + agent.requests) / ((weight + agent.sessions) * mean)


def _estimate_growth(session: SessionActivity, agent: AgentActivity, prior: ActivityPrior) -> float:
    weight = prior["growth_weight_requests"]
    expected = (weight * prior["growth_tokens"] + agent.grown_tokens) / (weight + agent.grown_requests)
    grown_requests = max(session.requests - 1, 0)
    return (weight * expected + session.grown_tokens) / (weight + grown_requests)
