"""A call on its way: what came, what goes out, and what was done to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.engine.options import NO_SECTION_INPUTS, SectionInputs
from foveate.errors import MalformedRequest
from foveate.formats.request_limits import RequestLimits
from foveate.model import Edit, Format

_MAX_MODEL_CHARS = 1_000


def check_model_name(name: str) -> None:
    """See that this may be the name of a model: much is remembered by it, of many.

    Raises:
        MalformedRequest: it is too long for one.
    """
    if len(name) > _MAX_MODEL_CHARS:
        raise MalformedRequest(f"the name of its model has {len(name):,} characters")


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is to be sent on.

    `session` is what a header calls its session, `naming` are other headers in which clients name it, and
    `caller` tells apart who sends requests with one agent's name; names of sessions that are not unique hold
    within one `name_scope`. `kind` is what it is sent for
    (`x-foveate-kind`). `provider` is who runs the `upstream` that it goes to, and `model` the name that its
    model has there, if that is another.
    `served_model` is the model that answers, if the body does not name it: the path does, or it is configured.
    `region` is where it is served, if the path says so. `is_unchanged`: it is signed by its client, so that not
    a byte of it may be changed. `betas` is the header `anthropic-beta`, as it came. `find_endpoint` tells where
    a summary of its session can be asked for, with the client's own key. `told` is what its headers say that
    injected sections depend on. `limits` are those of what it may hold. `keeps_answer`: its answer can be had
    whole at its end. `is_subscription`: its credentials are those of a subscription. `cost_headers` are the
    names of its headers that may add to its cost.
    """

    id: str
    agent: str
    api_format: Format
    provider: str
    upstream: str
    body: bytes
    session: str | None = None
    session_headers: Mapping[str, str] = {}
    caller: str = ""
    session_scope: str = ""
    kind: str = ""
    model: str | None = None
    served_model: str = ""
    region: str = ""
    is_signed: bool = False
    betas: str = ""
    find_endpoint: Callable[[], SummarizerEndpoint] | None = None
    section_inputs: SectionInputs = NO_SECTION_INPUTS
    limits: RequestLimits = RequestLimits()
    keeps_response: bool = False
    is_subscription: bool = False
    cost_headers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Whose it is, without what it says and its key."""
        return f"Incoming(id={self.id!r}, agent={self.agent!r}, upstream={self.upstream!r})"

    @property
    def endpoint(self) -> SummarizerEndpoint | None:
        """Where a summary of its session can be asked for; made only for those few that ask."""
        return self.find_endpoint() if self.find_endpoint is not None else None


class AppliedEdit(msgspec.Struct, frozen=True):
    """An edit that was made, and the step that made it."""

    step: str
    edit: Edit


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A step that failed, and why; the request went out without it."""

    step: str
    reason: str


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent: a body, and headers that are set (an empty one is left out)."""

    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    applied_edits: tuple[AppliedEdit, ...] = ()
    problems: tuple[StepFailure, ...] = ()

    def __repr__(self) -> str:
        """What was done to it, without what it says."""
        return f"Outgoing(done={self.applied_edits!r}, problems={self.problems!r})"
