"""What the configuration says, as the engine's options."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from foveate.budget.budgets import Budget
from foveate.budget.limits import VARIABLE as MAX_TOKENS
from foveate.budget.limits import resolve_prompt_limit
from foveate.cache.layout import PlacementOptions
from foveate.config.settings import (
    AgentSettings,
    AgentSwitches,
    ContextOptimizationSettings,
    Settings,
    TokenCounterSettings,
)
from foveate.engine.injecting.configured import section_options
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.errors import BadOption
from foveate.fold.cuts import CompactionOptions
from foveate.fold.overflow import OnOverflow
from foveate.memory.logs import log_limit_lines
from foveate.memory.view import read_semantic_threshold
from foveate.prompt.time import TimeOptions
from foveate.tokens.options import Backend, CounterOptions
from foveate.values import Ttl


def options_by_agent(
    settings: Settings, environment: Mapping[str, str] | None = None
) -> Callable[[str], AgentOptions]:
    """The options of each agent, by its id; of one that the configuration does not name, those of all.

    Raises:
        BadOption: something in them does not fit together, in which case `path` leads to it, or a variable of
            the environment cannot be read.
    """
    check_environment(environment or {})
    default_options = _agent_options(settings.context_optimization, None)
    agent_options = {
        agent.id: replace(
            _agent_options(settings.context_optimization, agent),
            sections=_section_options(settings.context_optimization, agent, number, environment or {}),
        )
        for number, agent in enumerate(settings.agents)
    }
    return lambda agent: agent_options.get(agent, default_options)


def check_environment(environment: Mapping[str, str]) -> None:
    """Check the variables that requests depend on, whether or not an agent has sections.

    Raises:
        BadOption: one cannot be read; names it.
    """
    log_limit_lines(environment)
    read_semantic_threshold(environment)
    TimeOptions.from_environment(environment)
    resolve_prompt_limit(
        Budget(), environment=environment.get(MAX_TOKENS), agent=None, configuration=None, window_tokens=None
    )


def _section_options(
    settings: ContextOptimizationSettings, agent: AgentSettings, number: int, environment: Mapping[str, str]
) -> SectionOptions | None:
    if agent.sections is None:
        return None
    is_cached = _value_or_default(agent.context_optimization.workspace_cache, settings.workspace_cache.enabled)
    cache = settings.workspace_cache.model_copy(update={"enabled": is_cached})
    path = ("agents", number, "sections")
    return section_options(
        agent.sections, cache, environment, settings_path=path, window_tokens=agent.window_tokens
    )


def _agent_options(settings: ContextOptimizationSettings, agent: AgentSettings | None) -> AgentOptions:
    switches = agent.context_optimization if agent is not None else AgentSwitches()
    counter = counter_options(settings.token_counter)
    cache, compaction = settings.prompt_cache, settings.compaction
    overflow = agent.on_overflow if agent is not None else None
    return AgentOptions(
        prompt_cache=_value_or_default(switches.prompt_cache, cache.enabled),
        compaction=_value_or_default(switches.compaction, compaction.enabled),
        token_counter=_value_or_default(switches.token_counter, settings.token_counter.enabled),
        counter=counter,
        replace_breakpoints=(switches.client_breakpoints or cache.client_breakpoints) == "replace",
        layout=PlacementOptions(
            ttl=None if cache.ttl == "auto" else Ttl(cache.ttl), cache_tools=cache.cache_tools
        ),
        long_ttl_providers=frozenset(cache.long_ttl_providers),
        keep_alive=KeepAliveOptions(
            enabled=cache.pings.enabled,
            max_in_a_row=cache.pings.most_in_a_row,
            max_sessions=cache.pings.most_sessions,
        ),
        compaction_options=CompactionOptions(
            compact_at_pct=compaction.compact_at_pct,
            tail_keep_tokens=compaction.tail_keep_tokens,
            min_turns_between=compaction.min_turns_between,
            lock_ttl_seconds=compaction.lock_ttl_seconds,
            limit_seconds=compaction.limit_seconds,
            extractive=compaction.extractive,
        ),
        tool_result_max_pct=compaction.tool_result_max_pct,
        summarizer_model=compaction.summarizer_model,
        on_overflow=None if overflow is None else OnOverflow(overflow),
        window_tokens=agent.window_tokens if agent is not None else None,
        max_turns=agent.max_turns if agent is not None else None,
    )


def counter_options(settings: TokenCounterSettings) -> CounterOptions:
    """How requests are counted.

    Raises:
        BadOption: a server is to count, and may not be asked.
    """
    backend = Backend.from_name(settings.backend)
    if backend is Backend.ENDPOINT and not settings.use_endpoint:
        raise BadOption(
            "the backend `endpoint` asks the upstream's /tokenize, which it may only with use_endpoint: true",
            path=("context_optimization", "token_counter", "backend"),
        )
    return CounterOptions(
        backend=backend,
        use_endpoint=settings.use_endpoint,
        timeout_ms=settings.timeout_ms,
        cache_capacity=settings.cache_capacity,
    )


def _value_or_default(value: bool | None, default: bool) -> bool:
    return default if value is None else value
