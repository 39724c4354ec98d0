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


def totals(numbers: dict[str, Any]) -> tuple[int, int] | None:
    """Input and output tokens of recorded usage, added up plainly."""
    if "iterations" in numbers:
        return sum(map(_of_messages, numbers["iterations"])), sum(
            call["output_tokens"] for call in numbers["iterations"]
        )
    for prompt, total in (("prompt_tokens", "total_tokens"), ("promptTokenCount", "totalTokenCount")):
        if prompt in numbers:
            given = numbers[prompt] + numbers.get("toolUsePromptTokenCount", 0)
            return given, numbers.get(total, given) - given
    if "input_tokens" in numbers:
        return _of_messages(numbers), numbers["output_tokens"]
    if "inputTokens" in numbers:
        output = numbers.get("outputTokens", 0)
        return numbers.get("totalTokens", numbers["inputTokens"]) - output, output
    if "tokens" in numbers:
        return numbers["tokens"]["input_tokens"], numbers["tokens"]["output_tokens"]
    alone = numbers.get("total_tokens", numbers.get("totalTokenCount"))
    return None if alone is None else (alone, 0)


def _of_messages(call: dict[str, Any]) -> int:
    cached = call.get("cache_read_input_tokens", 0) + call.get("cache_creation_input_tokens", 0)
    return int(call["input_tokens"] + cached)


# The one recorded bill that contradicts itself: 87 + 21 + 78 tokens, and a total of 165.
CONTRADICTORY = {"promptTokenCount": 87, "candidatesTokenCount": 21, "thoughtsTokenCount": 78}


def test_the_usage_of_every_recorded_call_adds_up_to_its_own_totals(
    shared_data: Path, record_property: Callable[[str, object], None]
) -> None:
    counted: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        numbers = row["usage"]
        api_format = FORMATS.get(row["provider"], Format.CHAT)
        usage = parse_usage(api_format, json.dumps(numbers).encode())
        expected = totals(numbers)
        if usage is None:
            silent[json.dumps(numbers)] += expected is None
            continue
        if numbers.items() >= CONTRADICTORY.items():
            expected = (87, 21 + 78)
        assert (usage.cache.input_tokens, usage.output_tokens) == expected, row
        assert usage.raw == json.dumps(numbers).encode()
        counted[row["provider"]] += 1
        reply = json.dumps({"usageMetadata" if api_format is Format.GEMINI else "usage": numbers, "id": "x"})
        assert read_response_usage(api_format, reply.encode()) == usage

    record_property("rows by provider", dict(counted.most_common()))
    assert silent == {'{"trafficType": "ON_DEMAND"}': 1, '{"readUnits": 6}': 1}
    assert counted.total() == len(rows) - 2 > 1_700


def test_the_cached_tokens_of_every_recorded_call_are_read(shared_data: Path) -> None:
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    reads: Counter[str] = Counter()
    for row in rows:
        usage = parse_usage(FORMATS.get(row["provider"], Format.CHAT), json.dumps(row["usage"]).encode())
        text = json.dumps(row["usage"])
        said = max([0, *(number for name, number in _numbers(row["usage"]) if _is_read(name))])
        if usage is not None and said:
            reads[row["provider"]] += 1
            assert usage.cache.read == said, text
    assert len(reads) >= 7


def _is_read(name: str) -> bool:
    lowered = name.lower()
    if lowered == "num_cached_tokens":  # what Mistral's servers had at hand, which it does not bill as read
        return False
    return "cached" in lowered or "cacheread" in lowered or "cache_read" in lowered or "cache_hit" in lowered


def _numbers(found: Any, name: str = "") -> list[tuple[str, int]]:
    if isinstance(found, dict):
        return [pair for key, inner in found.items() for pair in _numbers(inner, key)]
    if isinstance(found, list):
        return [pair for inner in found for pair in _numbers(inner, name)]
    return [(name, found)] if type(found) is int else []


def test_every_priced_usage_is_read_as_it_was_priced(shared_data: Path) -> None:
    with gzip.open(shared_data / "priced_usages.json.gz") as file:
        rows = json.load(file)
    partly_priced = 0
    for row in rows:
        usage = read_response_usage(Format.CHAT, json.dumps(row["body"]).encode())
        assert usage is not None, row
        written = usage.cache.written_5m + usage.cache.written_1h
        readings = [Counter(entry["usage"]) for entry in row["extracted"]]
        likely = [
            reading
            for reading in readings  # some hosts' cached tokens are not priced as such
            if usage.cache.read >= reading["cache_read_tokens"] and written >= reading["cache_write_tokens"]
        ]
        ours = (usage.cache.input_tokens, usage.output_tokens)
        priced = [(reading["input_tokens"], reading["output_tokens"]) for reading in likely]
        if ours not in priced:
            partly_priced += 1
            assert _is_left_out_of_prices(row["body"]["usage"]), row
            assert any(ours >= pair for pair in priced), row
    assert partly_priced < 0.01 * len(rows)


def _is_left_out_of_prices(numbers: dict[str, Any]) -> bool:
    """Reasoning that only the total includes, and calls that only the iterations include."""
    parts = numbers.get("prompt_tokens", 0) + numbers.get("completion_tokens", 0)
    return "iterations" in numbers or 0 < parts < numbers["total_tokens"]
