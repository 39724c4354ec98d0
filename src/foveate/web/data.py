"""What the page may look into: the store, and the gateway as it is now."""

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
    """The configuration that holds: of which file, since when, what it decides, what is wrong with the file.

    `changes` is how often it has changed since the gateway was started. Of what is `waiting` for its next
    start, it has what is used until then, by its name.
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
    """What the page may look into.

    `sources` are what sections are made of: memories and workspaces. `held` is every setting and where it is
    from, `samples` all that is counted, and `health` what is wrong with the gateway, as `/health` tells it.
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
