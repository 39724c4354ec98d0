"""Gemini generateContent: https://ai.google.dev/api/generate-content (read November 2026).

The service accepts names in camelCase and in snake_case, so both are read.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from foveate.errors import DuplicateKey, MalformedRequest
from foveate.formats import media
from foveate.formats.json_text.parse import (
    Fields,
    as_dict,
    as_list,
    as_text,
    is_object,
    make_opaque,
    parse_entries,
    parse_inner_fields,
    parse_items,
    parse_json,
    parse_message_object,
    parse_object,
    to_json,
)
from foveate.formats.layout import FormatLayout
from foveate.model import (
    Document,
    Format,
    Image,
    MediaSource,
    Message,
    Opaque,
    Part,
    Request,
    ResponseSchema,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

LAYOUT = FormatLayout(
    message_fields=("contents",),
    content_field="parts",
    tool_paths=(("tools",),),
    system_fields=("systemInstruction", "system_instruction"),
    system_blocks_field="parts",
    wrapper_field="generateContentRequest",
    declaration_fields=("functionDeclarations", "function_declarations"),
    allows_single=True,
    result_paths={
        "functionResponse": ("functionResponse", "response"),
        "function_response": ("function_response", "response"),
    },
    result_is_object=True,
)


def unwrap_fields(fields: Fields) -> Fields:
    """Return the fields of a generateContent request, which countTokens may wrap in another object.

    Raises:
        MalformedRequest: the wrapper is not an object.
    """
    wrapped = fields.get("generateContentRequest")
    if wrapped is None:
        return fields
    if not is_object(wrapped):
        raise MalformedRequest("`generateContentRequest` is not an object")
    return parse_inner_fields(wrapped)


def parse_request(body: bytes, fields: Fields) -> Request:
    fields = unwrap_fields(fields)
    _check_spellings(fields)
    system = parse_json(fields.get("systemInstruction") or fields.get("system_instruction"))
    config = parse_object(fields.get("generationConfig") or fields.get("generation_config"))
    _check_spellings(config, "generationConfig")
    calling = as_dict(parse_object(fields.get("toolConfig") or fields.get("tool_config")))
    mode = as_dict(calling.get("functionCallingConfig") or calling.get("function_calling_config"))
    stored = {
        name: fields.get(name) or fields.get(snake)
        for name, snake in (("cachedContent", "cached_content"), ("continuationToken", "continuation_token"))
    }
    return Request(
        format=Format.GEMINI,
        model=as_text(parse_json(fields.get("model"))).removeprefix("models/"),
        body=body,
        system=_parse_content(system) if system is not None else (),
        tools=_split_tools(fields),
        messages=split_messages(fields),
        tool_choice=as_text(mode.get("mode")).lower(),
        schema=_parse_schema(config),
        unexplained=tuple(name for name, raw in stored.items() if raw and parse_json(raw)),
    )


def _check_spellings(names: Iterable[str], *path: str) -> None:
    """Reject an object that has a name in both spellings. Google does not document which one it reads.

    Raises:
        DuplicateKey: a name occurs in both.
    """
    seen = set()
    for name in names:
        plain = name.replace("_", "").lower()
        if plain in seen:
            raise DuplicateKey((*path, name))
        seen.add(plain)


def split_messages(fields: Fields) -> tuple[bytes, ...]:
    return _split_contents(fields.get("contents"), "contents")


def parse_message(raw: bytes) -> Message:
    fields = parse_message_object(raw)
    return Message(role=as_text(fields.get("role")) or "user", parts=_parse_content(fields))


def parse_tool(raw: bytes) -> Tool:
    fields = parse_object(raw)
    if "name" not in fields:
        kind = next(iter(fields), "tool")
        return Tool(kind=kind, name=kind, description="", parameters=b"{}", raw=raw)
    return Tool(
        kind="function",
        name=as_text(fields.get("name")),
        description=as_text(fields.get("description")),
        parameters=to_json(
            _first_present(fields, "parameters", "parametersJsonSchema", "parameters_json_schema") or {}
        ),
        raw=raw,
    )


def _split_tools(fields: Fields) -> tuple[bytes, ...]:
    tools: list[bytes] = []
    raw_tools = fields.get("tools")
    for entry in parse_items(raw_tools) or ([bytes(raw_tools)] if raw_tools else []):
        for name, raw in parse_inner_fields(entry).items():
            if name in ("functionDeclarations", "function_declarations"):
                tools.extend(parse_items(raw))
            else:
                tools.append(b"{" + to_json(name) + b":" + bytes(raw) + b"}")
    return tuple(tools)


def _split_contents(raw: msgspec.Raw | bytes | None, name: str) -> tuple[bytes, ...]:
    """A single content may stand without a list."""
    if raw is not None and is_object(raw):
        return (bytes(raw),)
    return parse_entries(raw, name)


def _parse_content(content: object) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, dict):
        return (make_opaque(content),)
    parts = content.get("parts")
    if isinstance(parts, list):
        return tuple(part for entry in parts for part in _parse_parts(entry))
    if parts is None:
        rest = {name: inner for name, inner in content.items() if name not in ("parts", "role")}
        return (make_opaque(rest),) if rest else ()
    return _parse_parts(parts)


def _parse_parts(part: object) -> tuple[Part, ...]:
    """Parse one entry of `parts`, and the encrypted thinking in its signature."""
    if not isinstance(part, dict):
        return (make_opaque(part),)
    signature = as_text(_first_present(part, "thoughtSignature", "thought_signature"))
    if not signature:
        return (_parse_part(part),)
    encrypted = Thinking("", len(signature))
    if not part.keys() - {"thoughtSignature", "thought_signature", "thought"}:
        return (encrypted,)
    return (_parse_part(part), encrypted)


def _parse_part(part: dict[str, Any]) -> Part:
    if isinstance(text := part.get("text"), str):
        return Thinking(text) if part.get("thought") is True else Text(text)
    if call := as_dict(_first_present(part, "functionCall", "function_call")):
        return ToolCall(
            format=Format.GEMINI,
            name=as_text(call.get("name")),
            arguments=to_json(call.get("args") or {}).decode(),
            id=as_text(call.get("id")),
        )
    if response := as_dict(_first_present(part, "functionResponse", "function_response")):
        text_part = Text(to_json(response.get("response") or {}).decode())
        media_parts = tuple(_parse_part(as_dict(entry)) for entry in as_list(response.get("parts")))
        return ToolResult(
            parts=(text_part, *media_parts),
            id=as_text(response.get("id")),
            name=as_text(response.get("name")),
        )
    if data := as_dict(_first_present(part, "inlineData", "inline_data")):
        return _parse_inline_data(data, part)
    if data := as_dict(_first_present(part, "fileData", "file_data")):
        media_type = as_text(_first_present(data, "mimeType", "mime_type"))
        if media_type.startswith("image/"):
            return Image(source=MediaSource.URL)
        return Document(source=MediaSource.URL, media_type=media_type)
    return Opaque(next(iter(part), "empty"), to_json(part))


def _parse_inline_data(data: dict[str, Any], part: dict[str, Any]) -> Part:
    media_type = as_text(_first_present(data, "mimeType", "mime_type"))
    payload = as_text(data.get("data"))
    if media_type.startswith("image/"):
        size = media.image_size(payload) or (None, None)
        resolution = as_dict(_first_present(part, "mediaResolution", "media_resolution"))
        level = as_text(resolution.get("level")).removeprefix("MEDIA_RESOLUTION_").lower()
        return Image(source=MediaSource.INLINE, width=size[0], height=size[1], detail=level or "auto")
    if media_type.startswith("text/"):
        text = media.decode_base64(payload).decode("utf-8", "replace")
        return Document(source=MediaSource.INLINE, media_type=media_type, text=text)
    return Document(
        source=MediaSource.INLINE,
        media_type=media_type,
        pages=media.count_pdf_pages(payload) if media_type == "application/pdf" else None,
        size_bytes=len(payload) * 3 // 4,
    )


def _parse_schema(config: dict[str, Any]) -> ResponseSchema | None:
    """Return the response schema, named after its field: the service counts one kind and not the other."""
    plain = _first_present(config, "responseSchema", "response_schema")
    if plain:
        return ResponseSchema(name="responseSchema", description="", schema=to_json(plain))
    json_schema = _first_present(config, "responseJsonSchema", "response_json_schema")
    return (
        ResponseSchema(name="responseJsonSchema", description="", schema=to_json(json_schema))
        if json_schema
        else None
    )


def _first_present(fields: dict[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)
