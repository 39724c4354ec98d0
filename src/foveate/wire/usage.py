"""What a provider billed, whatever it calls its numbers (read November 2026).

Two families: those whose input number is only what no cache served (Anthropic, Bedrock Converse), and those
whose input number holds the cached tokens too (all others). A number that is null counts as missing. If any
other is not a possible number of tokens (negative, a string, half a token, more than any call has), the whole
usage is unreadable: it has no tokens and keeps its raw block, so that the call is recorded as one of unknown
cost.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from functools import reduce
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.values import CacheUsage, Format, Usage
from foveate.wire.body import Fields, as_list, as_record, as_text
from foveate.wire.replies import inner_fields, items, objects, record, value

_MOST_TOKENS = 2**53 - 1  # the largest whole number that every reader of JSON keeps
_MAX_CALL_TOKENS = 10**9  # hundreds of times the largest context window that is sold (November 2026)
_MAX_UNREADABLE_BYTES = 4096
_MOST_THOUGHT_TOKENS = 400_000  # no model that is sold writes more in one answer (November 2026)

# Calls within a Messages call that its totals leave out; they hold all others (`message`, `fallback_message`).
_LEFT_OUT = frozenset(("compaction", "advisor_message"))

_Numbers = Mapping[str, Any]
_Billed = tuple[CacheUsage, int, int]
"""The input tokens, those of the output, and of these the ones of reasoning."""


def reply_usage(spoken: Format, reply: bytes) -> Usage | None:
    """The usage in a whole reply body, or in one chunk of a streamed one; None where it says nothing of it."""
    try:
        for found in reversed(objects(reply)):  # a Gemini stream may be a list, and no events
            if usage := usage_in(spoken, found):
                return usage
    except MalformedRequest:
        return None
    return None


def usage_in(spoken: Format, reply: Fields) -> Usage | None:
    """The usage among the fields of a reply.

    Raises:
        MalformedRequest: the field that should hold it cannot be read.
    """
    timings = record(reply.get("timings"))
    tier = as_text(value(reply.get("service_tier")))  # OpenAI says it beside its numbers
    for block in _blocks(reply):
        usage = _read(spoken, block, timings, tier)
        if usage:
            return usage
    return None


def _unreadable(block: msgspec.Raw | bytes) -> Usage:
    return Usage(cache=CacheUsage(), raw=bytes(block)[:_MAX_UNREADABLE_BYTES], is_unreadable=True)


def block_usage(spoken: Format, block: bytes) -> Usage | None:
    """The usage that a provider's own block of numbers tells; None where it has no number that is known."""
    try:
        return _read(spoken, block, {})
    except MalformedRequest:
        return None


def _blocks(reply: Fields) -> Iterator[msgspec.Raw | bytes | None]:
    """Where usage may stand, the usual places first."""
    yield reply.get("usage")
    yield reply.get("usageMetadata")  # Gemini
    yield inner_fields(reply.get("x_groq")).get("usage")  # Groq, in a stream
    yield reply.get("meta")  # Cohere, beside a vector
    yield reply.get("timings")  # llama.cpp
    for choice in items(reply.get("choices")):  # Moonshot, in a stream
        yield inner_fields(choice).get("usage")
    yield inner_fields(reply.get("response")).get("usage")  # OpenAI, in the last event of a stream or of speech
    yield inner_fields(reply.get("result")).get("usage")  # Cloudflare


def _read(spoken: Format, block: msgspec.Raw | bytes | None, timings: _Numbers, tier: str = "") -> Usage | None:
    found = record(block)
    read = _dialect(spoken, found) if found else None
    if block is None or read is None:
        return None
    try:
        _check_fees(found)
        cache, output, reasoning = read({**found, "timings": timings} if timings else found)
    except _Unreadable:
        return _unreadable(block)
    return Usage(
        cache=cache,
        output_tokens=output,
        reasoning_tokens=reasoning,
        said_dollars=_dollars(found, block),
        tier=tier or _tier(found),
        raw=bytes(block),
    )


def _dialect(spoken: Format, found: _Numbers) -> Callable[[_Numbers], _Billed] | None:
    """How to read a block, told by its own names: hosts answer in other dialects than their route's.

    Only `input_tokens` is ambiguous: Anthropic and Responses share it, and mean different things.
    """
    for known, read in _DIALECTS:
        if not known.isdisjoint(found):
            return read
    if "input_tokens" in found or "output_tokens" in found:
        is_responses = spoken is Format.RESPONSES or not found.keys().isdisjoint(_INPUT_DETAILS)
        return _responses if is_responses else _anthropic
    return _chat if "total_tokens" in found else None


def _anthropic(found: _Numbers) -> _Billed:
    """`input_tokens` is what no cache served. What server-side compaction took stands in `iterations` alone."""
    calls = [found]
    if "iterations" in found:
        calls += [call for call in map(as_record, as_list(found["iterations"])) if is_left_out(call)]
    uncached = read = short = long = output = 0
    for call in calls:
        uncached += _count(call.get("input_tokens"))
        read += _count(call.get("cache_read_input_tokens"))
        written = _written(call.get("cache_creation_input_tokens"), call.get("cache_creation"))
        short, long = short + written[0], long + written[1]
        output += _count(call.get("output_tokens"))
    thinking = _count(as_record(found.get("output_tokens_details")).get("thinking_tokens"))
    cache = CacheUsage(uncached=uncached, read=read, written_5m=short, written_1h=long)
    return cache, output, min(thinking, output)


def is_left_out(call: _Numbers) -> bool:
    """Whether a call within a Messages call is not in its totals."""
    return as_text(call.get("type")) in _LEFT_OUT


def _bedrock(found: _Numbers) -> _Billed:
    """`inputTokens` is what no cache served; an older spelling of the cached ones ends in `Count`."""
    read = _most(found, "cacheReadInputTokens", "cacheReadInputTokenCount")
    details = [as_record(entry) for entry in as_list(found.get("cacheDetails"))]
    long = sum(_count(entry.get("inputTokens")) for entry in details if entry.get("ttl") == "1h")
    short = max(_most(found, "cacheWriteInputTokens", "cacheWriteInputTokenCount") - long, 0)
    output = _count(found.get("outputTokens"))
    rest = _count(found.get("totalTokens")) - output - read - short - long
    uncached = _whole(found.get("inputTokens"))
    uncached = max(rest, 0) if uncached is None else uncached
    cache = CacheUsage(uncached=uncached, read=read, written_5m=short, written_1h=long)
    return cache, output, 0


# DeepSeek; Moonshot and Hugging Face; LiteLLM; xAI. Not Mistral's `num_cached_tokens`, what its servers had at
# hand: it bills less only for those in the details (https://docs.mistral.ai, prompt caching, November 2026).
_READ = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens", "cached_prompt_text_tokens")


def _chat(found: _Numbers) -> _Billed:
    """`prompt_tokens` holds the cached ones, for which each host has a name of its own."""
    details = as_record(found.get("prompt_tokens_details")) or as_record(found.get("prompt_token_details"))
    read = max(
        _count(details.get("cached_tokens")),
        _count(as_record(found.get("timings")).get("cache_n")),  # llama.cpp
        _most(found, *_READ),
    )
    written = _written(
        max(  # OpenAI and OpenRouter; LiteLLM; Qwen
            _most(details, "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens"),
            _count(found.get("cache_creation_input_tokens")),
        ),
        _split(details),
    )
    spoken = as_record(found.get("completion_tokens_details")) or as_record(
        found.get("completion_token_details")
    )
    reasoning = _most(spoken, "reasoning_tokens") or _count(found.get("reasoning_tokens"))
    prompt, answer = _whole(found.get("prompt_tokens")), _whole(found.get("completion_tokens"))
    if prompt is None and "prompt_cache_miss_tokens" in found:
        prompt = read + _count(found.get("prompt_cache_miss_tokens"))
    if answer is not None and "citation_tokens" in found:  # Perplexity's research thinks beside its answer
        answer += reasoning
    return _inclusive(
        prompt,
        answer,
        total=_count(found.get("total_tokens")),
        read=read,
        written=written,
        reasoning=reasoning,
    )


_INPUT_DETAILS = ("input_tokens_details", "input_token_details")  # the second for speech


def _responses(found: _Numbers) -> _Billed:
    """As chat, with names of its own."""
    details = next((as_record(found[name]) for name in _INPUT_DETAILS if found.get(name)), {})
    return _inclusive(
        _whole(found.get("input_tokens")),
        _whole(found.get("output_tokens")),
        total=_count(found.get("total_tokens")),
        read=_most(details, "cached_tokens", "cache_read_input_tokens"),  # the second: Perplexity
        written=_written(details.get("cache_write_tokens"), _split(details)),
        reasoning=_count(as_record(found.get("output_tokens_details")).get("reasoning_tokens")),
    )


def _gemini(found: _Numbers) -> _Billed:
    """Thoughts stand beside the candidates, what tools brought in beside the prompt."""
    thoughts = _count(found.get("thoughtsTokenCount"))
    names = ("candidatesTokenCount", "responseTokenCount")  # the live API says response
    output = _most(found, *names) + thoughts
    total, read = _count(found.get("totalTokenCount")), _count(found.get("cachedContentTokenCount"))
    prompt = _whole(found.get("promptTokenCount"))
    if prompt is None:  # a prefix that is only stored has just a total
        input_tokens = max(total - output, read)
    else:
        input_tokens = prompt + _count(found.get("toolUsePromptTokenCount"))
        if all(_whole(found.get(name)) is None for name in names):
            output = max(total - input_tokens, thoughts)
    return _cache(input_tokens, read), output, thoughts


def _cohere(found: _Numbers) -> _Billed:
    """`tokens` is what the model read and wrote, `cached_tokens` a part of it; `billed_units` is less."""
    units = as_record(found.get("tokens")) or as_record(found.get("billed_units"))
    cache = _cache(_count(units.get("input_tokens")), _count(found.get("cached_tokens")))
    return cache, _count(units.get("output_tokens")), 0


def _llama(found: _Numbers) -> _Billed:
    """The timings of llama.cpp, where they come without usage; `prompt_n` is what its cache did not hold."""
    cache = CacheUsage(uncached=_count(found.get("prompt_n")), read=_count(found.get("cache_n")))
    return cache, _count(found.get("predicted_n")), 0


_DIALECTS: tuple[tuple[frozenset[str], Callable[[_Numbers], _Billed]], ...] = (
    (
        frozenset(("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount")),
        _gemini,
    ),
    (frozenset(("inputTokens", "outputTokens", "totalTokens")), _bedrock),
    (frozenset(("prompt_tokens", "completion_tokens", "prompt_cache_miss_tokens")), _chat),
    (frozenset(("tokens", "billed_units")), _cohere),
    (frozenset(("prompt_n", "predicted_n")), _llama),
)


def _inclusive(
    prompt: int | None, answer: int | None, *, total: int, read: int, written: tuple[int, int], reasoning: int
) -> _Billed:
    """Usage whose input number holds the cached tokens; where a number is missing, the total helps.

    xAI, and Gemini behind its OpenAI route, count reasoning in the total alone, and only the first says how
    much it was. What both numbers leave open is never more than a model can have thought.
    """
    if prompt is None:
        prompt = max(total - (answer or 0), read)
    if answer is None:
        apart, output = 0, max(total - prompt, 0)
    else:
        apart = max(min(total - prompt - answer, reasoning or _MOST_THOUGHT_TOKENS), 0)
        output = answer + apart
    return _cache(prompt, read, *written), output, min(max(reasoning, apart), output)


def _cache(input_tokens: int, read: int, short: int = 0, long: int = 0) -> CacheUsage:
    """`input_tokens`, of which some were read and some written: never more than there are.

    OpenRouter bills some prefixes of Gemini as read and as written at once; they are taken as read.
    """
    read = min(read, input_tokens)
    long = min(long, input_tokens - read)
    short = min(short, input_tokens - read - long)
    rest = input_tokens - read - long - short
    return CacheUsage(uncached=rest, read=read, written_5m=short, written_1h=long)


# What a split of the written tokens calls the provider's short time, and its long one.
_SHORT = ("ephemeral_5m_input_tokens", "ttl_30m_tokens")
_LONG = ("ephemeral_1h_input_tokens", "ttl_12h_tokens")


def _split(details: _Numbers) -> object:
    """What was written by how long it lives: OpenRouter; LiteLLM; OpenAI's Responses."""
    names = ("cache_creation", "cache_creation_token_details", "cache_write_tokens_details")
    return next((details[name] for name in names if details.get(name)), None)


def _written(total: object, by_ttl: object) -> tuple[int, int]:
    """What was written for the short time and for the long one; a mere sum is all for the short one."""
    if not by_ttl:
        return _count(total), 0
    split = as_record(by_ttl)
    short, long = _most(split, *_SHORT), _most(split, *_LONG)
    return max(short, _count(total) - long), long


def _most(found: _Numbers, *names: str) -> int:
    """The largest of several names for one number: a host may fill only one of them."""
    return max([_count(found[name]) for name in names if name in found], default=0)


class _Unreadable(Exception):
    """A number is not a possible number of tokens."""


def _check_fees(found: _Numbers) -> None:
    """Check what is billed beside tokens: searches and citations.

    Raises:
        _Unreadable: a number of them is not a possible one.
    """
    server = as_record(found.get("server_tool_use")) or as_record(found.get("server_tool_use_details"))
    for said in (
        server.get("web_search_requests"),
        found.get("num_search_queries"),
        found.get("citation_tokens"),
    ):
        _count(said)


def _count(said: object) -> int:
    """Return a number of tokens; 0 if it is missing.

    Raises:
        _Unreadable: it is not a possible one.
    """
    return _whole(said) or 0


def _whole(said: object) -> int | None:
    """Return a number of tokens; None if it is missing.

    Raises:
        _Unreadable: it is not a possible one.
    """
    if said is None:
        return None
    found = _number(said)
    if found is None or found > _MAX_CALL_TOKENS:
        raise _Unreadable
    return found


def is_token_count(said: object) -> bool:
    """Whether it is a possible number of tokens of one call."""
    found = _number(said)
    return found is not None and found <= _MAX_CALL_TOKENS


def tokens(said: object) -> int:
    """A number of tokens; 0 where `said` cannot be one."""
    return (_number(said) or 0) if said else 0


def _number(said: object) -> int | None:
    """Return a whole number; None if `said` is not one, or less than nothing."""
    if isinstance(said, float) and said.is_integer():  # some hosts write every number with a point
        said = int(said)
    return said if type(said) is int and 0 <= said <= _MOST_TOKENS else None


def _tier(found: _Numbers) -> str:
    """How a call was served: Anthropic's fast mode; Anthropic and Groq; Gemini; Vertex."""
    if found.get("speed") == "fast":
        return "fast"
    tier = as_text(found.get("service_tier")) or as_text(found.get("serviceTier"))
    return tier or as_text(found.get("trafficType"))


_EXACT = Context(prec=200)
_NUMBER = re.compile(rb"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,9})?")
_MOST_DIGITS = 40  # what has more is no money, and sums of it would take for ever
_TICK = Decimal("1e-10")  # of a dollar: https://docs.x.ai/developers/cost-tracking, November 2026


def _dollars(found: _Numbers, block: msgspec.Raw | bytes) -> Decimal | None:
    """What a provider itself says a call cost: OpenRouter, Perplexity, xAI (in ticks), as it is written.

    With a key of one's own at OpenRouter it is its fee and the provider's price together.
    """
    ticks = _number(found.get("cost_in_usd_ticks"))
    if ticks is not None:
        return ticks * _TICK
    if "cost" not in found:
        return None
    numbers = inner_fields(block)
    is_split = isinstance(found["cost"], dict)
    costs = [_amount(inner_fields(numbers["cost"]).get("total_cost") if is_split else numbers["cost"])]
    if found.get("is_byok") is True:
        costs.append(_amount(inner_fields(numbers.get("cost_details")).get("upstream_inference_cost")))
    known = [cost for cost in costs if cost is not None]
    return reduce(_EXACT.add, known) if len(known) == len(costs) else None


def _amount(raw: msgspec.Raw | bytes | None) -> Decimal | None:
    """A number of dollars to the last digit that is written; None where it cannot be one."""
    text = b"" if raw is None else bytes(raw).strip()
    if len(text) > _MOST_DIGITS or not _NUMBER.fullmatch(text):
        return None
    amount = Decimal(text.decode())
    return amount if abs(amount.adjusted()) <= _MOST_DIGITS else None
