"""A request as the gateway hands it to the engine, and as the engine hands it to the upstream."""

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
    """Reject names that are too long: many caches are keyed by the model.

    Raises:
        MalformedRequest: the name is too long.
    """
    if len(name) > _MAX_MODEL_CHARS:
        raise MalformedRequest(f"the model's name has {len(name):,} characters, more than {_MAX_MODEL_CHARS:,}")


class IncomingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it arrived, with its route.

    `session` is the session named by a header, `session_headers` are other headers in which clients name it,
    and `caller` separates clients that use the same agent name. Session names that are not unique apply within
    a `session_scope`. `account` separates accounts at the provider, as far as it is known: each has its own
    prompt cache. `connection` is the number of the client's connection, or 0. `kind` is the value of
    `x-foveate-kind`. `provider` runs the `upstream`; `model` is the name of the model there, if it differs.
    `served_model` is the model that responds if the body does not name it. `region` is where it is served, if
    the path says so. `is_signed`: the client signed the body, so that it must not be changed. `betas` is the
    header `anthropic-beta`. `find_endpoint` builds the endpoint for summaries, with the client's own key.
    `section_inputs` are headers that injected sections depend on. `keeps_response`: the whole response is
    available at the end. `is_subscription`: the credentials belong to a subscription. `cost_headers` are names
    of headers that may add to the cost.
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
    account: str = ""
    connection: int = 0
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
        """Leaves out the body and the key."""
        return f"IncomingRequest(id={self.id!r}, agent={self.agent!r}, upstream={self.upstream!r})"

    @property
    def endpoint(self) -> SummarizerEndpoint | None:
        return self.find_endpoint() if self.find_endpoint is not None else None


class AppliedEdit(msgspec.Struct, frozen=True):
    step: str
    edit: Edit


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A step that failed; the request was sent without it."""

    step: str
    reason: str


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body and the headers to set; an empty header is removed."""

    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    applied_edits: tuple[AppliedEdit, ...] = ()
    problems: tuple[StepFailure, ...] = ()

    def __repr__(self) -> str:
        """Leaves out the body."""
        return f"UpstreamRequest(applied_edits={self.applied_edits!r}, problems={self.problems!r})"
