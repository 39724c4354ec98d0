"""Cache breakpoints that a client has placed, for models that take none."""

from foveate import wire
from foveate.values import Edit, Format, RemoveBreakpoint, Request, SetParameter
from foveate.wire.around import get_parameters

_REJECTED_REASON = "the model takes no breakpoints"


def remove_client_breakpoints(request: Request) -> list[Edit]:
    """Edits that remove all breakpoints of the client, of a model that takes none."""
    if request.format is not Format.ANTHROPIC or b"cache_control" not in request.body:
        return []
    places = [block.place for block in wire.request_blocks(request) if block.breakpoint_ttl is not None]
    edits: list[Edit] = [RemoveBreakpoint(place=place, reason=_REJECTED_REASON) for place in places]
    if "cache_control" in get_parameters(request):
        edits.append(SetParameter(path=("cache_control",), value=None, reason=_REJECTED_REASON))
    return edits
