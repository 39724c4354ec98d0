"""Small session logs of coding agents and benchmarks, as their programs write them."""

from typing import Any

Record = dict[str, Any]


def clock(second: int) -> str:
    return f"2026-06-05T10:{second // 60:02}:{second % 60:02}.000Z"


# --- Codex


def codex_line(kind: str, second: int, payload: Record) -> Record:
    return {"timestamp": clock(second), "type": kind, "payload": payload}


def codex_meta(second: int = 0, session: str = "session-1", **more: Any) -> Record:
    payload = {
        "id": session,
        "timestamp": clock(second),
        "cwd": "/repo",
        "cli_version": "0.135.0",
        "source": "cli",
    }
    return codex_line(
        "session_meta", second, {**payload, "base_instructions": {"text": "You are Codex."}, **more}
    )


def codex_model(second: int, model: str = "gpt-5.1-codex") -> Record:
    return codex_line("turn_context", second, {"model": model, "cwd": "/repo", "summary": "auto"})


def codex_message(second: int, role: str, text: str) -> Record:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return codex_line("response_item", second, {"type": "message", "role": role, "content": content})


def codex_reasoning(second: int, sealed: str) -> Record:
    return codex_line(
        "response_item",
        second,
        {"type": "reasoning", "summary": [], "encrypted_content": sealed, "content": None},
    )


def codex_call(second: int, call: str) -> Record:
    payload = {
        "type": "function_call",
        "name": "exec_command",
        "arguments": f'{{"cmd":"{call}"}}',
        "call_id": call,
    }
    return codex_line("response_item", second, payload)


def codex_result(second: int, call: str) -> Record:
    payload = {"type": "function_call_output", "call_id": call, "output": f"the output of {call}"}
    return codex_line("response_item", second, payload)


def codex_token_count(second: int, total: tuple[int, int, int], last: tuple[int, int, int] | None) -> Record:
    """A token count: the total and the last response, each as input, cached input and output."""

    def usage(numbers: tuple[int, int, int]) -> Record:
        read, cached, output = numbers
        return {
            "input_tokens": read,
            "cached_input_tokens": cached,
            "output_tokens": output,
            "reasoning_output_tokens": 0,
            "total_tokens": read + output,
        }

    info = {"total_token_usage": usage(total), "last_token_usage": usage(last) if last else {}}
    limits = {"primary": {"used_percent": float(second)}}
    return codex_line("event_msg", second, {"type": "token_count", "info": info, "rate_limits": limits})


CODEX: list[Record] = [
    codex_meta(0),
    codex_message(1, "user", "<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>"),
    codex_model(1),
    codex_message(2, "user", "list the files"),
    codex_line("event_msg", 2, {"type": "user_message", "message": "list the files"}),
    codex_line("event_msg", 2, {"type": "token_count", "info": None, "rate_limits": {}}),
    codex_reasoning(4, "sealed-1"),
    codex_call(5, "ls"),
    codex_result(6, "ls"),  # before the token count of the response that called it
    codex_token_count(7, (12_000, 0, 50), (12_000, 0, 50)),
    codex_token_count(8, (12_000, 0, 50), (12_000, 0, 50)),  # only the rate limits have changed
    codex_message(10, "assistant", "two files"),
    codex_token_count(11, (24_100, 11_904, 60), (12_100, 11_904, 10)),
]

# --- Gemini CLI


def gemini_user(number: int, text: str) -> Record:
    return {"id": f"u{number}", "timestamp": clock(10 * number), "type": "user", "content": [{"text": text}]}


def gemini_answer(number: int, text: str, tokens: tuple[int, int, int, int] | None, *tools: str) -> Record:
    """A response with its tokens: input, cached input, output and thinking."""
    record: Record = {
        "id": f"g{number}",
        "timestamp": clock(10 * number + 5),
        "type": "gemini",
        "content": text,
    }
    if tokens is not None:
        read, cached, output, thoughts = tokens
        total = read + output + thoughts
        counts = {
            "input": read,
            "output": output,
            "cached": cached,
            "thoughts": thoughts,
            "tool": 0,
            "total": total,
        }
        record |= {"tokens": counts, "model": "gemini-2.5-flash", "thoughts": []}
    calls = [
        {
            "id": tool,
            "name": "read_file",
            "args": {"path": tool},
            "result": [
                {"functionResponse": {"id": tool, "name": "read_file", "response": {"output": f"of {tool}"}}}
            ],
            "status": "success",
            "timestamp": clock(10 * number + 7),
        }
        for tool in tools
    ]
    return record | {"toolCalls": calls} if calls else record


GEMINI_META: Record = {
    "sessionId": "gemini-1",
    "projectHash": "ab12",
    "startTime": clock(0),
    "lastUpdated": clock(60),
}
GEMINI_CLI: list[Record] = [
    GEMINI_META,
    gemini_user(1, "read a file"),
    gemini_answer(1, "I read it.", (12_000, 0, 20, 100), "a.txt"),
    {"id": "i1", "timestamp": clock(18), "type": "info", "content": "an update is there"},
    gemini_answer(2, "It is empty.", (12_100, 11_900, 10, 0)),
]

# --- Qwen Code


def qwen(kind: str, name: str, parent: str | None, second: int, *parts: Record, **more: Any) -> Record:
    record: Record = {
        "uuid": name,
        "parentUuid": parent,
        "sessionId": "qwen-1",
        "timestamp": clock(second),
        "type": kind,
        "cwd": "/repo",
        "version": "0.10.0",
        **more,
    }
    return record | {"message": {"role": "model" if kind == "assistant" else "user", "parts": list(parts)}}


def qwen_answer(name: str, parent: str, second: int, read: int, cached: int, *parts: Record) -> Record:
    counts = {
        "promptTokenCount": read,
        "cachedContentTokenCount": cached,
        "candidatesTokenCount": 20,
        "totalTokenCount": read + 20,
    }
    return qwen("assistant", name, parent, second, *parts, model="qwen3-coder-plus", usageMetadata=counts)


QWEN_CODE: list[Record] = [
    qwen("user", "q1", None, 1, {"text": "read a file"}),
    qwen_answer("q2", "q1", 3, 9_000, 0, {"functionCall": {"name": "read_file", "args": {"path": "a"}}}),
    qwen(
        "tool_result", "q3", "q2", 4, {"functionResponse": {"name": "read_file", "response": {"output": "x"}}}
    ),
    qwen_answer("q4", "q3", 6, 9_100, 8_960, {"text": "it is x"}),
]

# --- opencode


def opencode_message(name: str, role: str, second: int, *parts: Record, **more: Any) -> Record:
    at = 1_780_653_600_000 + 1_000 * second
    info: Record = {"id": f"msg_{name}", "sessionID": "ses_1", "role": role, "time": {"created": at}}
    if role == "assistant":
        info |= {"modelID": "claude-sonnet-4-5", "providerID": "anthropic"}
    own = {"sessionID": "ses_1", "messageID": f"msg_{name}"}
    return {
        "info": info | more,
        "parts": [{"id": f"prt_{name}{number}", **own, **part} for number, part in enumerate(parts)],
    }


def opencode_tool(call: str) -> Record:
    state = {
        "status": "completed",
        "input": {"path": call},
        "output": f"of {call}",
        "title": call,
        "metadata": {},
    }
    return {"type": "tool", "callID": call, "tool": "read", "state": state}


def opencode_finish(uncached: int, read: int, written: int, cost: float) -> Record:
    tokens = {"input": uncached, "output": 30, "reasoning": 0, "cache": {"read": read, "write": written}}
    return {"type": "step-finish", "reason": "stop", "cost": cost, "tokens": tokens}


OPENCODE_MESSAGES: list[Record] = [
    opencode_message("1", "user", 0, {"type": "text", "text": "read a file"}),
    opencode_message(
        "2", "assistant", 1, {"type": "step-start"}, opencode_tool("a"), opencode_finish(4, 0, 9_000, 0.034212)
    ),
    opencode_message(
        "3", "assistant", 9, {"type": "text", "text": "empty"}, opencode_finish(4, 9_000, 100, 0.003537)
    ),
]
OPENCODE: Record = {
    "info": {"id": "ses_1", "directory": "/repo", "title": "t", "time": {"created": 1, "updated": 2}},
    "messages": OPENCODE_MESSAGES,
}

# --- OpenHands

_SYSTEM = {"role": "system", "content": [{"type": "text", "text": "You are OpenHands. " * 400}]}
_TASK = {"role": "user", "content": [{"type": "text", "text": "write a file"}]}
_TOOL = {
    "name": "terminal",
    "description": "Run a command.",
    "parameters": {"type": "object", "properties": {}},
}
_TOOL_CALL = {
    "role": "assistant",
    "content": [],
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}],
}
_TOOL_RESULT = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}]}


def openhands_log(number: int, messages: list[Record], answer: Record, read: int, cost: float) -> Record:
    usage = {
        "prompt_tokens": read,
        "completion_tokens": 100,
        "total_tokens": read + 100,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return {
        "context_window": 200_000,
        "messages": messages,
        "tools": [{"type": "function", "function": _TOOL}],
        "kwargs": {"temperature": 0.0},
        "response": {
            "id": f"chatcmpl-{number}",
            "model": "litellm_proxy/claude-sonnet-4-20250514",
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": answer}],
            "usage": usage,
        },
        "cost": cost,
        "timestamp": 1_780_653_600.5 + 10 * number,
        "latency_sec": 2.5,
    }


OPENHANDS: list[Record] = [
    openhands_log(1, [_SYSTEM, _TASK], _TOOL_CALL, 2_000, 0.0075),
    openhands_log(
        2, [_SYSTEM, _TASK, _TOOL_CALL, _TOOL_RESULT], {"role": "assistant", "content": "done"}, 2_100, 0.0078
    ),
]

# --- tau-bench

TAU_BENCH: list[Record] = [
    {
        "task_id": task,
        "reward": 1.0,
        "info": {"task": {"user_id": "u"}, "user_cost": 0.01},
        "traj": [
            {"role": "system", "content": "# Policy\n" + "Be kind. " * 200},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello", "tool_calls": None},
            {"role": "user", "content": f"book flight {task}"},
        ],
        "trial": 0,
    }
    for task in (0, 1)
]
