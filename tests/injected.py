"""An agent with every section there is, and a look at what its requests become."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from foveate import wire
from foveate.engine.calls import Incoming, Problem
from foveate.engine.injecting.options import (
    NOTHING_TOLD,
    BindingOptions,
    MemoryOptions,
    SectionOptions,
    Told,
)
from foveate.engine.injecting.sources import Sources
from foveate.engine.options import AgentOptions
from foveate.engine.steps.sections import Inject
from foveate.engine.work import Work
from foveate.prompt.bundles import Workspace
from foveate.prompt.time import TimeOptions
from foveate.session.chain import chain_of
from foveate.values import Format

NOW = 1_800_000_000.0
HEADING = "[Foveate: context for this turn, which the user has not said.]"


def garden(folder: Path, *, memory_limit_tokens: int = 300) -> SectionOptions:
    """All sections of an agent that keeps a garden, whose files are in `folder`."""
    workspace, skills, notes = (folder / name for name in ("workspace", "skills", "notes"))
    for each in (workspace, skills, notes):
        each.mkdir(parents=True)
    (workspace / "IDENTITY.md").write_text("You are Ana, who keeps the garden.\n")
    (workspace / "USER.md").write_text("# Bob\n\nHas roses.\n\n# Bank :private:\n\nThe code is 1234.\n")
    (skills / "water.md").write_text("---\nname: water\ndescription: waters a bed\n---\nHow to.\n")
    beds = "".join(f"* Bed {number}\nBed {number} gets water on day {number}.\n" for number in range(20))
    hidden = "* Diary :private:\nNobody reads this.\n"
    (notes / "garden.org").write_text(f"{beds}{hidden}* TODO Prune\nDEADLINE: <2027-01-15 Fri 08:20>\n")
    return SectionOptions(
        workspace=Workspace(workspace),
        skills=str(skills),
        binding=BindingOptions(
            peers=("Bob: likes roses",), channels=(("slack", "Be short."),), language="German"
        ),
        memory=MemoryOptions(paths=(str(notes),), limit_tokens=memory_limit_tokens),
        time=TimeOptions(),
        channel=True,
        budget=True,
    )


OPENED: list[Sources] = []
"""The sources of every `Injecting`. Whoever makes one closes them: their watchers are threads."""


@dataclass
class Injecting:
    """The step by itself, with the sources that it has."""

    sources: Sources = field(default_factory=Sources)
    failed: list[Problem] = field(default_factory=list)
    patience_seconds: float = 30

    def __post_init__(self) -> None:
        OPENED.append(self.sources)
        self.step = Inject(self.sources, patience_seconds=self.patience_seconds)

    def work(
        self,
        body: dict[str, Any],
        spoken: Format,
        options: AgentOptions,
        *,
        told: Told = NOTHING_TOLD,
        kind: str = "",
        provider: str = "",
        count: Callable[[Work], None] | None = None,
    ) -> Work:
        """What becomes of a request."""
        data = msgspec.json.encode(body)
        request = wire.read(data, spoken)
        provider = provider or ("anthropic" if spoken is Format.ANTHROPIC else "openai")
        incoming = Incoming(
            id="req_1",
            agent="ana",
            spoken=spoken,
            provider=provider,
            upstream=provider,
            body=data,
            kind=kind,
            told=told,
        )
        work = Work(incoming=incoming, options=options, now=NOW, came=request, request=request)
        work.chain = chain_of(request)
        work.estimate = work.counter.request(request)
        work.count = work.estimate.total
        if count is not None:
            count(work)
        asyncio.run(self.step.take(work))
        self.failed += work.problems
        return work


def body_of(work: Work) -> dict[str, Any]:
    """What would be sent."""
    found: dict[str, Any] = msgspec.json.decode(work.request.body)
    return found


def only(options: SectionOptions, **kept: Any) -> SectionOptions:
    """No sections but those that are `kept`."""
    bare = SectionOptions(privacy_tags=options.privacy_tags, workspace_cache=options.workspace_cache)
    return replace(bare, **kept)
