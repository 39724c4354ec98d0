"""Trajectories: a response was requested with the history before it, and a demonstration was not requested."""

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


def recordings(folder: Path, document: Any, *, indent: int | None = 2, name: str = "x.traj") -> list[Recording]:
    path = folder / name
    path.write_text(json.dumps(document, indent=indent))
    return list(read_recordings(path))


def recording(folder: Path, document: Any, **more: Any) -> Recording:
    (one,) = recordings(folder, document, **more)
    return one


def texts(asked: RecordedCall) -> list[str]:
    return [json.loads(one.raw).get("content") for one in asked.last_message.history()]


def test_each_response_is_a_call_with_everything_before_it(tmp_path: Path) -> None:
    found = recording(tmp_path, {"environment": "e", "trajectory": [], "history": HISTORY, "info": {}})

    assert found.source is RecordingSource.SWE_AGENT
    assert [texts(call)[-1] for call in found.calls] == ["fix it", "a.py\nb.py"]
    assert [len(texts(call)) for call in found.calls] == [4, 6]
    assert found.calls[1].last_message.history()[3] is found.calls[0].last_message
    assert found.missing == {MissingPart.USAGE, MissingPart.TIME, MissingPart.MODEL}


def test_a_file_of_one_line_and_a_bare_history_are_read_the_same(tmp_path: Path) -> None:
    whole = recording(tmp_path, {"history": HISTORY}, indent=None)
    bare = list(read_recordings(tmp_path / "x.traj", source=RecordingSource.SWE_AGENT))

    assert len(whole.calls) == len(bare[0].calls) == 2


def test_model_and_cost_of_a_run_are_read(tmp_path: Path) -> None:
    config = {"agent": {"model": {"name": "gpt-4o"}}}
    info = {"model_stats": {"instance_cost": 0.5, "tokens_sent": 100}}
    run = {"history": HISTORY, "info": info, "replay_config": json.dumps(config)}
    found = recording(tmp_path, run)

    assert {call.model for call in found.calls} == {"gpt-4o"}
    assert found.reported_dollars == Decimal("0.5")


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
    found = recording(tmp_path, {"history": [*HISTORY[:4], *steps, end], "replay_config": config})

    assert texts(found.calls[-1])[3:] == [
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
    assert texts(found.calls[3])[-1] == "seen 2\nmore"


def test_the_last_response_is_a_call_even_if_only_the_steps_contain_it(tmp_path: Path) -> None:
    """SWE-agent 1 submits without an entry in the history."""
    steps = [{"response": said, "action": "x", "observation": "y"} for said in ("I look", "done", "submit")]
    seen = {"role": "user", "content": "fine", "agent": "main", "message_type": "observation"}
    found = recording(tmp_path, {"trajectory": steps, "history": [*HISTORY, seen]})

    assert len(found.calls) == 3
    assert texts(found.calls[-1])[-1] == "fine"
    assert json.loads(found.calls[-1].response)["content"] == "submit"
    assert len(recording(tmp_path, {"trajectory": steps[:2], "history": [*HISTORY, seen]}).calls) == 2


def test_the_query_of_a_step_takes_precedence_over_the_history(tmp_path: Path) -> None:
    query = [{"role": "system", "content": "short"}, {"role": "user", "content": "fix it"}]
    steps = [
        {"query": query, "response": "I look", "action": "ls", "observation": "a.py"},
        {"query": [{}], "response": "", "action": "exit"},
    ]
    found = recording(tmp_path, {"trajectory": steps, "history": HISTORY})

    assert [texts(call) for call in found.calls] == [["short", "fix it"]]
    assert json.loads(found.calls[0].response)["content"] == "I look"


def test_results_of_tools_name_their_calls(tmp_path: Path) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    history = [
        *HISTORY[:1],
        {"role": "user", "content": "go", "agent": "main"},
        {"role": "assistant", "content": "", "tool_calls": [called], "agent": "main"},
        {"role": "tool", "content": "ok", "tool_call_ids": ["c1"], "agent": "main"},
        {"role": "assistant", "content": "done", "agent": "main"},
    ]
    found = recording(tmp_path, {"history": history})

    assert json.loads(found.calls[-1].last_message.raw) == {
        "role": "tool",
        "content": "ok",
        "tool_call_id": "c1",
    }
    assert MissingPart.TOOLS in found.missing


def test_agents_of_one_run_see_only_their_own_messages(tmp_path: Path) -> None:
    other = [
        {"role": "user", "content": "sum it up", "agent": "summarizer"},
        {"role": "assistant", "content": "summed up", "agent": "summarizer"},
    ]
    found = recording(tmp_path, {"history": [*HISTORY[:5], *other, *HISTORY[5:]]})

    assert {call.conversation: len(texts(call)) for call in found.calls} == {"x:main": 6, "x:summarizer": 1}


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
    found = recording(tmp_path, run, name="run.traj.json")
    (call,) = found.calls

    assert call.usage is not None
    assert call.usage.cache == CacheUsage(uncached=40, read=60)
    assert (call.model, call.at) == ("gpt-5.1", 1_767_607_200.0)
    assert json.loads(call.last_message.raw) == {"role": "user", "content": "u"}
    assert found.missing == frozenset()


def test_mini_swe_agent_with_openais_responses_keeps_the_items(tmp_path: Path) -> None:
    usage = {"input_tokens": 50, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 0}}
    called = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}", "id": "f1"}
    run = {
        "trajectory_format": "mini-swe-agent-1.1",
        "info": {},
        "messages": [
            {"role": "user", "content": "u"},
            {"object": "response", "model": "gpt-5.1", "output": [called], "usage": usage, "extra": {}},
            {"type": "function_call_output", "call_id": "c1", "output": "ok", "extra": {}},
            {"object": "response", "model": "gpt-5.1", "output": [called], "usage": usage, "extra": {}},
        ],
    }
    found = recording(tmp_path, run)

    assert found.format is Format.RESPONSES
    assert [call.last_message.depth for call in found.calls] == [0, 2]
    assert {call.model for call in found.calls} == {"gpt-5.1"}


def test_several_runs_may_be_on_lines_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = [{"instance_id": name, "trajectory": HISTORY} for name in ("one", "two")]
    path.write_text("\n".join(map(json.dumps, runs)) + '\n{"trajectory": [{"ro')
    found = list(read_recordings(path))

    assert [(one.name, len(one.calls)) for one in found] == [("one", 2), ("two", 2)]
    assert [(one.line, one.reason) for one in found[0].unreadable] == [(3, "is cut off")]
