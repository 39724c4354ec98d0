"""The recorded cost of a whole run tells the size of its unrecorded tools, and is checked."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import Ttl
from foveate.replay.policies import Policy
from foveate.replay.recording import MissingPart, Recording
from foveate.replay.recording_files import read_recordings
from foveate.replay.run import ReplayOptions, infer_hidden_tokens, replay_recording

BOOK = PriceBook()
OPTIONS = ReplayOptions(policies=(Policy.RECORDED,))
WORDS = "the words of an observation, and some more of them " * 150


def run_of(folder: Path, model: str, dollars: float, *, calls: int = 5, **config: Any) -> Recording:
    history: list[dict[str, Any]] = [
        {"role": "system", "content": WORDS, "agent": "main"},
        {"role": "user", "content": "fix it", "agent": "main"},
    ]
    for number in range(calls):
        asked = [{"id": f"c{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]
        history += [
            {"role": "assistant", "content": f"step {number}", "tool_calls": asked, "agent": "main"},
            {"role": "tool", "content": WORDS, "tool_call_ids": [f"c{number}"], "agent": "main"},
        ]
    document = {
        "history": history,
        "info": {"model_stats": {"instance_cost": dollars, "api_calls": calls}},
        "replay_config": {"agent": {"model": {"name": model}, **config}} if model else {},
    }
    (folder / "x.traj").write_text(json.dumps(document))
    (one,) = read_recordings(folder / "x.traj", model=None if model else "gpt-4o")
    return one


MARKED: dict[str, Any] = {"history_processors": [{"type": "cache_control", "last_n_messages": 2}]}


@pytest.mark.parametrize(("model", "config"), [("gpt-4o", {}), ("claude-sonnet-4-5", MARKED)])
@pytest.mark.parametrize("tools", [700, 9_000])
def test_the_hidden_tokens_of_a_run_explain_its_recorded_cost(
    tmp_path: Path, model: str, config: dict[str, Any], tools: int
) -> None:
    bare = replace(run_of(tmp_path, model, 0.0, **config), hidden_tokens=tools)
    dollars = replay_recording(bare, BOOK, OPTIONS).outcomes[Policy.RECORDED].dollars
    assert dollars is not None

    found = infer_hidden_tokens(run_of(tmp_path, model, float(dollars), **config), BOOK)
    check = replay_recording(found, BOOK, OPTIONS).check

    assert found.hidden_tokens == pytest.approx(tools, rel=0.1)
    assert check.logged == Decimal(repr(float(dollars)))
    assert check.off == pytest.approx(0, abs=0.01)


def test_a_cost_that_the_messages_explain_hides_nothing_and_is_still_checked(tmp_path: Path) -> None:
    one = run_of(tmp_path, "gpt-4o", 0.001)

    assert infer_hidden_tokens(one, BOOK) is one
    assert (replay_recording(one, BOOK, OPTIONS).check.off or 0) > 1


@pytest.mark.parametrize("dollars", [1e-9, 1e9])
def test_any_recorded_cost_lets_a_run_be_replayed(tmp_path: Path, dollars: float) -> None:
    one = run_of(tmp_path, "gpt-4o", dollars, calls=1)

    assert replay_recording(one, BOOK, OPTIONS).calls == 1


def test_a_run_whose_calls_are_all_in_another_file_has_no_check(tmp_path: Path) -> None:
    check = replay_recording(replace(run_of(tmp_path, "gpt-4o", 0.5), calls=()), BOOK, OPTIONS).check

    assert (check.calls, check.off) == (0, None)


def test_the_cost_of_a_run_of_unknown_model_is_shown_but_not_checked(tmp_path: Path) -> None:
    one = run_of(tmp_path, "", 0.5)
    check = replay_recording(one, BOOK, OPTIONS).check

    assert MissingPart.MODEL in one.missing
    assert infer_hidden_tokens(one, BOOK) is one
    assert (check.said, check.off) == (Decimal("0.5"), None)


def test_a_run_with_cache_control_has_breakpoints(tmp_path: Path) -> None:
    assert {call.breakpoint_ttl for call in run_of(tmp_path, "claude-sonnet-4-5", 0.0, **MARKED).calls} == {
        Ttl.FIVE_MINUTES
    }
    assert {call.breakpoint_ttl for call in run_of(tmp_path, "claude-sonnet-4-5", 0.0).calls} == {None}
