"""Cache breakpoints that a client has placed, for models that take none."""

from foveate import wire
from foveate.values import Edit, Format, RemoveMark, Request, SetParameter
from foveate.wire.around import parameters_of

_REJECTED = "the model takes no breakpoints"


def client_removals(request: Request) -> list[Edit]:
    """Edits that remove all breakpoints of the client, of a model that takes none."""
    if request.format is not Format.ANTHROPIC or b"cache_control" not in request.body:
        return []
    marked = [block.place for block in wire.blocks(request) if block.mark is not None]
    found: list[Edit] = [RemoveMark(place=place, reason=_REJECTED) for place in marked]
    if "cache_control" in parameters_of(request):
        found.append(SetParameter(path=("cache_control",), value=None, reason=_REJECTED))
    return found
