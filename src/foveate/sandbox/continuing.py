"""Requests for a response that stand on earlier ones: the whole conversation that they mean."""

from typing import Any

from foveate.sandbox.accounts import StoredResponses
from foveate.values import Format
from foveate.wire.body import as_dict, as_text
from foveate.wire.refusals import ErrorResponse, make_status_error


def resolve_references(
    body: dict[str, Any], responses: StoredResponses, owner: bytes
) -> dict[str, Any] | ErrorResponse:
    """A request with all that came before it and all that it refers to; itself where it stands alone."""
    if body.get("conversation") is not None:
        return make_status_error(Format.RESPONSES, 404, "The sandbox keeps no conversations: send `input`")
    input_value = body.get("input")
    previous_id = body.get("previous_response_id")
    has_references = isinstance(input_value, list) and any(_is_reference(item) for item in input_value)
    if previous_id is None and not has_references:
        return body
    previous_items = [] if previous_id is None else responses.find(owner, as_text(previous_id))
    if previous_items is None:
        return ErrorResponse(
            message=f"Previous response with id '{previous_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    own_items = []
    for item in input_items(body):
        referenced = responses.find_item(owner, as_text(item.get("id"))) if _is_reference(item) else item
        if referenced is None and "id" in item:
            return ErrorResponse(message=f"Item with id '{item['id']}' not found.", status=404, param="input")
        own_items.append(item if referenced is None else referenced)
    remaining_fields = {name: value for name, value in body.items() if name != "previous_response_id"}
    return remaining_fields | {"input": [*previous_items, *own_items]}


def input_items(body: dict[str, Any]) -> tuple[Any, ...]:
    """The input as items; a text is what the user says."""
    input_value = body.get("input")
    if isinstance(input_value, str):
        return ({"role": "user", "content": input_value},)
    return tuple(input_value) if isinstance(input_value, list) else ()


def _is_reference(item: object) -> bool:
    return as_dict(item).get("type") == "item_reference"
