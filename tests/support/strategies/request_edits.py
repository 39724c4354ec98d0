"""Requests in all five API formats, and valid edits for each."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from foveate import formats
from foveate.model import (
    Area,
    Block,
    BreakpointStyle,
    CacheBreakpoint,
    Edit,
    Format,
    InsertParts,
    Message,
    Opaque,
    Part,
    Place,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    Request,
    SetParameter,
    Text,
    Ttl,
)
from tests.support.oracles.json_tree import BOM, spell_oddly

texts = st.text(st.sampled_from('ab "\\/\n\u00e9漢😀{}[],'), max_size=6)
ids = st.sampled_from(("t1", "t2"))
roles = st.sampled_from(("user", "assistant"))
breakpoints = st.none() | st.just({"type": "ephemeral"}) | st.just({"type": "ephemeral", "ttl": "1h"})
openai_breakpoints = st.none() | st.just({"mode": "explicit"})
STYLES = {
    Format.ANTHROPIC: [BreakpointStyle.CACHE_CONTROL],
    Format.CHAT: [BreakpointStyle.CACHE_CONTROL, BreakpointStyle.PROMPT_CACHE_BREAKPOINT],
    Format.RESPONSES: [BreakpointStyle.PROMPT_CACHE_BREAKPOINT],
    Format.GEMINI: [],
    Format.BEDROCK: [BreakpointStyle.CACHE_POINT],
}
# Blocks whose text can be replaced, and those that cannot be edited.
TEXT_KINDS = frozenset(
    ("text", "input_text", "output_text", "tool_result", "toolResult", "functionResponse",
     "function_call_output")
)  # fmt: skip
UNEDITABLE_KINDS = frozenset(("tool_call", "function_call"))


def objects(required: dict[str, Any], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the required members, and perhaps the optional ones."""
    required_strategies = {
        name: inner if isinstance(inner, st.SearchStrategy) else st.just(inner)
        for name, inner in required.items()
    }
    return st.fixed_dictionaries(required_strategies, optional=optional)


def short_lists(*inner: st.SearchStrategy[Any], max_items: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.one_of(*inner), max_size=max_items)


_text = objects({"type": "text", "text": texts}, cache_control=breakpoints)
_tool_use = objects({"type": "tool_use", "id": ids, "name": "f", "input": {"cache_control": 1}})
_tool_result = objects(
    {"type": "tool_result", "tool_use_id": ids},
    content=texts | short_lists(_text, max_items=2),
    cache_control=breakpoints,
)
anthropic = objects(
    {
        "model": "claude-4",
        "messages": short_lists(
            objects({"role": roles, "content": texts | short_lists(_text, _tool_use, _tool_result)})
        ),
    },
    system=texts | short_lists(_text) | st.none(),
    tools=short_lists(objects({"name": texts, "input_schema": {}}, cache_control=breakpoints), max_items=4),
    max_tokens=st.integers(1, 9),
    metadata=st.none() | st.just({}) | st.just({"user_id": "u"}),
)

_calls = [{"id": "t1", "function": {"name": "f"}}]
_image = objects({"type": "image_url", "image_url": {"url": "http://a"}})
_part = objects(
    {"type": "text", "text": texts}, cache_control=breakpoints, prompt_cache_breakpoint=openai_breakpoints
)
_tool_content = texts | st.lists(_part, min_size=1, max_size=2)
chat = objects(
    {
        "model": "gpt",
        "messages": short_lists(
            objects(
                {"role": st.sampled_from(("user", "system")), "content": texts | short_lists(_part, _image)},
                cache_control=breakpoints,
            ),
            objects({"role": "assistant", "tool_calls": _calls}, content=st.none() | texts),
            objects({"role": "tool", "tool_call_id": ids, "content": _tool_content}, cache_control=breakpoints),
        ),
    },
    tools=short_lists(objects({"type": "function", "function": {"name": "f"}}), max_items=4),
    stream_options=st.none() | st.just({}) | st.just({"include_usage": False}),
    n=st.integers(1, 3),
)

_input = objects({"type": "input_text", "text": texts}, prompt_cache_breakpoint=openai_breakpoints)
_user_item = objects({"role": "user", "content": texts | short_lists(_input)})
_output_texts = short_lists(objects({"type": "output_text", "text": texts}))
_output = texts | st.lists(_input, min_size=1, max_size=2)
responses = objects(
    {
        "model": "gpt",
        "input": texts
        | short_lists(
            _user_item,
            objects({"type": "message", "role": "assistant", "content": _output_texts}),
            objects({"type": "function_call", "call_id": ids, "name": "f", "arguments": "{}"}),
            objects({"type": "function_call_output", "call_id": ids, "output": _output}),
        ),
    },
    instructions=texts | st.none(),
    tools=short_lists(objects({"type": "function", "name": texts}), max_items=4),
)

_gemini_text = objects({"text": texts}, thoughtSignature=st.just("s"))
_function_response = objects({"functionResponse": objects({"name": "f", "response": {"a": 1}})})
_content = objects({"role": "user", "parts": short_lists(_gemini_text, _function_response) | _gemini_text})
gemini = objects(
    {"contents": short_lists(_content) | objects({"parts": short_lists(_gemini_text)})},
    systemInstruction=texts
    | st.none()
    | objects({}, parts=short_lists(_gemini_text, _function_response) | _gemini_text),
    tools=st.just([{"functionDeclarations": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}]),
    generationConfig=st.none() | st.just({"temperature": 1}),
)

_cache_point = st.just({"cachePoint": {"type": "default"}})
_bedrock_text = objects({"text": texts})
_bedrock_result = objects(
    {"toolResult": objects({"toolUseId": ids}, content=short_lists(_bedrock_text, max_items=2))}
)
bedrock = objects(
    {
        "modelId": "nova",
        "messages": short_lists(
            objects(
                {"role": roles, "content": texts | short_lists(_bedrock_text, _bedrock_result, _cache_point)}
            )
        ),
    },
    system=texts | short_lists(_bedrock_text, _cache_point),
    toolConfig=objects(
        {"tools": short_lists(objects({"toolSpec": objects({"name": texts})}), _cache_point, max_items=4)}
    ),
    inferenceConfig=st.just({"maxTokens": 3}),
)

BODIES = {
    Format.ANTHROPIC: anthropic,
    Format.CHAT: chat,
    Format.RESPONSES: responses,
    Format.GEMINI: gemini,
    Format.BEDROCK: bedrock,
}


@dataclass(frozen=True)
class EditCase:
    """A body, the parsed request, the edits, and how its breakpoints are written."""

    body: bytes
    request: Request
    edits: list[Edit]
    style: BreakpointStyle | None


@st.composite
def request_bodies(draw: st.DrawFn, api_format: Format) -> bytes:
    """Bodies in a format with odd spelling, perhaps with a byte order mark."""
    byte_order_mark = BOM if draw(st.integers(0, 9)) == 0 else b""
    return byte_order_mark + spell_oddly(draw(BODIES[api_format]), draw(st.integers(0, 2**32)))


def requests() -> st.SearchStrategy[Request]:
    return st.sampled_from(Format).flatmap(
        lambda api_format: request_bodies(api_format).map(lambda body: formats.parse_request(body, api_format))
    )


@st.composite
def edit_cases(draw: st.DrawFn, api_format: Format) -> EditCase:
    """Bodies in a format with edits that do not contradict each other."""
    body = draw(request_bodies(api_format))
    request = formats.parse_request(body, api_format)
    style = draw(st.sampled_from(STYLES[request.format])) if STYLES[request.format] else None
    size = len(request.messages)
    start, end = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    removed = range(start, end if draw(st.booleans()) else start)
    blocks = [
        block
        for block in formats.request_blocks(request)
        if not (block.place.area is Area.MESSAGES and block.place.index in removed)
    ]
    edits: list[Edit] = []
    if style:
        edits += [
            draw(_breakpoint_edits(block))
            for block in blocks
            if _takes_breakpoint(request, block) and draw(st.booleans())
        ]
    edits += [
        ReplaceText(place=block.place, text=draw(texts), reason="")
        for block in blocks
        if block.kind in TEXT_KINDS and draw(st.booleans())
    ]
    edits += draw(_inserts(request, blocks, removed))
    if len(removed) or draw(st.booleans()):
        others = tuple(draw(st.lists(_new_messages, max_size=2)))
        edits.append(ReplaceMessages(start=start, end=removed.stop, messages=others, reason=""))
    if draw(st.booleans()) and request.tools:
        order = draw(st.permutations(range(len(request.tools))))
        edits.append(ReorderTools(order=tuple(order), reason=""))
    edits += draw(_parameters())
    return EditCase(body, request, draw(st.permutations(edits)) if len(edits) < 12 else edits, style)


def _takes_breakpoint(request: Request, block: Block) -> bool:
    if block.kind in UNEDITABLE_KINDS:
        return False
    return not (request.format is Format.RESPONSES and block.place.area is Area.SYSTEM)


def _breakpoint_edits(block: Block) -> st.SearchStrategy[CacheBreakpoint]:
    ttls = st.sampled_from((None, Ttl.FIVE_MINUTES, Ttl.ONE_HOUR))
    return st.builds(CacheBreakpoint, place=st.just(block.place), reason=st.just(""), ttl=ttls)


_raw = st.just(Opaque("odd", b'{ "type" :"odd", "n":1E2}'))
_some_parts: st.SearchStrategy[list[Part]] = st.lists(st.builds(Text, texts) | _raw, min_size=1, max_size=2)
_new_parts: st.SearchStrategy[tuple[Part, ...]] = _some_parts.map(tuple)
_new_messages = st.builds(Message, role=roles, parts=_new_parts)


@st.composite
def _inserts(draw: st.DrawFn, request: Request, blocks: list[Block], removed: range) -> list[Edit]:
    indexes = (index for index in range(len(request.messages) + 1) if index not in removed[1:])
    places = [Place(Area.MESSAGES, index) for index in indexes]
    if request.format is not Format.CHAT:
        count = sum(block.place.area is Area.SYSTEM for block in blocks)
        places += [Place(Area.SYSTEM, 0), Place(Area.SYSTEM, count)]
    for index in range(len(request.messages)):
        own = [b for b in blocks if b.place.area is Area.MESSAGES and b.place.index == index]
        if own and not any(b.kind in UNEDITABLE_KINDS or _is_whole(request, b) for b in own):
            places += [Place(Area.MESSAGES, index, 0), Place(Area.MESSAGES, index, len(own))]
    inserts: list[Edit] = []
    for place in draw(st.lists(st.sampled_from(places), max_size=2, unique=True)):
        is_plain = place.area is Area.SYSTEM and request.format is Format.RESPONSES
        parts = (Text(draw(texts)),) if is_plain else draw(_new_parts)
        inserts.append(InsertParts(place=place, parts=parts, reason="", role=draw(roles)))
    return inserts


def _is_whole(request: Request, block: Block) -> bool:
    is_chat = request.format is Format.CHAT
    return block.kind == "function_call_output" or (is_chat and block.kind == "tool_result")


def _parameters() -> st.SearchStrategy[list[SetParameter]]:
    value = st.booleans() | st.integers(0, 9) | texts
    paths = st.sampled_from(
        (("prompt_cache_key",), ("stream_options", "include_usage"), ("stream_options", "x"), ("max_tokens",))
    )
    parameter = st.builds(SetParameter, path=paths, value=value, reason=st.just(""))
    return st.lists(parameter, max_size=2, unique_by=lambda edit: edit.path)
