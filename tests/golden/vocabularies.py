"""Words that users write and read: policies, outcomes, backends and other names with a fixed list."""

import pkgutil
from collections.abc import Iterable
from importlib import import_module

import foveate.engine
from foveate.budget.ladders import BUILT_IN
from foveate.budget.prompt import Action, LimitSource
from foveate.budget.sections import Keep, Priority, Stability
from foveate.cache.causes import Cause
from foveate.cache.hits import Level as HitLevel
from foveate.chat.failures import Trouble
from foveate.cli import chat_commands
from foveate.cli.doctor_findings import Level as DoctorLevel
from foveate.config.showing import Source as SettingSource
from foveate.cost.admission import Outcome as ChargeOutcome
from foveate.cost.caps import Scope, Unknown
from foveate.cost.held import Level as CapLevel
from foveate.cost.ledger import By, Category
from foveate.cost.price_differences import Change as PriceChange
from foveate.cost.prices import PriceSource
from foveate.fold.journal import Outcome as CompactionOutcome
from foveate.fold.overflow import OnOverflow
from foveate.fold.overflow import Step as OverflowStep
from foveate.gateway.routing import KNOWN_UPSTREAMS
from foveate.memory.view import Level as NodeLevel
from foveate.memory.view import ViewFormat
from foveate.prompt.inputs import CallKind
from foveate.prompt.time import TimeFormat
from foveate.replay.policies import ALL, Policy
from foveate.replay.recordings import Lacking
from foveate.replay.recordings import Source as RecordingSource
from foveate.sandbox.doors import Provider
from foveate.sandbox.scripts import HEADER
from foveate.tokens.options import Backend
from foveate.values import Format, Savings, Ttl

NAMES: dict[str, Iterable[str]] = {
    "api format": Format,
    "budget ladder": BUILT_IN,
    "budget limit source": LimitSource,
    "cache break cause": Cause,
    "cache hit level": HitLevel,
    "cache ttl": Ttl,
    "call kind": CallKind,
    "cap level": CapLevel,
    "cap on unknown price": Unknown,
    "cap scope": Scope,
    "charge outcome": ChargeOutcome,
    "chat command": (*chat_commands.COMMANDS, *chat_commands.ENDS),
    "chat error": Trouble,
    "compaction outcome": CompactionOutcome,
    "configuration source": SettingSource,
    "counting backend": Backend,
    "doctor level": DoctorLevel,
    "ledger category": Category,
    "ledger group": By,
    "ledger saving": Savings.__struct_fields__,
    "memory format": ViewFormat,
    "memory node level": NodeLevel,
    "overflow policy": OnOverflow,
    "overflow step": OverflowStep,
    "price change": PriceChange,
    "price source": PriceSource,
    "replay format": RecordingSource,
    "replay missing part": Lacking,
    "replay policy": (*Policy, ALL),
    "sandbox header": (HEADER,),
    "sandbox provider": Provider,
    "section action": Action,
    "section priority": Priority,
    "section stability": Stability,
    "section truncation": Keep,
    "time format": TimeFormat,
    "upstream": KNOWN_UPSTREAMS,
}


def vocabularies() -> dict[str, str]:
    """Each word with the list it belongs to: `compaction outcome: ok`."""
    lists = {**NAMES, "request step": _request_steps()}
    return {f"{name}: {word}": "name" for name, words in lists.items() for word in words}


def _request_steps() -> set[str]:
    """The names of the engine's steps, which metrics and logs tell."""
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
