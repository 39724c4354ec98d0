"""An agent with every kind of section, and the step that injects them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from foveate import formats
from foveate.context.time_section import TimeOptions
from foveate.context.workspace import Workspace
from foveate.engine.options import (
    NO_SECTION_INPUTS,
    AgentOptions,
    BindingOptions,
    MemoryOptions,
    SectionInputs,
    SectionOptions,
)
from foveate.engine.request import IncomingRequest, StepFailure
from foveate.engine.request_context import RequestContext
from foveate.engine.sections.sources import SectionSources
from foveate.engine.steps.sections import InjectSections
from foveate.model import Format
from foveate.session.hash_chain import compute_chain

NOW = 1_800_000_000.0
HEADING = "[Foveate: context for this turn, not written by the user.]"


def garden_sections(folder: Path, *, memory_limit_tokens: int = 300) -> SectionOptions:
    """Write the files of a gardening agent into `folder`, and return all its sections."""
    workspace, skills, notes = (folder / name for name in ("workspace", "skills", "notes"))
    for path in (workspace, skills, notes):
        path.mkdir(parents=True)
    (workspace / "IDENTITY.md").write_text("You are Ana, who keeps the garden.\n")
    (workspace / "USER.md").write_text("# Bob\n\nHas roses.\n\n# Bank :private:\n\nThe code is 1234.\n")
    (skills / "water.md").write_text("---\nname: water\ndescription: waters a bed\n---\nHow to.\n")
    beds = "".join(f"* Bed {number}\nBed {number} gets water on day {number}.\n" for number in range(20))
    private = "* Diary :private:\nNobody reads this.\n"
    (notes / "garden.org").write_text(f"{beds}{private}* TODO Prune\nDEADLINE: <2027-01-15 Fri 08:20>\n")
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


OPENED_SOURCES: list[SectionSources] = []
"""Sources of every `SectionInjection`. Tests must close them: their watchers are threads."""


@dataclass
class SectionInjection:
    """The injection step by itself, with its sources."""

    sources: SectionSources = field(default_factory=SectionSources)
    problems: list[StepFailure] = field(default_factory=list)
    timeout_seconds: float = 30

    def __post_init__(self) -> None:
        OPENED_SOURCES.append(self.sources)
        self.step = InjectSections(self.sources, timeout_seconds=self.timeout_seconds)

    def apply(
        self,
        body: dict[str, Any],
        api_format: Format,
        options: AgentOptions,
        *,
        inputs: SectionInputs = NO_SECTION_INPUTS,
        kind: str = "",
        provider: str = "",
        count: Callable[[RequestContext], None] | None = None,
    ) -> RequestContext:
        """Run the step on a request."""
        data = msgspec.json.encode(body)
        request = formats.parse_request(data, api_format)
        provider = provider or ("anthropic" if api_format is Format.ANTHROPIC else "openai")
        incoming = IncomingRequest(
            id="req_1",
            agent="ana",
            api_format=api_format,
            provider=provider,
            upstream=provider,
            body=data,
            kind=kind,
            section_inputs=inputs,
        )
        context = RequestContext(
            incoming=incoming, options=options, received_at=NOW, original=request, request=request
        )
        context.session.chain = compute_chain(request)
        context.count.raw = context.counter.count_request(request)
        context.count.total = context.count.raw.total
        if count is not None:
            count(context)
        asyncio.run(self.step.apply(context))
        self.problems += context.problems
        return context


def sent_body(context: RequestContext) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(context.request.body)
    return body


def only_sections(options: SectionOptions, **sections: Any) -> SectionOptions:
    """Return options with only the given sections."""
    bare = SectionOptions(privacy_tags=options.privacy_tags, workspace_cache=options.workspace_cache)
    return replace(bare, **sections)
