"""Our prices of recorded calls equal those of other tools, or differ for a known reason."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cost_accuracy import EQUAL, UNEXPLAINED, USAGES, run
from benchmarks.harness import BadData, Report


def count_by_reason(report: Report) -> dict[str, object]:
    return {str(row["reason"]): row["prices"] for row in report.rows}


@pytest.mark.slow
def test_every_recorded_price_equals_ours_or_has_an_explanation(shared_data: Path) -> None:
    figures = run(shared_data).figures

    assert (figures["unexplained"], figures["log_unexplained"]) == (0, 0)
    assert figures["equal_share"] > 0.86
    assert figures["log_equal_share"] == 1


USAGE = {
    "body": {
        "file": "a.yaml",
        "model": "claude-opus-5-5",
        "usage": {"input_tokens": 1_000, "output_tokens": 100, "cache_read_input_tokens": 10_000},
    },
    "model": "claude-opus-5-5",
}


def write_usages(folder: Path, *, input_price: str, output_price: str, counts: dict[str, int]) -> Path:
    extractor = {"provider_id": "anthropic", "api_flavor": "default", "input_price": input_price}
    entry: dict[str, Any] = {"usage": counts, "extractors": [{**extractor, "output_price": output_price}]}
    path = folder / USAGES
    path.write_bytes(gzip.compress(json.dumps([{**USAGE, "extracted": [entry]}]).encode()))
    return path


def test_a_price_difference_is_explained_only_by_a_matching_reason(tmp_path: Path) -> None:
    all_counts = {"input_tokens": 11_000, "cache_read_tokens": 10_000, "output_tokens": 100}
    without_cache = {"input_tokens": 1_000, "output_tokens": 100}

    def reason(input_price: str, counts: dict[str, int]) -> dict[str, object]:
        return count_by_reason(
            run(write_usages(tmp_path, input_price=input_price, output_price="0.002", counts=counts))
        )

    assert reason("0.006", all_counts) == {EQUAL: 1}
    assert reason("0.004", without_cache) == {"theirs leaves out what the cache served": 1}
    assert reason("0.0061", all_counts) == {"the tables have changed since theirs was made": 1}
    assert reason("0.010", {**all_counts, "input_tokens": 12_000}) == {UNEXPLAINED: 1}


def test_unexplained_differences_in_a_log_are_reported(tmp_path: Path) -> None:
    def run_on_log(dollars: float, tokens: int) -> dict[str, object]:
        usage = {"input": tokens, "output": 0, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": dollars}}
        message = {"model": "claude-sonnet-4-5", "provider": "anthropic", "timestamp": 1.763e12, "usage": usage}
        path = tmp_path / "log.jsonl"
        path.write_text(json.dumps({"type": "message", "message": message}) + "\n", encoding="utf-8")
        return count_by_reason(run(path))

    assert run_on_log(0.003, 1_000) == {EQUAL: 1}
    assert run_on_log(0.9, 300_000) == {"theirs leaves out what a long input costs more": 1}
    assert run_on_log(0.0031, 1_000) == {UNEXPLAINED: 1}


@pytest.mark.parametrize("content", [b"", b"{}", b"[3]", b'[{"body": {}}]', b"\xff"])
def test_unreadable_data_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "usages.json"
    path.write_bytes(content)

    with pytest.raises(BadData, match=r"usages\.json"):
        run(path)
    with pytest.raises(BadData, match="no priced usages"):
        run(tmp_path / "nothing")
