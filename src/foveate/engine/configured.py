"""What the configuration says, as the engine's options."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from foveate.budget.budgets import Budget
from foveate.budget.limits import VARIABLE as MAX_TOKENS
from foveate.budget.limits import resolved_limit
from foveate.cache.layout import LayoutOptions
from foveate.config.settings import Agent, ContextOptimization, Settings, Switches, TokenCounter
from foveate.engine.injecting.configured import section_options
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.options import AgentOptions, PingOptions
from foveate.errors import BadOption
from foveate.fold.cuts import FoldOptions
from foveate.fold.overflow import OnOverflow
from foveate.memory.logs import log_limit
from foveate.memory.view import semantic_threshold
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
    usual = _options(settings.context_optimization, None)
    own = {
        agent.id: replace(
            _options(settings.context_optimization, agent),
            sections=_sections(settings.context_optimization, agent, number, environment or {}),
        )
        for number, agent in enumerate(settings.agents)
    }
    return lambda agent: own.get(agent, usual)


def check_environment(environment: Mapping[str, str]) -> None:
    """Check the variables that requests depend on, whether or not an agent has sections.

    Raises:
        BadOption: one cannot be read; names it.
    """
    log_limit(environment)
    semantic_threshold(environment)
    TimeOptions.from_environment(environment)
    resolved_limit(
        Budget(), environment=environment.get(MAX_TOKENS), agent=None, configuration=None, window_tokens=None
    )


def _sections(
    said: ContextOptimization, agent: Agent, number: int, environment: Mapping[str, str]
) -> SectionOptions | None:
    if agent.sections is None:
        return None
    is_kept = _either(agent.context_optimization.workspace_cache, said.workspace_cache.enabled)
    cache = said.workspace_cache.model_copy(update={"enabled": is_kept})
    at = ("agents", number, "sections")
    return section_options(agent.sections, cache, environment, at=at, window_tokens=agent.window_tokens)


def _options(said: ContextOptimization, agent: Agent | None) -> AgentOptions:
    switches = agent.context_optimization if agent is not None else Switches()
    counter = counter_options(said.token_counter)
    cache, folds = said.prompt_cache, said.compaction
    overflow = agent.on_overflow if agent is not None else None
    return AgentOptions(
        prompt_cache=_either(switches.prompt_cache, cache.enabled),
        compaction=_either(switches.compaction, folds.enabled),
        token_counter=_either(switches.token_counter, said.token_counter.enabled),
        counter=counter,
        replace_breakpoints=(switches.client_breakpoints or cache.client_breakpoints) == "replace",
        layout=LayoutOptions(
            ttl=None if cache.ttl == "auto" else Ttl(cache.ttl), cache_tools=cache.cache_tools
        ),
        long_ttl_providers=frozenset(cache.long_ttl_providers),
        pings=PingOptions(
            enabled=cache.pings.enabled,
            most_in_a_row=cache.pings.most_in_a_row,
            most_sessions=cache.pings.most_sessions,
        ),
        fold=FoldOptions(
            compact_at_pct=folds.compact_at_pct,
            tail_keep_tokens=folds.tail_keep_tokens,
            min_turns_between=folds.min_turns_between,
            lock_ttl_seconds=folds.lock_ttl_seconds,
            limit_seconds=folds.limit_seconds,
            extractive=folds.extractive,
        ),
        tool_result_max_pct=folds.tool_result_max_pct,
        summarizer_model=folds.summarizer_model,
        on_overflow=None if overflow is None else OnOverflow(overflow),
        window_tokens=agent.window_tokens if agent is not None else None,
        max_turns=agent.max_turns if agent is not None else None,
    )


def counter_options(said: TokenCounter) -> CounterOptions:
    """How requests are counted.

    Raises:
        BadOption: a server is to count, and may not be asked.
    """
    backend = Backend.named(said.backend)
    if backend is Backend.ENDPOINT and not said.use_endpoint:
        raise BadOption(
            "the backend `endpoint` asks the upstream's /tokenize, which it may only with use_endpoint: true",
            path=("context_optimization", "token_counter", "backend"),
        )
    return CounterOptions(
        backend=backend,
        use_endpoint=said.use_endpoint,
        timeout_ms=said.timeout_ms,
        cache_capacity=said.cache_capacity,
    )


def _either(own: bool | None, usual: bool) -> bool:
    return usual if own is None else own
