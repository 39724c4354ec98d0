"""Result files of tau-bench: every response of the agent is a call."""

import json
from pathlib import Path

from foveate.replay.recording import MissingPart, RecordingSource
from foveate.replay.recording_files import read_recordings
from tests.support.scenarios.agent_logs import TAU_BENCH

NAME = "tool-calling-gpt-4o-0.0_range_0-2_user-gpt-4o-llm_0517120000.json"


def test_every_run_is_a_recording_and_the_file_name_contains_the_model(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(json.dumps(TAU_BENCH, indent=2))
    first, second = read_recordings(path)

    assert first.source is RecordingSource.TAU_BENCH
    assert [call.model for call in first.calls] == ["gpt-4o"]
    assert first.missing == {MissingPart.TOOLS, MissingPart.TIME, MissingPart.USAGE}
    assert [message.role for message in first.calls[0].last_message.history()] == ["system", "user"]
    assert first.name != second.name


def test_under_another_name_the_model_must_be_given(tmp_path: Path) -> None:
    path = tmp_path / "airline.json"
    path.write_text(json.dumps(TAU_BENCH))
    (first, _), (with_model, _) = read_recordings(path), read_recordings(path, model="gpt-4.1")

    assert MissingPart.MODEL in first.missing
    assert with_model.calls[0].model == "gpt-4.1"


def test_a_run_that_failed_has_no_calls(tmp_path: Path) -> None:
    failed_run = {"task_id": 5, "reward": 0.0, "info": {"error": "x"}, "traj": [], "trial": 0}
    path = tmp_path / NAME
    path.write_text(json.dumps([failed_run, *TAU_BENCH]))

    assert len(list(read_recordings(path))) == 2
