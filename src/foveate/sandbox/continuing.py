"""Requests for a response that stand on earlier ones: the whole conversation that they mean."""

from typing import Any

from foveate.sandbox.accounts import Responses
from foveate.values import Format
from foveate.wire.body import as_record, as_text
from foveate.wire.refusals import Refusal, failed


def continued(asked: dict[str, Any], responses: Responses, owner: bytes) -> dict[str, Any] | Refusal:
    """A request with all that came before it and all that it refers to; itself where it stands alone."""
    if asked.get("conversation") is not None:
        return failed(Format.RESPONSES, 404, "The sandbox keeps no conversations: send `input`")
    given = asked.get("input")
    earlier_id = asked.get("previous_response_id")
    refers = isinstance(given, list) and any(_is_reference(item) for item in given)
    if earlier_id is None and not refers:
        return asked
    earlier = [] if earlier_id is None else responses.find(owner, as_text(earlier_id))
    if earlier is None:
        return Refusal(
            message=f"Previous response with id '{earlier_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    own = []
    for item in items_of(asked):
        meant = responses.item(owner, as_text(item.get("id"))) if _is_reference(item) else item
        if meant is None and "id" in item:
            return Refusal(message=f"Item with id '{item['id']}' not found.", status=404, param="input")
        own.append(item if meant is None else meant)
    whole = {name: said for name, said in asked.items() if name != "previous_response_id"}
    return whole | {"input": [*earlier, *own]}


def items_of(asked: dict[str, Any]) -> tuple[Any, ...]:
    """The input as items; a text is what the user says."""
    given = asked.get("input")
    if isinstance(given, str):
        return ({"role": "user", "content": given},)
    return tuple(given) if isinstance(given, list) else ()


def _is_reference(item: object) -> bool:
    return as_record(item).get("type") == "item_reference"
