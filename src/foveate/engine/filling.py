"""What fills a request's window, part by part, in time with what is new of it.

What the messages up to each one come to is noted with them in the tree of conversations, so that a session that
grows by a turn looks at one turn. The parts add up to the count of the whole, however that was made.
"""

from collections.abc import Sequence
from functools import lru_cache

from foveate import wire
from foveate.engine.steps.names import SECTIONS
from foveate.engine.work import RequestContext
from foveate.session.traces import WindowSection
from foveate.tokens import RequestCounter
from foveate.values import Area, Block, InsertParts, Request
from foveate.wire.blocks import get_cached_blocks

SYSTEM, TOOLS, SUMMARY, USER, MODEL, THINKING, RESULTS, MEDIA = (
    "system",
    "tools",
    "summary",
    "user",
    "assistant",
    "thinking",
    "tool results",
    "images and files",
)
_MESSAGE_PARTS = (USER, MODEL, THINKING, RESULTS, MEDIA, SYSTEM)
_SYSTEM_INDEX = _MESSAGE_PARTS.index(SYSTEM)
_NO_SIZES = (0.0,) * len(_MESSAGE_PARTS)
_BYTES_PER_TOKEN = 4
# A picture's bytes say nothing of its tokens, of which it has about this many at most.
_MAX_MEDIA_BYTES = 1_600 * _BYTES_PER_TOKEN

_Sizes = tuple[float, ...]


def break_down_window(context: RequestContext) -> tuple[WindowSection, ...]:
    """The parts of the request as it would go out, in the order in which a model reads them; none is empty.

    There are none of a request that was not counted, or not understood.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    trail = context.trail
    if context.token_count is None or trail is None:
        return ()
    request, counter = context.request, context.counter
    message_sizes = list(_measure_messages(request, trail, counter))
    system, tools = _measure_envelope(request, trail, counter)
    if trail.leading_system_messages:
        system += counter.tally_head(request, trail).tokens  # the system messages that a chat begins with
    system += message_sizes[_SYSTEM_INDEX]
    injected_before, injected_after = _measure_injected(context)
    summary = min(context.compaction.tokens_after, message_sizes[0]) if context.compaction is not None else 0.0
    message_sizes[0] = max(0.0, message_sizes[0] - sum(injected_after.values()) - summary)
    sizes = [
        (TOOLS, tools),
        (SYSTEM, max(0.0, system - sum(injected_before.values()))),
        *injected_before.items(),
        (SUMMARY, summary),
        *zip(_MESSAGE_PARTS[:_SYSTEM_INDEX], message_sizes, strict=False),
        *injected_after.items(),
    ]
    return _round_to_total(sizes, context.token_count.tokens)


def _measure_messages(request: Request, trail: wire.MessageHistory, counter: RequestCounter) -> _Sizes:
    """What the messages come to by who says them."""
    links = trail.nodes
    known_links = len(links)
    while known_links and counter not in links[known_links - 1].memo:
        known_links -= 1
    sizes: _Sizes = links[known_links - 1].memo[counter] if known_links else _NO_SIZES
    for at in range(known_links, len(links)):
        blocks = get_cached_blocks(links[at])
        if blocks is None:
            blocks = wire.blocks_at(request, trail, at)
        sizes = _add_message(sizes, blocks, _message_tokens(trail, at, counter))
        links[at].memo[counter] = sizes
    return sizes


def _message_tokens(trail: wire.MessageHistory, at: int, counter: RequestCounter) -> float:
    try:
        measured = counter.measured_at(trail, at)
    except KeyError:  # not counted by itself: something was put into it since, or its provider has counted
        return len(trail.nodes[at].raw) / _BYTES_PER_TOKEN
    return measured.tokens + measured.image_tokens + measured.thinking_tokens


def _add_message(sizes: _Sizes, blocks: Sequence[Block], tokens: float) -> _Sizes:
    """The sizes with one more message, whose tokens are shared among its blocks by their lengths."""
    if len(blocks) == 1:
        part = _MESSAGE_PARTS.index(_part_name(blocks[0].kind, blocks[0].role))
        return (*sizes[:part], sizes[part] + tokens, *sizes[part + 1 :])
    lengths = [0] * len(_MESSAGE_PARTS)
    for block in blocks:
        kind = _part_name(block.kind, block.role)
        length = (
            min(len(block.canonical_json), _MAX_MEDIA_BYTES) if kind == MEDIA else len(block.canonical_json)
        )
        lengths[_MESSAGE_PARTS.index(kind)] += length
    total = sum(lengths) or 1
    return tuple([size + tokens * length / total for size, length in zip(sizes, lengths, strict=True)])


@lru_cache(maxsize=256)
def _part_name(kind: str, role: str) -> str:
    lowered = kind.lower()
    if "result" in lowered or lowered.endswith("_output") or "functionresponse" in lowered.replace("_", ""):
        return RESULTS
    if "thinking" in lowered or "reasoning" in lowered:
        return THINKING
    if any(word in lowered for word in ("image", "document", "file", "inlinedata", "inline_data", "audio")):
        return MEDIA
    if role in ("system", "developer"):
        return SYSTEM
    return MODEL if role in ("assistant", "model") or "call" in lowered else USER


def _measure_envelope(
    request: Request, trail: wire.MessageHistory, counter: RequestCounter
) -> tuple[float, float]:
    """The system prompt and the tools, as they were counted; by their lengths where they were not."""
    if counter.new_envelope_bytes(request):
        tools = sum(map(len, request.tools))
        system = len(request.body) - sum(map(len, request.messages)) - tools
        return system / _BYTES_PER_TOKEN, tools / _BYTES_PER_TOKEN
    try:
        loads = counter.tally_at(trail, len(trail.nodes) - 1).loaded_tools if trail.nodes else ()
    except KeyError:
        loads = ()
    opening = counter.cached_envelope_count(request, trail, loads)
    return opening.system.tokens + opening.system.image_tokens, opening.tools.tokens


def _measure_injected(context: RequestContext) -> tuple[dict[str, float], dict[str, float]]:
    """The tokens of injected sections, by their names: those in the system prompt, and those behind it."""
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for applied in context.applied_edits:
        edit = applied.edit
        if applied.step == SECTIONS and isinstance(edit, InsertParts):
            _, _, description = edit.reason.partition("section ")
            name = f"injected {description.partition(',')[0] or 'earlier'}"
            sizes = before if edit.place.area is Area.SYSTEM or edit.role == "system" else after
            sizes[name] = sizes.get(name, 0.0) - edit.saved_tokens
    return before, after


def _round_to_total(sizes: Sequence[tuple[str, float]], total_tokens: int) -> tuple[WindowSection, ...]:
    """The parts in whole numbers that add up to the total."""
    total = sum([size for _, size in sizes])
    if total <= 0:
        return ()
    rate, reached, rounded_tokens = total_tokens / total, 0.0, 0
    sections: list[WindowSection] = []
    for name, size in sizes:
        reached += size * rate
        if tokens := round(reached) - rounded_tokens:
            rounded_tokens += tokens
            sections.append(WindowSection(name, tokens))
    return tuple(sections)
