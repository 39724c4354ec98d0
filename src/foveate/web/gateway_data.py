"""Data that pages read: the store, and the state of the gateway."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foveate.config.effective import EffectiveSetting
from foveate.config.settings import Settings
from foveate.cost.caps import Cap
from foveate.engine.metrics.registry import Sample
from foveate.engine.options import AgentOptions
from foveate.engine.sections.sources import SectionSources
from foveate.errors import FoveateError
from foveate.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSnapshot:
    """The configuration in force.

    `changes` counts reloads since the start. `waiting` maps settings that take effect at the next start to the
    values used until then.
    """

    path: Path | None
    since: float
    changes: int
    problem: FoveateError | None
    settings: Settings
    options: Callable[[str], AgentOptions]
    caps: Sequence[Cap]
    waiting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayData:
    """Everything that pages can read.

    `sources` are the memories and workspaces of sections. `effective_settings` lists every setting with its
    source, `samples` all metrics, and `health` is the body of `/health`.
    """

    version: str
    store: Store
    sources: SectionSources
    current_config: Callable[[], ConfigSnapshot]
    effective_settings: Callable[[], Awaitable[Sequence[EffectiveSetting]]]
    samples: Callable[[], Sequence[Sample]]
    health: Callable[[], Awaitable[Mapping[str, Any]]]
    is_shutting_down: Callable[[], bool] = field(default=lambda: False)
    clock: Callable[[], float] = time.time
