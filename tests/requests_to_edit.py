"""Requests of all five formats, and edits that make sense of each, for Hypothesis."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from foveate import wire
from foveate.values import (
    Area,
    Block,
    Edit,
    Format,
    Insert,
    Mark,
    MarkStyle,
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
from tests.json_tree import BOM, spell

texts = st.text(st.sampled_from('ab "\\/\n\u00e9漢😀{}[],'), max_size=6)
ids = st.sampled_from(("t1", "t2"))
roles = st.sampled_from(("user", "assistant"))
marks = st.none() | st.just({"type": "ephemeral"}) | st.just({"type": "ephemeral", "ttl": "1h"})
points = st.none() | st.just({"mode": "explicit"})
STYLES = {
    Format.ANTHROPIC: [MarkStyle.CACHE_CONTROL],
    Format.CHAT: [MarkStyle.CACHE_CONTROL, MarkStyle.BREAKPOINT],
    Format.RESPONSES: [MarkStyle.BREAKPOINT],
    Format.GEMINI: [],
    Format.BEDROCK: [MarkStyle.CACHE_POINT],
}
# Blocks whose text can be another, and those that no edit can be for.
WITH_TEXT = frozenset(
    ("text", "input_text", "output_text", "tool_result", "toolResult", "functionResponse",
     "function_call_output")
)  # fmt: skip
UNTOUCHABLE = frozenset(("tool_call", "function_call"))


def some(given: dict[str, Any], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some members, and perhaps with others."""
    certain = {
        name: inner if isinstance(inner, st.SearchStrategy) else st.just(inner) for name, inner in given.items()
    }
    return st.fixed_dictionaries(certain, optional=optional)


def listed(*inner: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    """A short list."""
    return st.lists(st.one_of(*inner), max_size=most)


_text = some({"type": "text", "text": texts}, cache_control=marks)
_call = some({"type": "tool_use", "id": ids, "name": "f", "input": {"cache_control": 1}})
_answer = some(
    {"type": "tool_result", "tool_use_id": ids},
    content=texts | listed(_text, most=2),
    cache_control=marks,
)
anthropic = some(
    {
        "model": "claude-4",
        "messages": listed(some({"role": roles, "content": texts | listed(_text, _call, _answer)})),
    },
    system=texts | listed(_text) | st.none(),
    tools=listed(some({"name": texts, "input_schema": {}}, cache_control=marks), most=4),
    max_tokens=st.integers(1, 9),
    metadata=st.none() | st.just({}) | st.just({"user_id": "u"}),
)

_calls = [{"id": "t1", "function": {"name": "f"}}]
_image = some({"type": "image_url", "image_url": {"url": "http://a"}})
_part = some({"type": "text", "text": texts}, cache_control=marks, prompt_cache_breakpoint=points)
_held = texts | st.lists(_part, min_size=1, max_size=2)
chat = some(
    {
        "model": "gpt",
        "messages": listed(
            some(
                {"role": st.sampled_from(("user", "system")), "content": texts | listed(_part, _image)},
                cache_control=marks,
            ),
            some({"role": "assistant", "tool_calls": _calls}, content=st.none() | texts),
            some({"role": "tool", "tool_call_id": ids, "content": _held}, cache_control=marks),
        ),
    },
    tools=listed(some({"type": "function", "function": {"name": "f"}}), most=4),
    stream_options=st.none() | st.just({}) | st.just({"include_usage": False}),
    n=st.integers(1, 3),
)

_input = some({"type": "input_text", "text": texts}, prompt_cache_breakpoint=points)
_asked = some({"role": "user", "content": texts | listed(_input)})
_told = listed(some({"type": "output_text", "text": texts}))
_output = texts | st.lists(_input, min_size=1, max_size=2)
responses = some(
    {
        "model": "gpt",
        "input": texts
        | listed(
            _asked,
            some({"type": "message", "role": "assistant", "content": _told}),
            some({"type": "function_call", "call_id": ids, "name": "f", "arguments": "{}"}),
            some({"type": "function_call_output", "call_id": ids, "output": _output}),
        ),
    },
    instructions=texts | st.none(),
    tools=listed(some({"type": "function", "name": texts}), most=4),
)

_said = some({"text": texts}, thoughtSignature=st.just("s"))
_answered = some({"functionResponse": some({"name": "f", "response": {"a": 1}})})
_content = some({"role": "user", "parts": listed(_said, _answered) | _said})
gemini = some(
    {"contents": listed(_content) | some({"parts": listed(_said)})},
    systemInstruction=texts | st.none() | some({}, parts=listed(_said, _answered) | _said),
    tools=st.just([{"functionDeclarations": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}]),
    generationConfig=st.none() | st.just({"temperature": 1}),
)

_point = st.just({"cachePoint": {"type": "default"}})
_plain = some({"text": texts})
_result = some({"toolResult": some({"toolUseId": ids}, content=listed(_plain, most=2))})
bedrock = some(
    {
        "modelId": "nova",
        "messages": listed(some({"role": roles, "content": texts | listed(_plain, _result, _point)})),
    },
    system=texts | listed(_plain, _point),
    toolConfig=some({"tools": listed(some({"toolSpec": some({"name": texts})}), _point, most=4)}),
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
class Case:
    """A body as it was handed in, read, what is to be done to it, and how its marks are written."""

    body: bytes
    request: Request
    edits: list[Edit]
    style: MarkStyle | None


@st.composite
def handed_in(draw: st.DrawFn, spoken: Format) -> bytes:
    """A body in a format and an odd spelling, perhaps behind a byte order mark."""
    mark = BOM if draw(st.integers(0, 9)) == 0 else b""
    return mark + spell(draw(BODIES[spoken]), draw(st.integers(0, 2**32)))


def requests() -> st.SearchStrategy[Request]:
    """A request in some format."""
    return st.sampled_from(Format).flatmap(
        lambda spoken: handed_in(spoken).map(lambda body: wire.read(body, spoken))
    )


@st.composite
def cases(draw: st.DrawFn, spoken: Format) -> Case:
    """A body in a format and a set of edits that do not contradict each other."""
    body = draw(handed_in(spoken))
    request = wire.read(body, spoken)
    style = draw(st.sampled_from(STYLES[request.format])) if STYLES[request.format] else None
    size = len(request.messages)
    start, end = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    gone = range(start, end if draw(st.booleans()) else start)
    blocks = [
        block
        for block in wire.blocks(request)
        if not (block.place.area is Area.MESSAGES and block.place.index in gone)
    ]
    edits: list[Edit] = []
    if style:
        edits += [draw(_mark(block)) for block in blocks if _takes_mark(request, block) and draw(st.booleans())]
    edits += [
        ReplaceText(place=block.place, text=draw(texts), reason="")
        for block in blocks
        if block.kind in WITH_TEXT and draw(st.booleans())
    ]
    edits += draw(_inserts(request, blocks, gone))
    if len(gone) or draw(st.booleans()):
        others = tuple(draw(st.lists(_new_messages, max_size=2)))
        edits.append(ReplaceMessages(start=start, end=gone.stop, messages=others, reason=""))
    if draw(st.booleans()) and request.tools:
        order = draw(st.permutations(range(len(request.tools))))
        edits.append(ReorderTools(order=tuple(order), reason=""))
    edits += draw(_parameters())
    return Case(body, request, draw(st.permutations(edits)) if len(edits) < 12 else edits, style)


def _takes_mark(request: Request, block: Block) -> bool:
    if block.kind in UNTOUCHABLE:
        return False
    return not (request.format is Format.RESPONSES and block.place.area is Area.SYSTEM)


def _mark(block: Block) -> st.SearchStrategy[Mark]:
    ttls = st.sampled_from((None, Ttl.FIVE_MINUTES, Ttl.ONE_HOUR))
    return st.builds(Mark, place=st.just(block.place), reason=st.just(""), ttl=ttls)


_raw = st.just(Opaque("odd", b'{ "type" :"odd", "n":1E2}'))
_some_parts: st.SearchStrategy[list[Part]] = st.lists(st.builds(Text, texts) | _raw, min_size=1, max_size=2)
_new_parts: st.SearchStrategy[tuple[Part, ...]] = _some_parts.map(tuple)
_new_messages = st.builds(Message, role=roles, parts=_new_parts)


@st.composite
def _inserts(draw: st.DrawFn, request: Request, blocks: list[Block], gone: range) -> list[Edit]:
    indexes = (index for index in range(len(request.messages) + 1) if index not in gone[1:])
    places = [Place(Area.MESSAGES, index) for index in indexes]
    if request.format is not Format.CHAT:
        count = sum(block.place.area is Area.SYSTEM for block in blocks)
        places += [Place(Area.SYSTEM, 0), Place(Area.SYSTEM, count)]
    for index in range(len(request.messages)):
        own = [b for b in blocks if b.place.area is Area.MESSAGES and b.place.index == index]
        if own and not any(b.kind in UNTOUCHABLE or _is_whole(request, b) for b in own):
            places += [Place(Area.MESSAGES, index, 0), Place(Area.MESSAGES, index, len(own))]
    made: list[Edit] = []
    for place in draw(st.lists(st.sampled_from(places), max_size=2, unique=True)):
        is_plain = place.area is Area.SYSTEM and request.format is Format.RESPONSES
        parts = (Text(draw(texts)),) if is_plain else draw(_new_parts)
        made.append(Insert(place=place, parts=parts, reason="", role=draw(roles)))
    return made


def _is_whole(request: Request, block: Block) -> bool:
    is_chat = request.format is Format.CHAT
    return block.kind == "function_call_output" or (is_chat and block.kind == "tool_result")


def _parameters() -> st.SearchStrategy[list[SetParameter]]:
    value = st.booleans() | st.integers(0, 9) | texts
    paths = st.sampled_from(
        (("prompt_cache_key",), ("stream_options", "include_usage"), ("stream_options", "x"), ("max_tokens",))
    )
    one = st.builds(SetParameter, path=paths, value=value, reason=st.just(""))
    return st.lists(one, max_size=2, unique_by=lambda edit: edit.path)
