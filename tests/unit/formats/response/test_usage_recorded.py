"""Usage read from recorded responses agrees with their own totals."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foveate.formats.response.usage import parse_usage, read_response_usage
from foveate.model import Format

FORMATS = {
    "anthropic": Format.ANTHROPIC,
    "openai-responses": Format.RESPONSES,
    "google": Format.GEMINI,
    "bedrock": Format.BEDROCK,
}


def sum_tokens(raw_usage: dict[str, Any]) -> tuple[int, int] | None:
    """Return input and output tokens of recorded usage."""
    if "iterations" in raw_usage:
        return sum(map(_sum_input_tokens, raw_usage["iterations"])), sum(
            call["output_tokens"] for call in raw_usage["iterations"]
        )
    for prompt, total in (("prompt_tokens", "total_tokens"), ("promptTokenCount", "totalTokenCount")):
        if prompt in raw_usage:
            input_tokens = raw_usage[prompt] + raw_usage.get("toolUsePromptTokenCount", 0)
            return input_tokens, raw_usage.get(total, input_tokens) - input_tokens
    if "input_tokens" in raw_usage:
        return _sum_input_tokens(raw_usage), raw_usage["output_tokens"]
    if "inputTokens" in raw_usage:
        output = raw_usage.get("outputTokens", 0)
        return raw_usage.get("totalTokens", raw_usage["inputTokens"]) - output, output
    if "tokens" in raw_usage:
        return raw_usage["tokens"]["input_tokens"], raw_usage["tokens"]["output_tokens"]
    total_tokens = raw_usage.get("total_tokens", raw_usage.get("totalTokenCount"))
    return None if total_tokens is None else (total_tokens, 0)


def _sum_input_tokens(call: dict[str, Any]) -> int:
    cached = call.get("cache_read_input_tokens", 0) + call.get("cache_creation_input_tokens", 0)
    return int(call["input_tokens"] + cached)


# The only recorded usage that is inconsistent: 87 + 21 + 78 tokens, and a total of 165.
INCONSISTENT_USAGE = {"promptTokenCount": 87, "candidatesTokenCount": 21, "thoughtsTokenCount": 78}


def test_the_usage_of_every_recorded_call_adds_up_to_its_own_totals(
    shared_data: Path, record_property: Callable[[str, object], None]
) -> None:
    calls_by_provider: Counter[str] = Counter()
    without_usage: Counter[str] = Counter()
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        raw_usage = row["usage"]
        api_format = FORMATS.get(row["provider"], Format.CHAT)
        usage = parse_usage(api_format, json.dumps(raw_usage).encode())
        expected = sum_tokens(raw_usage)
        if usage is None:
            without_usage[json.dumps(raw_usage)] += expected is None
            continue
        if raw_usage.items() >= INCONSISTENT_USAGE.items():
            expected = (87, 21 + 78)
        assert (usage.cache.input_tokens, usage.output_tokens) == expected, row
        assert usage.raw == json.dumps(raw_usage).encode()
        calls_by_provider[row["provider"]] += 1
        reply = json.dumps({"usageMetadata" if api_format is Format.GEMINI else "usage": raw_usage, "id": "x"})
        assert read_response_usage(api_format, reply.encode()) == usage

    record_property("rows by provider", dict(calls_by_provider.most_common()))
    assert without_usage == {'{"trafficType": "ON_DEMAND"}': 1, '{"readUnits": 6}': 1}
    assert calls_by_provider.total() == len(rows) - 2 > 1_700


def test_the_cached_tokens_of_every_recorded_call_are_read(shared_data: Path) -> None:
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    providers_with_reads: Counter[str] = Counter()
    for row in rows:
        usage = parse_usage(FORMATS.get(row["provider"], Format.CHAT), json.dumps(row["usage"]).encode())
        text = json.dumps(row["usage"])
        expected = max(
            [0, *(number for name, number in _iterate_numbers(row["usage"]) if _is_cache_read_field(name))]
        )
        if usage is not None and expected:
            providers_with_reads[row["provider"]] += 1
            assert usage.cache.read == expected, text
    assert len(providers_with_reads) >= 7


def _is_cache_read_field(name: str) -> bool:
    lowered = name.lower()
    if lowered == "num_cached_tokens":  # tokens in Mistral's cache that it does not charge as cache reads
        return False
    return "cached" in lowered or "cacheread" in lowered or "cache_read" in lowered or "cache_hit" in lowered


def _iterate_numbers(value: Any, name: str = "") -> list[tuple[str, int]]:
    if isinstance(value, dict):
        return [pair for key, child in value.items() for pair in _iterate_numbers(child, key)]
    if isinstance(value, list):
        return [pair for child in value for pair in _iterate_numbers(child, name)]
    return [(name, value)] if type(value) is int else []


def test_every_recorded_usage_is_read_as_it_was_priced(shared_data: Path) -> None:
    with gzip.open(shared_data / "priced_usages.json.gz") as file:
        rows = json.load(file)
    differing = 0
    for row in rows:
        usage = read_response_usage(Format.CHAT, json.dumps(row["body"]).encode())
        assert usage is not None, row
        written_tokens = usage.cache.written_5m + usage.cache.written_1h
        priced_usages = [Counter(entry["usage"]) for entry in row["extracted"]]
        plausible = [
            priced_usage
            for priced_usage in priced_usages  # some hosts' cached tokens are not priced as such
            if usage.cache.read >= priced_usage["cache_read_tokens"]
            and written_tokens >= priced_usage["cache_write_tokens"]
        ]
        read_tokens = (usage.cache.input_tokens, usage.output_tokens)
        priced_tokens = [
            (priced_usage["input_tokens"], priced_usage["output_tokens"]) for priced_usage in plausible
        ]
        if read_tokens not in priced_tokens:
            differing += 1
            assert _has_unpriced_tokens(row["body"]["usage"]), row
            assert any(read_tokens >= pair for pair in priced_tokens), row
    assert differing < 0.01 * len(rows)


def _has_unpriced_tokens(numbers: dict[str, Any]) -> bool:
    """Return whether reasoning is only in the total, or calls are only in the iterations."""
    parts = numbers.get("prompt_tokens", 0) + numbers.get("completion_tokens", 0)
    return "iterations" in numbers or 0 < parts < numbers["total_tokens"]
