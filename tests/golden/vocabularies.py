"""Fixed lists of names that users read and write: policies, outcomes, backends and others."""

import pkgutil
from collections.abc import Iterable
from importlib import import_module

import foveate.engine
from foveate.budget.ladder import BUILT_IN_LADDERS
from foveate.budget.prompt import Action, LimitSource
from foveate.budget.sections import Keep, Priority, Stability
from foveate.chat.responses import FailureKind
from foveate.cli.chat import slash_commands
from foveate.compaction.overflow import OnOverflow, OverflowAction
from foveate.compaction.store import CompactionOutcome
from foveate.config.effective_settings import SettingSource
from foveate.context.sections import CallKind
from foveate.context.time_section import TimeFormat
from foveate.cost.admission import SettlementOutcome
from foveate.cost.caps import CapLevel, CapScope, UnknownPricePolicy
from foveate.cost.ledger import Category, GroupBy
from foveate.cost.pricing.price_book import PriceChange
from foveate.cost.pricing.rates import PriceSource
from foveate.doctor.findings import Level
from foveate.gateway.routing import KNOWN_UPSTREAMS
from foveate.memory.views.view import DetailLevel, ViewFormat
from foveate.model import Format, Savings, Ttl
from foveate.prompt_cache.hit_ratio import HitRatioLevel
from foveate.prompt_cache.misses.causes import MissCause
from foveate.replay.outcomes import ALL, Policy
from foveate.replay.recording import MissingPart, RecordingSource
from foveate.sandbox.http import SandboxProvider
from foveate.sandbox.script import STEP_HEADER
from foveate.tokens.offline_counters import Backend

NAMES: dict[str, Iterable[str]] = {
    "api format": Format,
    "budget ladder": BUILT_IN_LADDERS,
    "budget limit source": LimitSource,
    "cache break cause": MissCause,
    "cache hit level": HitRatioLevel,
    "cache ttl": Ttl,
    "call kind": CallKind,
    "cap level": CapLevel,
    "cap on unknown price": UnknownPricePolicy,
    "cap scope": CapScope,
    "charge outcome": SettlementOutcome,
    "chat command": (*slash_commands.COMMANDS, *slash_commands.QUIT_COMMANDS),
    "chat error": FailureKind,
    "compaction outcome": CompactionOutcome,
    "configuration source": SettingSource,
    "counting backend": Backend,
    "doctor level": Level,
    "ledger category": Category,
    "ledger group": GroupBy,
    "ledger saving": Savings.__struct_fields__,
    "memory format": ViewFormat,
    "memory node level": DetailLevel,
    "overflow policy": OnOverflow,
    "overflow step": OverflowAction,
    "price change": PriceChange,
    "price source": PriceSource,
    "replay format": RecordingSource,
    "replay missing part": MissingPart,
    "replay policy": (*Policy, ALL),
    "sandbox header": (STEP_HEADER,),
    "sandbox provider": SandboxProvider,
    "section action": Action,
    "section priority": Priority,
    "section stability": Stability,
    "section truncation": Keep,
    "time format": TimeFormat,
    "upstream": KNOWN_UPSTREAMS,
}


def vocabularies() -> dict[str, str]:
    """List each name with its list: `compaction outcome: ok`."""
    lists = {**NAMES, "request step": _request_steps()}
    return {f"{name}: {word}": "name" for name, words in lists.items() for word in words}


def _request_steps() -> set[str]:
    """Return the names of the engine's steps in metrics and logs."""
    modules = [
        import_module(found.name)
        for found in pkgutil.walk_packages(foveate.engine.__path__, f"{foveate.engine.__name__}.")
    ]
    return {
        str(getattr(kind, "name", ""))
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and kind.__module__ == module.__name__
        and type(getattr(kind, "name", 0)) is str
    }
