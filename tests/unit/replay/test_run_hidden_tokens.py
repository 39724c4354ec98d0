"""The size of unrecorded tools is inferred from the recorded cost of a run, which is also checked."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import Ttl
from foveate.replay.outcomes import Policy
from foveate.replay.recording import MissingPart, Recording
from foveate.replay.recording_files import read_recordings
from foveate.replay.run import ReplayOptions, infer_hidden_tokens, replay_recording

BOOK = PriceBook()
OPTIONS = ReplayOptions(policies=(Policy.RECORDED,))
WORDS = "the words of an observation, and some more of them " * 150


def read_run(folder: Path, model: str, dollars: float, *, calls: int = 5, **config: Any) -> Recording:
    history: list[dict[str, Any]] = [
        {"role": "system", "content": WORDS, "agent": "main"},
        {"role": "user", "content": "fix it", "agent": "main"},
    ]
    for number in range(calls):
        tool_calls = [{"id": f"c{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]
        history += [
            {"role": "assistant", "content": f"step {number}", "tool_calls": tool_calls, "agent": "main"},
            {"role": "tool", "content": WORDS, "tool_call_ids": [f"c{number}"], "agent": "main"},
        ]
    document = {
        "history": history,
        "info": {"model_stats": {"instance_cost": dollars, "api_calls": calls}},
        "replay_config": {"agent": {"model": {"name": model}, **config}} if model else {},
    }
    (folder / "x.traj").write_text(json.dumps(document))
    (recording,) = read_recordings(folder / "x.traj", model=None if model else "gpt-4o")
    return recording


WITH_CACHE_CONTROL: dict[str, Any] = {"history_processors": [{"type": "cache_control", "last_n_messages": 2}]}


@pytest.mark.parametrize(("model", "config"), [("gpt-4o", {}), ("claude-sonnet-4-5", WITH_CACHE_CONTROL)])
@pytest.mark.parametrize("tool_tokens", [700, 9_000])
def test_the_hidden_tokens_of_a_run_explain_its_recorded_cost(
    tmp_path: Path, model: str, config: dict[str, Any], tool_tokens: int
) -> None:
    run = replace(read_run(tmp_path, model, 0.0, **config), hidden_tokens=tool_tokens)
    dollars = replay_recording(run, BOOK, OPTIONS).outcomes[Policy.RECORDED].dollars
    assert dollars is not None

    inferred = infer_hidden_tokens(read_run(tmp_path, model, float(dollars), **config), BOOK)
    check = replay_recording(inferred, BOOK, OPTIONS).check

    assert inferred.hidden_tokens == pytest.approx(tool_tokens, rel=0.1)
    assert check.logged == Decimal(repr(float(dollars)))
    assert check.relative_error == pytest.approx(0, abs=0.01)


def test_a_cost_explained_by_the_messages_gives_no_hidden_tokens_and_is_still_checked(tmp_path: Path) -> None:
    recording = read_run(tmp_path, "gpt-4o", 0.001)

    assert infer_hidden_tokens(recording, BOOK) is recording
    assert (replay_recording(recording, BOOK, OPTIONS).check.relative_error or 0) > 1


@pytest.mark.parametrize("dollars", [1e-9, 1e9])
def test_any_recorded_cost_lets_a_run_be_replayed(tmp_path: Path, dollars: float) -> None:
    recording = read_run(tmp_path, "gpt-4o", dollars, calls=1)

    assert replay_recording(recording, BOOK, OPTIONS).calls == 1


def test_a_run_whose_calls_are_all_in_another_file_has_no_check(tmp_path: Path) -> None:
    check = replay_recording(replace(read_run(tmp_path, "gpt-4o", 0.5), calls=()), BOOK, OPTIONS).check

    assert (check.calls, check.relative_error) == (0, None)


def test_the_cost_of_a_run_of_unknown_model_is_shown_but_not_checked(tmp_path: Path) -> None:
    recording = read_run(tmp_path, "", 0.5)
    check = replay_recording(recording, BOOK, OPTIONS).check

    assert MissingPart.MODEL in recording.missing
    assert infer_hidden_tokens(recording, BOOK) is recording
    assert (check.reported, check.relative_error) == (Decimal("0.5"), None)


def test_a_run_with_cache_control_has_breakpoints(tmp_path: Path) -> None:
    assert {
        call.breakpoint_ttl for call in read_run(tmp_path, "claude-sonnet-4-5", 0.0, **WITH_CACHE_CONTROL).calls
    } == {Ttl.FIVE_MINUTES}
    assert {call.breakpoint_ttl for call in read_run(tmp_path, "claude-sonnet-4-5", 0.0).calls} == {None}
