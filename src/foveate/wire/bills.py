"""What a bill says beside its tokens: pictures and sound among them, searches, and calls of other models.

A usage adds up all tokens of a call; what they cost needs to know a little more, and finds it in the block of
numbers that came (read November 2026).
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from foveate.errors import MalformedRequest
from foveate.values import CacheUsage, Format, Usage
from foveate.wire.body import as_list, as_record, as_text, compact
from foveate.wire.replies import record
from foveate.wire.usage import block_usage, is_left_out, tokens

_Numbers = Mapping[str, Any]


class Unit(StrEnum):
    """What can have a price of its own beside the kinds of tokens.

    Sound, pictures and video are tokens that a usage holds, as uncached, read or output; the others are not.
    """

    INPUT_AUDIO = "input_audio"
    INPUT_IMAGE = "input_image"
    INPUT_VIDEO = "input_video"
    READ_AUDIO = "read_audio"
    READ_IMAGE = "read_image"
    READ_VIDEO = "read_video"
    OUTPUT_AUDIO = "output_audio"
    OUTPUT_IMAGE = "output_image"
    OUTPUT_VIDEO = "output_video"
    CITATIONS = "citations"  # tokens
    WEB_SEARCHES = "web_searches"
    SEARCH_QUERIES = "search_queries"  # Perplexity bills them for some models, and names them for all
    RERANKS = "reranks"
    REQUESTS = "requests"


class BilledCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has a price by itself; `model` is the one that it went to, where the bill names it.

    `units` come in one order whatever the bill's; `region` is the provider's word for where it was served.
    """

    usage: Usage
    model: str = ""
    units: tuple[tuple[Unit, int], ...] = ()
    region: str = ""


def billed_calls(usage: Usage) -> tuple[BilledCall, ...]:
    """The calls that a usage is the bill of: mostly one.

    Anthropic's server calls models while it answers, each at its own price; together they are all of the usage.
    """
    found = _numbers(usage.raw)
    if _BESIDE.isdisjoint(found):
        return (BilledCall(usage=usage),)
    region = as_text(found.get(_REGION))
    apart = tuple(_apart(found, usage.tier, region)) if "iterations" in found and _is_anthropic(usage) else ()
    rest = _less(usage, apart) if apart else usage
    billed = as_record(found.get("billed_units"))  # Cohere: what it bills is less than what its model read
    if billed:
        cache = CacheUsage(uncached=tokens(billed.get("input_tokens")))
        rest = replace(rest, cache=cache, output_tokens=tokens(billed.get("output_tokens")), reasoning_tokens=0)
    return (BilledCall(usage=rest, units=_units(found, billed, rest), region=region), *apart)


def _numbers(raw: bytes) -> _Numbers:
    try:
        return record(raw) if raw else {}
    except MalformedRequest:
        return {}


def _is_anthropic(usage: Usage) -> bool:
    """Whether a usage was read as Anthropic's, and so holds the calls within it."""
    read = block_usage(Format.ANTHROPIC, usage.raw)
    return read is not None and read.cache == usage.cache


def _apart(found: _Numbers, tier: str, region: str) -> Iterator[BilledCall]:
    """The calls within a Messages call that its totals leave out, or that went to another model."""
    for call in map(as_record, as_list(found.get("iterations"))):
        model = as_text(call.get("model"))
        if model or is_left_out(call):
            usage = block_usage(Format.ANTHROPIC, compact({**call, "iterations": None}))
            if usage:
                yield BilledCall(usage=replace(usage, tier=usage.tier or tier), model=model, region=region)


def _less(usage: Usage, apart: tuple[BilledCall, ...]) -> Usage:
    """What is left of a usage without some of its calls."""

    def left(whole: int, *parts: int) -> int:
        return max(whole - sum(parts), 0)

    caches = [call.usage.cache for call in apart]
    cache = CacheUsage(
        uncached=left(usage.cache.uncached, *(part.uncached for part in caches)),
        read=left(usage.cache.read, *(part.read for part in caches)),
        written_5m=left(usage.cache.written_5m, *(part.written_5m for part in caches)),
        written_1h=left(usage.cache.written_1h, *(part.written_1h for part in caches)),
    )
    output = left(usage.output_tokens, *(call.usage.output_tokens for call in apart))
    reasoning = left(usage.reasoning_tokens, *(call.usage.reasoning_tokens for call in apart))
    return replace(usage, cache=cache, output_tokens=output, reasoning_tokens=min(reasoning, output))


_REGION = "inference_geo"
_IN = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUT = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_MEDIA = ("audio", "image", "video")
_GEMINI_IN = ("promptTokensDetails", "toolUsePromptTokensDetails")
_GEMINI_OUT = ("candidatesTokensDetails", "responseTokensDetails")
# Where other units are told, and the rest of what is looked at here.
_OF_UNITS = frozenset(
    (
        *_IN,
        *_OUT,
        *_GEMINI_IN,
        *_GEMINI_OUT,
        "server_tool_use",
        "server_tool_use_details",
        "tool_calls_details",
        "num_search_queries",
        "citation_tokens",
        "billed_units",
    )
)
_BESIDE = _OF_UNITS | {_REGION, "iterations"}


def _units(found: _Numbers, billed: _Numbers, usage: Usage) -> tuple[tuple[Unit, int], ...]:
    if _OF_UNITS.isdisjoint(found):
        return ()
    counts = _media(found, usage)
    server = as_record(found.get("server_tool_use")) or as_record(found.get("server_tool_use_details"))
    tools = as_record(as_record(found.get("tool_calls_details")).get("search_web"))  # Perplexity, in Responses
    counts[Unit.WEB_SEARCHES] = max(tokens(server.get("web_search_requests")), tokens(tools.get("invocation")))
    counts[Unit.SEARCH_QUERIES] = tokens(found.get("num_search_queries"))
    counts[Unit.CITATIONS] = tokens(found.get("citation_tokens"))
    counts[Unit.RERANKS] = tokens(billed.get("search_units"))
    return tuple((unit, counts[unit]) for unit in Unit if counts.get(unit)) if any(counts.values()) else ()


def _media(found: _Numbers, usage: Usage) -> dict[Unit, int]:
    """The tokens of each medium, never more than the usage has of their kind.

    Where the bill does not say which of them the cache served, it is taken to have served text first.
    """
    entered, read, written = _by_medium(found)
    counts: dict[Unit, int] = {}
    if not entered and not written:
        return counts
    cache = usage.cache
    uncached_left, read_left, output_left = cache.uncached, cache.read, usage.output_tokens
    for medium in _MEDIA:
        if medium in entered:
            whole = min(entered[medium], uncached_left + read_left)
            cached = min(read.get(medium, max(whole - uncached_left, 0)), read_left, whole)
            fresh = min(whole - cached, uncached_left)
            uncached_left, read_left = uncached_left - fresh, read_left - cached
            counts[Unit(f"input_{medium}")] = fresh
            counts[Unit(f"read_{medium}")] = cached
        if medium in written:
            counts[Unit(f"output_{medium}")] = min(written[medium], output_left)
            output_left -= counts[Unit(f"output_{medium}")]
    return counts


def _by_medium(found: _Numbers) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """The tokens of each medium that came in, that of them the cache served, and that came out."""
    if "promptTokensDetails" in found or "candidatesTokensDetails" in found:
        entered, read = _gemini_media(found, *_GEMINI_IN), _gemini_media(found, "cacheTokensDetails")
        return entered, read, _gemini_media(found, *_GEMINI_OUT)
    details = next((as_record(found[name]) for name in _IN if found.get(name)), {})
    spoken = next((as_record(found[name]) for name in _OUT if found.get(name)), {})
    return _openai_media(details), _openai_media(details.get("cached_tokens_details")), _openai_media(spoken)


def _openai_media(details: object) -> dict[str, int]:
    found = as_record(details)
    return (
        {medium: count for medium in _MEDIA if (count := tokens(found.get(f"{medium}_tokens")))}
        if found
        else {}
    )


def _gemini_media(found: _Numbers, *names: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in (as_record(entry) for name in names for entry in as_list(found.get(name))):
        medium = as_text(entry.get("modality")).lower()
        medium = "image" if medium == "document" else medium  # a page is read as a picture, and billed as one
        count = tokens(entry.get("tokenCount"))
        if medium in _MEDIA and count:
            counts[medium] = counts.get(medium, 0) + count
    return counts
