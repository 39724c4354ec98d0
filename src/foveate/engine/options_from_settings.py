"""The engine's options, from the configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from difflib import get_close_matches
from typing import TypeVar
from zoneinfo import ZoneInfo

from foveate.budget.budget import Budget, budget_from_data
from foveate.budget.ladder import BUILT_IN_LADDERS, name_matches
from foveate.budget.model_limits import MAX_TOKENS_VARIABLE, resolve_prompt_limit
from foveate.compaction.overflow import OnOverflow
from foveate.compaction.plan import CompactionOptions
from foveate.config.settings import (
    AgentSettings,
    AgentSwitches,
    ContextOptimizationSettings,
    EmbeddingsSettings,
    SectionsSettings,
    Settings,
    TimeSettings,
    TokenCounterSettings,
    WorkspaceCacheSettings,
    WorkspaceSettings,
)
from foveate.context.time_section import TimeFormat, TimeOptions
from foveate.context.workspace import ROLE_FILES, Workspace
from foveate.context.workspace_cache import WorkspaceCacheOptions
from foveate.engine.options import (
    DEFAULT_SECTION_TOKENS,
    AgentOptions,
    BindingOptions,
    Clearing,
    CompactionTrigger,
    EmbeddingOptions,
    KeepAliveOptions,
    MemoryOptions,
    SectionOptions,
)
from foveate.errors import BadOption
from foveate.memory.log_tail import log_limit_lines
from foveate.memory.privacy import Gate
from foveate.memory.views.view import read_semantic_threshold
from foveate.model import Ttl
from foveate.paths import expand_path
from foveate.prompt_cache.placement.breakpoints import PlacementOptions
from foveate.prompt_cache.stable_order import SECTION_NAMES
from foveate.tokens.offline_counters import Backend, CounterOptions

OptionT = TypeVar("OptionT")
SettingPath = tuple[str | int, ...]


def section_options(
    settings: SectionsSettings,
    cache: WorkspaceCacheSettings,
    environment: Mapping[str, str],
    *,
    settings_path: SettingPath,
    window_tokens: int | None = None,
) -> SectionOptions:
    """Options of an agent's sections; paths may contain variables of the `environment`.

    Raises:
        BadOption: a path, time zone, tag or limit is invalid, a limit exceeds `window_tokens`, or a limit names
            an unknown section. Its `path` begins with `settings_path`.
    """

    def resolve_path(path: str, *key: str | int) -> str:
        return _with_error_path(settings_path, lambda: expand_path(path, environment, key=key))

    memory, binding = settings.memory, settings.binding
    return SectionOptions(
        workspace=None
        if settings.workspace is None
        else _workspace_options(settings.workspace, resolve_path, settings_path),
        skills=None if settings.skills is None else resolve_path(settings.skills, "skills"),
        binding=None
        if binding is None
        else BindingOptions(
            peers=tuple(binding.peers), channels=tuple(binding.channels.items()), language=binding.language
        ),
        memory=None
        if memory is None
        else MemoryOptions(
            paths=tuple(
                resolve_path(item, "memory", "paths", number) for number, item in enumerate(memory.paths)
            ),
            limit_tokens=memory.limit_tokens,
            format=memory.format,
            embeddings=_embedding_options(memory.embeddings, environment, settings_path),
            follow_symlinks=memory.follow_symlinks,
        ),
        logs=tuple(resolve_path(item, "logs", number) for number, item in enumerate(settings.logs)),
        log_lines=_with_error_path(settings_path, lambda: log_limit_lines(environment)),
        time=None
        if settings.time is None
        else _with_error_path(settings_path, lambda: _time_options(settings.time, environment)),
        zone=None
        if settings.time is None
        else _with_error_path((*settings_path, "time", "zone"), lambda: _time_zone(settings.time)),
        channel=settings.channel,
        budget=settings.budget,
        privacy_tags=_with_error_path(
            (*settings_path, "privacy_tags"), lambda: Gate.with_tags(settings.privacy_tags).tags
        ),
        limits=_with_error_path(
            (*settings_path, "limits"), lambda: _section_limits(settings, environment, window_tokens)
        ),
        workspace_cache=WorkspaceCacheOptions(
            enabled=cache.enabled,
            watch_debounce_ms=cache.watch_debounce_ms,
            max_age_seconds=cache.max_age_seconds,
        ),
    )


def _embedding_options(
    settings: EmbeddingsSettings | None, environment: Mapping[str, str], settings_path: SettingPath
) -> EmbeddingOptions | None:
    if settings is None:
        return None
    key = environment.get(settings.key_variable, "") if settings.key_variable else ""
    if settings.key_variable and not key:
        path = (*settings_path, "memory", "embeddings", "key_variable")
        raise BadOption(f"{settings.key_variable} is not set in the environment", path=path)
    return EmbeddingOptions(url=settings.url, model=settings.model, key=key, dimensions=settings.dimensions)


def _workspace_options(
    settings: WorkspaceSettings, resolve_path: Callable[..., str], settings_path: SettingPath
) -> Workspace:
    root = resolve_path(settings.root, "workspace", "root")
    return _with_error_path(
        (*settings_path, "workspace"), lambda: Workspace(root, settings.scope, settings.extras)
    )


def _time_options(settings: TimeSettings | None, environment: Mapping[str, str]) -> TimeOptions:
    assert settings is not None
    options = TimeOptions(
        awareness=settings.enabled, format=TimeFormat(settings.format), warning_minutes=settings.warning_minutes
    )
    return replace(TimeOptions.from_environment(environment, options))


def _time_zone(settings: TimeSettings | None) -> tzinfo:
    assert settings is not None
    try:
        return ZoneInfo(settings.zone)
    except (OSError, ValueError, KeyError):
        raise BadOption(f"unknown time zone {settings.zone!r}; use a name such as Europe/Berlin") from None


def _section_limits(
    settings: SectionsSettings, environment: Mapping[str, str], window_tokens: int | None
) -> Budget:
    budget = budget_from_data(settings.limits) if settings.limits else Budget()
    if budget.output_reserve:
        raise BadOption(
            "output_reserve cannot be set here: the gateway reserves each request's max_tokens",
            path=("output_reserve",),
        )
    total = budget.total_tokens
    if total is not None and window_tokens is not None and total > window_tokens:
        raise BadOption(
            f"total_tokens is {total:,}, but the agent's context window has only {window_tokens:,} tokens:"
            " lower total_tokens, or raise window_tokens",
            path=("total_tokens",),
        )
    _check_section_names(budget, settings)
    total_tokens = DEFAULT_SECTION_TOKENS if budget.total_tokens is None else budget.total_tokens
    limit = resolve_prompt_limit(
        Budget(),
        environment=environment.get(MAX_TOKENS_VARIABLE),
        agent=None,
        configuration=Budget(total_tokens),
        window_tokens=None,
    )
    return (
        budget
        if limit.total_tokens == total_tokens
        else budget_from_data({"total_tokens": limit.total_tokens}, defaults=budget)
    )


def _check_section_names(budget: Budget, settings: SectionsSettings) -> None:
    """Check that every section in a budget exists: a rule with a typo would apply to nothing.

    Raises:
        BadOption: a section is unknown; suggests the closest name.
    """
    extras = settings.workspace.extras if settings.workspace is not None else []
    known = [
        *(name for names in SECTION_NAMES.values() for name in names),
        *(f"workspace/{file}" for file in (*ROLE_FILES, *extras)),
    ]
    for name in budget.sections:
        if name not in known:
            raise BadOption(_describe_unknown_section(name, known), path=("sections", name))
    if budget.ladder.name in BUILT_IN_LADDERS:
        return
    for number, rung in enumerate(budget.ladder.rungs):
        for pattern in rung.sections:
            if not any(name_matches(pattern, name) for name in known):
                raise BadOption(_describe_unknown_section(pattern, known), path=("ladder", number))


def _describe_unknown_section(name: str, known: Sequence[str]) -> str:
    by_casefold = {known_name.casefold(): known_name for known_name in known}
    matches = get_close_matches(name.casefold(), by_casefold, n=1)
    return f"there is no section {name!r}" + (f"; did you mean {by_casefold[matches[0]]}?" if matches else "")


def _with_error_path(settings_path: SettingPath, make: Callable[[], OptionT]) -> OptionT:
    """Run `make`; prefix the path of its errors."""
    try:
        return make()
    except BadOption as error:
        raise BadOption(str(error), path=(*settings_path, *error.path)) from None


def options_by_agent(
    settings: Settings, environment: Mapping[str, str] | None = None
) -> Callable[[str], AgentOptions]:
    """Return a function from agent ids to options; unknown agents have the default options.

    Raises:
        BadOption: options contradict each other, in which case `path` leads to them, or an environment variable
            is invalid.
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
    """Check the environment variables that requests depend on.

    Raises:
        BadOption: a variable is invalid; names it.
    """
    log_limit_lines(environment)
    read_semantic_threshold(environment)
    TimeOptions.from_environment(environment)
    resolve_prompt_limit(
        Budget(),
        environment=environment.get(MAX_TOKENS_VARIABLE),
        agent=None,
        configuration=None,
        window_tokens=None,
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
        placement=PlacementOptions(
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
        trigger=CompactionTrigger(switches.compaction_trigger or compaction.trigger),
        clearing=Clearing(switches.clearing or compaction.clearing),
        tool_result_max_pct=compaction.tool_result_max_pct,
        summarizer_model=compaction.summarizer_model,
        on_overflow=None if overflow is None else OnOverflow(overflow),
        window_tokens=agent.window_tokens if agent is not None else None,
        max_turns=agent.max_turns if agent is not None else None,
    )


def counter_options(settings: TokenCounterSettings) -> CounterOptions:
    """Options for counting tokens.

    Raises:
        BadOption: the backend `endpoint` is set but not allowed.
    """
    backend = Backend.from_name(settings.backend)
    if backend is Backend.ENDPOINT and not settings.use_endpoint:
        raise BadOption(
            "the backend `endpoint` calls the upstream's /tokenize, which requires use_endpoint: true",
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
