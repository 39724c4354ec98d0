"""A session log is read into the requests that were sent, and a broken line costs no more than itself."""

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks.cache_simulator import run
from benchmarks.session_logs import LoggedRequest, read_logs
from foveate.values import CacheUsage

Line = dict[str, Any]


def clock(second: int) -> str:
    return f"2025-11-01T10:{second // 60:02}:{second % 60:02}Z"


def line(kind: str, name: str, parent: str | None, second: int, *blocks: Line, **more: Any) -> Line:
    message = {"role": kind, "content": list(blocks), **more.pop("message", {})}
    return {
        "type": kind,
        "uuid": name,
        "parentUuid": parent,
        "sessionId": "s",
        "timestamp": clock(second),
        "message": message,
        **more,
    }


def answer(name: str, parent: str, second: int, request: str, read: int, written: int, block: Line) -> Line:
    usage = {"input_tokens": 4, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    message = {"model": "claude-sonnet-4-5", "usage": usage}
    return line("assistant", name, parent, second, block, requestId=request, message=message)


def text(said: str) -> Line:
    return {"type": "text", "text": said}


def call(name: str) -> Line:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": name}}


def result(name: str) -> Line:
    return {"type": "tool_result", "tool_use_id": name, "content": f"the result of {name}"}


# Two calls side by side, whose results come in the other order, the second of them on a side branch.
SESSION = (
    line("user", "u1", None, 0, text("list the files")),
    answer("a1", "u1", 3, "r1", 0, 9_000, text("I look.")),
    answer("a2", "a1", 4, "r1", 0, 5_000, call("one")),
    answer("a3", "a2", 5, "r1", 0, 5_000, call("two")),
    line("user", "u2", "a2", 7, result("one")),
    line("user", "u3", "a3", 6, result("two")),
    answer("a4", "u3", 9, "r2", 5_000, 200, text("Two files.")),
)


def written(folder: Path, *lines: Line | str, name: str = "log.jsonl") -> Path:
    content = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines).encode()
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def requests(path: Path) -> list[LoggedRequest]:
    return read_logs([path]).requests


def test_a_request_is_billed_by_the_last_line_of_its_answer(tmp_path: Path) -> None:
    first, second = requests(written(tmp_path, *SESSION))

    assert first.billed == CacheUsage(uncached=4, written_5m=5_000)
    assert second.billed == CacheUsage(uncached=4, read=5_000, written_5m=200)


def test_a_request_holds_what_stands_before_its_answer(tmp_path: Path) -> None:
    first, second = requests(written(tmp_path, *SESSION))

    assert [message.role for message in first.messages] == ["user"]
    assert [message.role for message in second.messages] == ["user", "assistant", "user"]
    assert [block.kind for block in second.messages[1].blocks] == ["text", "tool_use", "tool_use"]
    assert (second.at - first.at, second.answers_at - second.at) == (7, 2)


def test_results_stand_in_the_order_of_their_calls_also_from_a_side_branch(tmp_path: Path) -> None:
    *_, second = requests(written(tmp_path, *SESSION))

    assert [block.call for block in second.messages[-1].blocks] == ["one", "two"]


def test_a_broken_line_is_skipped_and_counted(tmp_path: Path) -> None:
    logs = read_logs([written(tmp_path, *SESSION, '{"type": "user", "uu', "[1]", "", name="log.jsonl.gz")])

    assert (len(logs.requests), logs.broken_lines) == (2, 2)


def test_pi_sends_a_summary_for_what_it_stands_for(tmp_path: Path) -> None:
    usage = {"input": 3, "cacheRead": 10, "cacheWrite": 20}
    said = {"role": "assistant", "model": "claude-sonnet-4-5", "usage": usage, "content": [text("yes")]}
    lines: list[Line] = [
        {"type": "session", "id": "s"},
        {"type": "message", "id": "1", "message": {"role": "user", "content": [text("old")]}},
        {"type": "message", "id": "2", "message": said | {"timestamp": 1_000}},
        {"type": "message", "id": "3", "message": {"role": "user", "content": [text("new")]}},
        {"type": "compaction", "id": "4", "summary": "what was", "firstKeptEntryId": "3"},
        {"type": "message", "id": "5", "message": said | {"timestamp": 5_000}},
    ]
    first, second = requests(written(tmp_path, *lines))

    assert [block.text for message in first.messages for block in message.blocks] == ["old"]
    assert [block.text for message in second.messages for block in message.blocks] == ["what was", "new"]
    assert second.billed == CacheUsage(uncached=3, read=10, written_5m=20)


def test_the_simulator_is_held_against_any_log_of_that_form(tmp_path: Path) -> None:
    written(tmp_path, *SESSION)
    figures = run(tmp_path).figures

    assert (figures["requests"], figures["scored"], figures["within_2pct"]) == (2, 1, 1.0)
