"""What fills a request's window, part by part, in time with what is new of it.

What the messages up to each one come to is noted with them in the tree of conversations, so that a session that
grows by a turn looks at one turn. The parts add up to the count of the whole, however that was made.
"""

from collections.abc import Sequence
from functools import lru_cache

from foveate import wire
from foveate.engine.steps.names import SECTIONS
from foveate.engine.work import Work
from foveate.session.traces import WindowSection
from foveate.tokens import RequestCounter
from foveate.values import Area, Block, Insert, Request
from foveate.wire.blocks import noted_blocks

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
_SPOKEN = (USER, MODEL, THINKING, RESULTS, MEDIA, SYSTEM)
_SYSTEM_AT = _SPOKEN.index(SYSTEM)
_NOTHING = (0.0,) * len(_SPOKEN)
_BYTES_PER_TOKEN = 4
# A picture's bytes say nothing of its tokens, of which it has about this many at most.
_MOST_MEDIA_BYTES = 1_600 * _BYTES_PER_TOKEN

_Sizes = tuple[float, ...]


def filling(work: Work) -> tuple[WindowSection, ...]:
    """The parts of the request as it would go out, in the order in which a model reads them; none is empty.

    There are none of a request that was not counted, or not understood.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    trail = work.trail
    if work.count is None or trail is None:
        return ()
    request, counter = work.request, work.counter
    spoken = list(_said(request, trail, counter))
    system, tools = _around(request, trail, counter)
    if trail.head:
        system += counter.head(request, trail).tokens  # the system messages that a chat begins with
    system += spoken[_SYSTEM_AT]
    before, after = _injected(work)
    summary = min(work.fold.tokens_after, spoken[0]) if work.fold is not None else 0.0
    spoken[0] = max(0.0, spoken[0] - sum(after.values()) - summary)
    sizes = [
        (TOOLS, tools),
        (SYSTEM, max(0.0, system - sum(before.values()))),
        *before.items(),
        (SUMMARY, summary),
        *zip(_SPOKEN[:_SYSTEM_AT], spoken, strict=False),
        *after.items(),
    ]
    return _shared_out(sizes, work.count.tokens)


def _said(request: Request, trail: wire.Trail, counter: RequestCounter) -> _Sizes:
    """What the messages come to by who says them."""
    links = trail.links
    known = len(links)
    while known and counter not in links[known - 1].known:
        known -= 1
    sizes: _Sizes = links[known - 1].known[counter] if known else _NOTHING
    for at in range(known, len(links)):
        blocks = noted_blocks(links[at])
        if blocks is None:
            blocks = wire.blocks_at(request, trail, at)
        sizes = _plus(sizes, blocks, _tokens(trail, at, counter))
        links[at].known[counter] = sizes
    return sizes


def _tokens(trail: wire.Trail, at: int, counter: RequestCounter) -> float:
    try:
        measured = counter.measured_at(trail, at)
    except KeyError:  # not counted by itself: something was put into it since, or its provider has counted
        return len(trail.links[at].raw) / _BYTES_PER_TOKEN
    return measured.tokens + measured.image_tokens + measured.thought_tokens


def _plus(sizes: _Sizes, blocks: Sequence[Block], tokens: float) -> _Sizes:
    """The sizes with one more message, whose tokens are shared among its blocks by their lengths."""
    if len(blocks) == 1:
        own = _SPOKEN.index(_kind(blocks[0].kind, blocks[0].role))
        return (*sizes[:own], sizes[own] + tokens, *sizes[own + 1 :])
    lengths = [0] * len(_SPOKEN)
    for block in blocks:
        kind = _kind(block.kind, block.role)
        length = min(len(block.said), _MOST_MEDIA_BYTES) if kind == MEDIA else len(block.said)
        lengths[_SPOKEN.index(kind)] += length
    whole = sum(lengths) or 1
    return tuple([size + tokens * length / whole for size, length in zip(sizes, lengths, strict=True)])


@lru_cache(maxsize=256)
def _kind(kind: str, role: str) -> str:
    said = kind.lower()
    if "result" in said or said.endswith("_output") or "functionresponse" in said.replace("_", ""):
        return RESULTS
    if "thinking" in said or "reasoning" in said:
        return THINKING
    if any(word in said for word in ("image", "document", "file", "inlinedata", "inline_data", "audio")):
        return MEDIA
    if role in ("system", "developer"):
        return SYSTEM
    return MODEL if role in ("assistant", "model") or "call" in said else USER


def _around(request: Request, trail: wire.Trail, counter: RequestCounter) -> tuple[float, float]:
    """The system prompt and the tools, as they were counted; by their lengths where they were not."""
    if counter.new_around_bytes(request):
        tools = sum(map(len, request.tools))
        system = len(request.body) - sum(map(len, request.messages)) - tools
        return system / _BYTES_PER_TOKEN, tools / _BYTES_PER_TOKEN
    try:
        loads = counter.tallied_at(trail, len(trail.links) - 1).loads if trail.links else ()
    except KeyError:
        loads = ()
    opening = counter.around(request, trail, loads)
    return opening.system.tokens + opening.system.image_tokens, opening.tools.tokens


def _injected(work: Work) -> tuple[dict[str, float], dict[str, float]]:
    """The tokens of injected sections, by their names: those in the system prompt, and those behind it."""
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for done in work.done:
        edit = done.edit
        if done.step == SECTIONS and isinstance(edit, Insert):
            _, _, said = edit.reason.partition("section ")
            name = f"injected {said.partition(',')[0] or 'earlier'}"
            into = before if edit.place.area is Area.SYSTEM or edit.role == "system" else after
            into[name] = into.get(name, 0.0) - edit.saved_tokens
    return before, after


def _shared_out(sizes: Sequence[tuple[str, float]], total_tokens: int) -> tuple[WindowSection, ...]:
    """The parts in whole numbers that add up to the total."""
    whole = sum([size for _, size in sizes])
    if whole <= 0:
        return ()
    rate, reached, told = total_tokens / whole, 0.0, 0
    found: list[WindowSection] = []
    for name, size in sizes:
        reached += size * rate
        if tokens := round(reached) - told:
            told += tokens
            found.append(WindowSection(name, tokens))
    return tuple(found)
