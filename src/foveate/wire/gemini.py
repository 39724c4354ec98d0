"""Gemini generateContent: https://ai.google.dev/api/generate-content (read November 2026).

Names come in camelCase and in snake_case; both are accepted by the service, so both are read.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from foveate.errors import DuplicateKey, MalformedRequest
from foveate.values import (
    Document,
    Format,
    Image,
    Message,
    Opaque,
    Part,
    Request,
    Schema,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from foveate.wire import media
from foveate.wire.body import (
    Fields,
    as_list,
    as_record,
    as_text,
    compact,
    entries,
    inner_fields,
    items,
    message_record,
    opaque,
    record,
    value,
)
from foveate.wire.shapes import Shape

SHAPE = Shape(
    messages=("contents",),
    content="parts",
    tools=(("tools",),),
    system=("systemInstruction", "system_instruction"),
    system_content="parts",
    wrapper="generateContentRequest",
    declarations=("functionDeclarations", "function_declarations"),
    takes_single=True,
    results={
        "functionResponse": ("functionResponse", "response"),
        "function_response": ("function_response", "response"),
    },
    result_is_object=True,
)


def request_fields(fields: Fields) -> Fields:
    """The fields of a generateContent request, which countTokens may have inside of another object.

    Raises:
        MalformedRequest: what should hold them is not an object.
    """
    wrapped = fields.get("generateContentRequest")
    if wrapped is None:
        return fields
    if not bytes(wrapped).startswith(b"{"):
        raise MalformedRequest("`generateContentRequest` is not an object")
    return inner_fields(wrapped)


def read(body: bytes, fields: Fields) -> Request:
    """A generateContent or countTokens body as a `Request`."""
    fields = request_fields(fields)
    _check_spellings(fields)
    system = value(fields.get("systemInstruction") or fields.get("system_instruction"))
    config = record(fields.get("generationConfig") or fields.get("generation_config"))
    _check_spellings(config, "generationConfig")
    calling = as_record(record(fields.get("toolConfig") or fields.get("tool_config")))
    mode = as_record(calling.get("functionCallingConfig") or calling.get("function_calling_config"))
    stored = {
        name: fields.get(name) or fields.get(snake)
        for name, snake in (("cachedContent", "cached_content"), ("continuationToken", "continuation_token"))
    }
    return Request(
        format=Format.GEMINI,
        model=as_text(value(fields.get("model"))).removeprefix("models/"),
        body=body,
        system=_content(system) if system is not None else (),
        tools=_tools(fields),
        messages=messages(fields),
        tool_choice=as_text(mode.get("mode")).lower(),
        schema=_schema(config),
        unexplained=tuple(name for name, raw in stored.items() if raw and value(raw)),
    )


def _check_spellings(names: Iterable[str], *path: str) -> None:
    """Refuse an object that has a name in both spellings: Google reads one of them, and says not which.

    Raises:
        DuplicateKey: it has.
    """
    seen = set()
    for name in names:
        plain = name.replace("_", "").lower()
        if plain in seen:
            raise DuplicateKey((*path, name))
        seen.add(plain)


def messages(fields: Fields) -> tuple[bytes, ...]:
    """The JSON of each content."""
    return _listed(fields.get("contents"), "contents")


def message(raw: bytes) -> Message:
    """One entry of `contents`."""
    found = message_record(raw)
    return Message(role=as_text(found.get("role")) or "user", parts=_content(found))


def tool(raw: bytes) -> Tool:
    """One function declaration, or one of Google's own tools under its name."""
    found = record(raw)
    if "name" not in found:
        kind = next(iter(found), "tool")
        return Tool(kind=kind, name=kind, description="", parameters=b"{}", raw=raw)
    return Tool(
        kind="function",
        name=as_text(found.get("name")),
        description=as_text(found.get("description")),
        parameters=compact(_first(found, "parameters", "parametersJsonSchema", "parameters_json_schema") or {}),
        raw=raw,
    )


def _tools(fields: Fields) -> tuple[bytes, ...]:
    found: list[bytes] = []
    given = fields.get("tools")
    for entry in items(given) or ([bytes(given)] if given else []):
        for name, raw in inner_fields(entry).items():
            if name in ("functionDeclarations", "function_declarations"):
                found.extend(items(raw))
            else:
                found.append(b"{" + compact(name) + b":" + bytes(raw) + b"}")
    return tuple(found)


def _listed(given: msgspec.Raw | bytes | None, name: str) -> tuple[bytes, ...]:
    """The contents, of which a single one may stand there without a list."""
    if given is not None and bytes(given).startswith(b"{"):
        return (bytes(given),)
    return entries(given, name)


def _content(found: object) -> tuple[Part, ...]:
    if isinstance(found, str):
        return (Text(found),)
    if not isinstance(found, dict):
        return (opaque(found),)
    given = found.get("parts")
    if isinstance(given, list):
        return tuple(part for entry in given for part in _parts(entry))
    if given is None:
        rest = {name: inner for name, inner in found.items() if name not in ("parts", "role")}
        return (opaque(rest),) if rest else ()
    return _parts(given)


def _parts(found: object) -> tuple[Part, ...]:
    """One entry of `parts`, and the thoughts that are sealed in its signature."""
    if not isinstance(found, dict):
        return (opaque(found),)
    signature = as_text(_first(found, "thoughtSignature", "thought_signature"))
    if not signature:
        return (_part(found),)
    sealed = Thinking("", len(signature))
    if not found.keys() - {"thoughtSignature", "thought_signature", "thought"}:
        return (sealed,)
    return (_part(found), sealed)


def _part(found: dict[str, Any]) -> Part:
    if isinstance(text := found.get("text"), str):
        return Thinking(text) if found.get("thought") is True else Text(text)
    if call := as_record(_first(found, "functionCall", "function_call")):
        return ToolCall(
            format=Format.GEMINI,
            name=as_text(call.get("name")),
            arguments=compact(call.get("args") or {}).decode(),
            id=as_text(call.get("id")),
        )
    if answer := as_record(_first(found, "functionResponse", "function_response")):
        said = Text(compact(answer.get("response") or {}).decode())
        media_parts = tuple(_part(as_record(entry)) for entry in as_list(answer.get("parts")))
        return ToolResult(
            parts=(said, *media_parts),
            id=as_text(answer.get("id")),
            name=as_text(answer.get("name")),
        )
    if data := as_record(_first(found, "inlineData", "inline_data")):
        return _inline(data, found)
    if data := as_record(_first(found, "fileData", "file_data")):
        media_type = as_text(_first(data, "mimeType", "mime_type"))
        if media_type.startswith("image/"):
            return Image(source=Source.URL)
        return Document(source=Source.URL, media_type=media_type)
    return Opaque(next(iter(found), "empty"), compact(found))


def _inline(data: dict[str, Any], part: dict[str, Any]) -> Part:
    media_type = as_text(_first(data, "mimeType", "mime_type"))
    payload = as_text(data.get("data"))
    if media_type.startswith("image/"):
        size = media.pixels(payload) or (None, None)
        resolution = as_record(_first(part, "mediaResolution", "media_resolution"))
        level = as_text(resolution.get("level")).removeprefix("MEDIA_RESOLUTION_").lower()
        return Image(source=Source.INLINE, width=size[0], height=size[1], detail=level or "auto")
    if media_type.startswith("text/"):
        text = media.decoded(payload).decode("utf-8", "replace")
        return Document(source=Source.INLINE, media_type=media_type, text=text)
    return Document(
        source=Source.INLINE,
        media_type=media_type,
        pages=media.pdf_pages(payload) if media_type == "application/pdf" else None,
        size_bytes=len(payload) * 3 // 4,
    )


def _schema(config: dict[str, Any]) -> Schema | None:
    """The answer's schema, named after its field: the service counts one kind and not the other."""
    plain = _first(config, "responseSchema", "response_schema")
    if plain:
        return Schema(name="responseSchema", description="", schema=compact(plain))
    found = _first(config, "responseJsonSchema", "response_json_schema")
    return Schema(name="responseJsonSchema", description="", schema=compact(found)) if found else None


def _first(found: dict[str, Any], *names: str) -> Any:
    return next((found[name] for name in names if found.get(name) is not None), None)
