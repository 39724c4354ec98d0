"""Session logs as Claude Code writes them."""

import gzip
import json
from pathlib import Path
from typing import Any

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


def answer(
    name: str, parent: str | None, second: int, request: str, read: int, written: int, block: Line, **more: Any
) -> Line:
    usage = {
        "input_tokens": 4,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": more.pop("output", 9),
    }
    message = {"model": "claude-sonnet-4-5", "usage": usage, **more.pop("message", {})}
    return line("assistant", name, parent, second, block, requestId=request, message=message, **more)


def text(content: str) -> Line:
    return {"type": "text", "text": content}


def call(name: str) -> Line:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": name}}


def result(name: str) -> Line:
    return {"type": "tool_result", "tool_use_id": name, "content": f"the result of {name}"}


# Two parallel calls whose results come in reverse order, the second on a side branch.
SESSION = (
    line("user", "u1", None, 0, text("list the files")),
    answer("a1", "u1", 3, "r1", 0, 9_000, text("I look.")),
    answer("a2", "a1", 4, "r1", 0, 5_000, call("one")),
    answer("a3", "a2", 5, "r1", 0, 5_000, call("two")),
    line("user", "u2", "a2", 7, result("one")),
    line("user", "u3", "a3", 6, result("two")),
    answer("a4", "u3", 9, "r2", 5_000, 200, text("Two files.")),
)


def write_log(folder: Path, *lines: Line | str, name: str = "log.jsonl") -> Path:
    content = "\n".join(line_ if isinstance(line_, str) else json.dumps(line_) for line_ in lines).encode()
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path
