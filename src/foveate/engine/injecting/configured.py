"""What the configuration says of an agent's sections, as options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from difflib import get_close_matches
from typing import TypeVar
from zoneinfo import ZoneInfo

from foveate.budget.budgets import Budget
from foveate.budget.data import budget_from_data
from foveate.budget.ladders import BUILT_IN_LADDERS, name_matches
from foveate.budget.limits import VARIABLE, resolve_prompt_limit
from foveate.cache.stability import SECTION_NAMES
from foveate.config.settings import (
    EmbeddingsSettings,
    SectionsSettings,
    TimeSettings,
    WorkspaceCacheSettings,
    WorkspaceSettings,
)
from foveate.engine.injecting.options import (
    DEFAULT_SECTION_TOKENS,
    BindingOptions,
    EmbeddingOptions,
    MemoryOptions,
    SectionOptions,
)
from foveate.errors import BadOption
from foveate.memory.gate import Gate
from foveate.memory.logs import log_limit_lines
from foveate.memory.paths import expand_path
from foveate.prompt.bundles import ROLE_FILES, Workspace
from foveate.prompt.time import TimeFormat, TimeOptions
from foveate.prompt.workspace import WorkspaceCacheOptions

Made = TypeVar("Made")
SettingPath = tuple[str | int, ...]


def section_options(
    settings: SectionsSettings,
    cache: WorkspaceCacheSettings,
    environment: Mapping[str, str],
    *,
    settings_path: SettingPath,
    window_tokens: int | None = None,
) -> SectionOptions:
    """The options that `said` means; paths in it may name variables of the `environment`.

    Raises:
        BadOption: a path, a zone, a tag or a limit that cannot be, or not in a window of `window_tokens`, or a
            limit for a section that does not exist; its `path` begins with `at`.
    """

    def path(written: str, *key: str | int) -> str:
        return _with_error_path(settings_path, lambda: expand_path(written, environment, key=key))

    memory, binding = settings.memory, settings.binding
    return SectionOptions(
        workspace=None
        if settings.workspace is None
        else _workspace_options(settings.workspace, path, settings_path),
        skills=None if settings.skills is None else path(settings.skills, "skills"),
        binding=None
        if binding is None
        else BindingOptions(
            peers=tuple(binding.peers), channels=tuple(binding.channels.items()), language=binding.language
        ),
        memory=None
        if memory is None
        else MemoryOptions(
            paths=tuple(path(item, "memory", "paths", number) for number, item in enumerate(memory.paths)),
            limit_tokens=memory.limit_tokens,
            format=memory.format,
            embeddings=_embedding_options(memory.embeddings, environment, settings_path),
            follow_symlinks=memory.follow_symlinks,
        ),
        logs=tuple(path(item, "logs", number) for number, item in enumerate(settings.logs)),
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
    settings: WorkspaceSettings, expand_path: Callable[..., str], settings_path: SettingPath
) -> Workspace:
    root = expand_path(settings.root, "workspace", "root")
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
        raise BadOption(f"there is no time zone {settings.zone!r}; one is written as Europe/Berlin") from None


def _section_limits(
    settings: SectionsSettings, environment: Mapping[str, str], window_tokens: int | None
) -> Budget:
    budget = budget_from_data(settings.limits) if settings.limits else Budget()
    if budget.output_reserve:
        raise BadOption("the answer's room is the request's own max_tokens", path=("output_reserve",))
    total = budget.total_tokens
    if total is not None and window_tokens is not None and total > window_tokens:
        raise BadOption(
            f"the sections may have {total:,} tokens, and the agent's window has only {window_tokens:,}:"
            " lower total_tokens, or raise window_tokens",
            path=("total_tokens",),
        )
    _check_section_names(budget, settings)
    total_tokens = DEFAULT_SECTION_TOKENS if budget.total_tokens is None else budget.total_tokens
    limit = resolve_prompt_limit(
        Budget(),
        environment=environment.get(VARIABLE),
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
    """Check that every section that a budget names can exist; with a typo, a rule would hold for nothing.

    Raises:
        BadOption: one cannot; names the one that was probably meant.
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


def _with_error_path(settings_path: SettingPath, make: Callable[[], Made]) -> Made:
    """What is made; an error of it leads to where it is said."""
    try:
        return make()
    except BadOption as error:
        raise BadOption(str(error), path=(*settings_path, *error.path)) from None
