"""SWE-agent trajectories: each response follows from the history before it; demonstrations are not calls."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from foveate.model import CacheUsage, Format
from foveate.replay.recording import MissingPart, RecordedCall, Recording, RecordingSource
from foveate.replay.recording_files import read_recordings

HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent.", "agent": "main", "message_type": "system_prompt"},
    {"role": "user", "content": "see how it is done", "agent": "main", "is_demo": True},
    {"role": "assistant", "content": "so it is done", "agent": "main", "is_demo": True},
    {"role": "user", "content": "fix it", "agent": "main", "message_type": "observation"},
    {"role": "assistant", "content": "I look", "thought": "I look", "action": "ls", "agent": "main"},
    {"role": "user", "content": "a.py\nb.py", "agent": "main", "message_type": "observation"},
    {"role": "assistant", "content": "done", "agent": "main", "message_type": "action"},
]


def write_and_read(
    folder: Path, document: Any, *, indent: int | None = 2, name: str = "x.traj"
) -> list[Recording]:
    path = folder / name
    path.write_text(json.dumps(document, indent=indent))
    return list(read_recordings(path))


def write_and_read_one(folder: Path, document: Any, **options: Any) -> Recording:
    (recording,) = write_and_read(folder, document, **options)
    return recording


def history_texts(call: RecordedCall) -> list[str]:
    return [json.loads(message.raw).get("content") for message in call.last_message.history()]


def test_each_response_is_a_call_with_everything_before_it(tmp_path: Path) -> None:
    recording = write_and_read_one(
        tmp_path, {"environment": "e", "trajectory": [], "history": HISTORY, "info": {}}
    )

    assert recording.source is RecordingSource.SWE_AGENT
    assert [history_texts(call)[-1] for call in recording.calls] == ["fix it", "a.py\nb.py"]
    assert [len(history_texts(call)) for call in recording.calls] == [4, 6]
    assert recording.calls[1].last_message.history()[3] is recording.calls[0].last_message
    assert recording.missing == {MissingPart.USAGE, MissingPart.TIME, MissingPart.MODEL}


def test_a_file_of_one_line_and_a_bare_history_are_read_the_same(tmp_path: Path) -> None:
    from_document = write_and_read_one(tmp_path, {"history": HISTORY}, indent=None)
    from_line = list(read_recordings(tmp_path / "x.traj", source=RecordingSource.SWE_AGENT))

    assert len(from_document.calls) == len(from_line[0].calls) == 2


def test_model_and_cost_of_a_run_are_read(tmp_path: Path) -> None:
    config = {"agent": {"model": {"name": "gpt-4o"}}}
    info = {"model_stats": {"instance_cost": 0.5, "tokens_sent": 100}}
    run = {"history": HISTORY, "info": info, "replay_config": json.dumps(config)}
    recording = write_and_read_one(tmp_path, run)

    assert {call.model for call in recording.calls} == {"gpt-4o"}
    assert recording.reported_dollars == Decimal("0.5")


def test_old_observations_are_left_out_if_the_run_limits_them(tmp_path: Path) -> None:
    steps = [
        entry
        for number in range(4)
        for entry in (
            {"role": "assistant", "content": f"step {number}", "agent": "main"},
            {"role": "user", "content": f"seen {number}\nmore", "agent": "main", "message_type": "observation"},
        )
    ]
    config = {
        "agent": {"model": {"name": "m"}, "history_processors": [{"type": "last_n_observations", "n": 2}]}
    }
    end = {"role": "assistant", "content": "end", "agent": "main"}
    recording = write_and_read_one(tmp_path, {"history": [*HISTORY[:4], *steps, end], "replay_config": config})

    assert history_texts(recording.calls[-1])[3:] == [
        "fix it",
        "step 0",
        "Old environment output: (2 lines omitted)",
        "step 1",
        "Old environment output: (2 lines omitted)",
        "step 2",
        "seen 2\nmore",
        "step 3",
        "seen 3\nmore",
    ]
    assert history_texts(recording.calls[3])[-1] == "seen 2\nmore"


def test_the_last_response_is_a_call_even_if_only_the_steps_contain_it(tmp_path: Path) -> None:
    """SWE-agent 1 submits without an entry in the history."""
    steps = [
        {"response": response, "action": "x", "observation": "y"} for response in ("I look", "done", "submit")
    ]
    observation = {"role": "user", "content": "fine", "agent": "main", "message_type": "observation"}
    recording = write_and_read_one(tmp_path, {"trajectory": steps, "history": [*HISTORY, observation]})

    assert len(recording.calls) == 3
    assert history_texts(recording.calls[-1])[-1] == "fine"
    assert json.loads(recording.calls[-1].response)["content"] == "submit"
    assert (
        len(write_and_read_one(tmp_path, {"trajectory": steps[:2], "history": [*HISTORY, observation]}).calls)
        == 2
    )


def test_the_query_of_a_step_takes_precedence_over_the_history(tmp_path: Path) -> None:
    query = [{"role": "system", "content": "short"}, {"role": "user", "content": "fix it"}]
    steps = [
        {"query": query, "response": "I look", "action": "ls", "observation": "a.py"},
        {"query": [{}], "response": "", "action": "exit"},
    ]
    recording = write_and_read_one(tmp_path, {"trajectory": steps, "history": HISTORY})

    assert [history_texts(call) for call in recording.calls] == [["short", "fix it"]]
    assert json.loads(recording.calls[0].response)["content"] == "I look"


def test_results_of_tools_name_their_calls(tmp_path: Path) -> None:
    tool_call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    history = [
        *HISTORY[:1],
        {"role": "user", "content": "go", "agent": "main"},
        {"role": "assistant", "content": "", "tool_calls": [tool_call], "agent": "main"},
        {"role": "tool", "content": "ok", "tool_call_ids": ["c1"], "agent": "main"},
        {"role": "assistant", "content": "done", "agent": "main"},
    ]
    recording = write_and_read_one(tmp_path, {"history": history})

    assert json.loads(recording.calls[-1].last_message.raw) == {
        "role": "tool",
        "content": "ok",
        "tool_call_id": "c1",
    }
    assert MissingPart.TOOLS in recording.missing


def test_agents_of_one_run_see_only_their_own_messages(tmp_path: Path) -> None:
    other_agent = [
        {"role": "user", "content": "sum it up", "agent": "summarizer"},
        {"role": "assistant", "content": "summed up", "agent": "summarizer"},
    ]
    recording = write_and_read_one(tmp_path, {"history": [*HISTORY[:5], *other_agent, *HISTORY[5:]]})

    assert {call.conversation: len(history_texts(call)) for call in recording.calls} == {
        "x:main": 6,
        "x:summarizer": 1,
    }


def test_mini_swe_agent_records_the_usage_of_each_response(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 60}}
    extra = {"response": {"model": "gpt-5.1", "usage": usage, "created": 1_767_607_200}}
    run = {
        "trajectory_format": "mini-swe-agent-1",
        "info": {"config": {"model": {"model_name": "gpt-5.1"}}, "model_stats": {"instance_cost": 0.01}},
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "a", "extra": extra},
            {"role": "user", "content": "o", "extra": {"returncode": 0}},
            {"role": "exit", "content": "bye"},
        ],
    }
    recording = write_and_read_one(tmp_path, run, name="run.traj.json")
    (call,) = recording.calls

    assert call.usage is not None
    assert call.usage.cache == CacheUsage(uncached=40, read=60)
    assert (call.model, call.at) == ("gpt-5.1", 1_767_607_200.0)
    assert json.loads(call.last_message.raw) == {"role": "user", "content": "u"}
    assert recording.missing == frozenset()


def test_mini_swe_agent_with_openais_responses_keeps_the_items(tmp_path: Path) -> None:
    usage = {"input_tokens": 50, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 0}}
    tool_call = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}", "id": "f1"}
    run = {
        "trajectory_format": "mini-swe-agent-1.1",
        "info": {},
        "messages": [
            {"role": "user", "content": "u"},
            {"object": "response", "model": "gpt-5.1", "output": [tool_call], "usage": usage, "extra": {}},
            {"type": "function_call_output", "call_id": "c1", "output": "ok", "extra": {}},
            {"object": "response", "model": "gpt-5.1", "output": [tool_call], "usage": usage, "extra": {}},
        ],
    }
    recording = write_and_read_one(tmp_path, run)

    assert recording.format is Format.RESPONSES
    assert [call.last_message.depth for call in recording.calls] == [0, 2]
    assert {call.model for call in recording.calls} == {"gpt-5.1"}


def test_several_runs_may_be_on_lines_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = [{"instance_id": name, "trajectory": HISTORY} for name in ("one", "two")]
    path.write_text("\n".join(map(json.dumps, runs)) + '\n{"trajectory": [{"ro')
    recordings = list(read_recordings(path))

    assert [(recording.name, len(recording.calls)) for recording in recordings] == [("one", 2), ("two", 2)]
    assert [(problem.line, problem.reason) for problem in recordings[0].unreadable] == [(3, "is truncated")]
