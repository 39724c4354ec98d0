"""What the configuration says of an agent's sections, as options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from difflib import get_close_matches
from typing import TypeVar
from zoneinfo import ZoneInfo

from foveate.budget.budgets import Budget
from foveate.budget.data import budget_from_data
from foveate.budget.ladders import BUILT_IN, meant
from foveate.budget.limits import VARIABLE, resolved_limit
from foveate.cache.stability import NAMES
from foveate.config.settings import (
    EmbeddingsEndpoint,
    InjectedSections,
    TimeTold,
    WorkspaceCache,
    WorkspaceFolder,
)
from foveate.engine.injecting.options import (
    MOST_TOKENS,
    BindingOptions,
    EmbeddingOptions,
    MemoryOptions,
    SectionOptions,
)
from foveate.errors import BadOption
from foveate.memory.gate import Gate
from foveate.memory.logs import log_limit
from foveate.memory.paths import expanded
from foveate.prompt.bundles import ROLES, Workspace
from foveate.prompt.time import TimeFormat, TimeOptions
from foveate.prompt.workspace import WorkspaceCacheOptions

Made = TypeVar("Made")
Key = tuple[str | int, ...]


def section_options(
    said: InjectedSections,
    cache: WorkspaceCache,
    environment: Mapping[str, str],
    *,
    at: Key,
    window_tokens: int | None = None,
) -> SectionOptions:
    """The options that `said` means; paths in it may name variables of the `environment`.

    Raises:
        BadOption: a path, a zone, a tag or a limit that cannot be, or not in a window of `window_tokens`, or a
            limit for a section that does not exist; its `path` begins with `at`.
    """

    def path(written: str, *key: str | int) -> str:
        return _at(at, lambda: expanded(written, environment, key=key))

    memory, binding = said.memory, said.binding
    return SectionOptions(
        workspace=None if said.workspace is None else _workspace(said.workspace, path, at),
        skills=None if said.skills is None else path(said.skills, "skills"),
        binding=None
        if binding is None
        else BindingOptions(
            peers=tuple(binding.peers), channels=tuple(binding.channels.items()), language=binding.language
        ),
        memory=None
        if memory is None
        else MemoryOptions(
            paths=tuple(path(each, "memory", "paths", number) for number, each in enumerate(memory.paths)),
            limit_tokens=memory.limit_tokens,
            format=memory.format,
            embeddings=_embeddings(memory.embeddings, environment, at),
            follow_symlinks=memory.follow_symlinks,
        ),
        logs=tuple(path(each, "logs", number) for number, each in enumerate(said.logs)),
        log_lines=_at(at, lambda: log_limit(environment)),
        time=None if said.time is None else _at(at, lambda: _time(said.time, environment)),
        zone=None if said.time is None else _at((*at, "time", "zone"), lambda: _zone(said.time)),
        channel=said.channel,
        budget=said.budget,
        privacy_tags=_at((*at, "privacy_tags"), lambda: Gate.adding(said.privacy_tags).tags),
        limits=_at((*at, "limits"), lambda: _limits(said, environment, window_tokens)),
        workspace_cache=WorkspaceCacheOptions(
            enabled=cache.enabled,
            watch_debounce_ms=cache.watch_debounce_ms,
            max_age_seconds=cache.max_age_seconds,
        ),
    )


def _embeddings(
    said: EmbeddingsEndpoint | None, environment: Mapping[str, str], at: Key
) -> EmbeddingOptions | None:
    if said is None:
        return None
    key = environment.get(said.key_variable, "") if said.key_variable else ""
    if said.key_variable and not key:
        path = (*at, "memory", "embeddings", "key_variable")
        raise BadOption(f"{said.key_variable} is not set in the environment", path=path)
    return EmbeddingOptions(url=said.url, model=said.model, key=key, dimensions=said.dimensions)


def _workspace(said: WorkspaceFolder, path: Callable[..., str], at: Key) -> Workspace:
    root = path(said.root, "workspace", "root")
    return _at((*at, "workspace"), lambda: Workspace(root, said.scope, said.extras))


def _time(said: TimeTold | None, environment: Mapping[str, str]) -> TimeOptions:
    assert said is not None
    held = TimeOptions(
        awareness=said.enabled, format=TimeFormat(said.format), warning_minutes=said.warning_minutes
    )
    return replace(TimeOptions.from_environment(environment, held))


def _zone(said: TimeTold | None) -> tzinfo:
    assert said is not None
    try:
        return ZoneInfo(said.zone)
    except (OSError, ValueError, KeyError):
        raise BadOption(f"there is no time zone {said.zone!r}; one is written as Europe/Berlin") from None


def _limits(said: InjectedSections, environment: Mapping[str, str], window_tokens: int | None) -> Budget:
    budget = budget_from_data(said.limits) if said.limits else Budget()
    if budget.output_reserve:
        raise BadOption("the answer's room is the request's own max_tokens", path=("output_reserve",))
    total = budget.total_tokens
    if total is not None and window_tokens is not None and total > window_tokens:
        raise BadOption(
            f"the sections may have {total:,} tokens, and the agent's window has only {window_tokens:,}:"
            " lower total_tokens, or raise window_tokens",
            path=("total_tokens",),
        )
    _check_names(budget, said)
    held = MOST_TOKENS if budget.total_tokens is None else budget.total_tokens
    limit = resolved_limit(
        Budget(),
        environment=environment.get(VARIABLE),
        agent=None,
        configuration=Budget(held),
        window_tokens=None,
    )
    return (
        budget
        if limit.total_tokens == held
        else budget_from_data({"total_tokens": limit.total_tokens}, defaults=budget)
    )


def _check_names(budget: Budget, said: InjectedSections) -> None:
    """Check that every section that a budget names can exist; with a typo, a rule would hold for nothing.

    Raises:
        BadOption: one cannot; names the one that was probably meant.
    """
    extras = said.workspace.extras if said.workspace is not None else []
    known = [
        *(name for names in NAMES.values() for name in names),
        *(f"workspace/{file}" for file in (*ROLES, *extras)),
    ]
    for name in budget.sections:
        if name not in known:
            raise BadOption(_unknown(name, known), path=("sections", name))
    if budget.ladder.name in BUILT_IN:
        return
    for number, rung in enumerate(budget.ladder.rungs):
        for pattern in rung.sections:
            if not any(meant(pattern, name) for name in known):
                raise BadOption(_unknown(pattern, known), path=("ladder", number))


def _unknown(name: str, known: Sequence[str]) -> str:
    folded = {each.casefold(): each for each in known}
    near = get_close_matches(name.casefold(), folded, n=1)
    return f"there is no section {name!r}" + (f"; did you mean {folded[near[0]]}?" if near else "")


def _at(at: Key, make: Callable[[], Made]) -> Made:
    """What is made; an error of it leads to where it is said."""
    try:
        return make()
    except BadOption as error:
        raise BadOption(str(error), path=(*at, *error.path)) from None
