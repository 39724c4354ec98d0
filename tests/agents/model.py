"""A model that does a small task with the shell of the agent that calls it, behind the sandbox's strict APIs.

It decides by the files in the agent's folder, not by the conversation, so that it works after a compaction. It
recognises agents by their keys.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any

import msgspec

from foveate.sandbox.http import SandboxProvider, SandboxReply, SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import STEP_HEADER, ScriptedCall, ScriptStep
from foveate.sandbox.server import SandboxApp, build_server, open_listening_socket, socket_url

NUMBERS = "numbers.txt"
DELEGATED = "delegated.txt"
SUBTASK = "SUBTASK"
SUMMARY = "[Foveate] This conversation has become long"
_SHELLS = ("bash", "exec_command", "shell_command", "shell", "run_shell_command", "terminal")
_DELEGATIONS = ("task", "agent", "spawn_agent")
_WAITS = ("wait_agent",)


@dataclass(frozen=True)
class Task:
    """Lines to write into a file of a folder, one command each, and another file by a `sub_agent` of that kind.

    Each command also prints `output_lines` lines, so that the conversation grows. With `edits_text` the agent
    has no shell: the response of the model is the new text of the file.
    """

    folder: Path
    lines: int = 4
    output_lines: int = 0
    sub_agent: str | None = None
    edits_text: bool = False
    _actions: set[str] = field(default_factory=set)

    @property
    def done_lines(self) -> int:
        path = self.folder / NUMBERS
        return len(path.read_text().splitlines()) if path.exists() else 0

    def is_first(self, action: str) -> bool:
        """Check that this action was not taken before, and remember it."""
        is_first = action not in self._actions
        self._actions.add(action)
        return is_first


@dataclass(frozen=True)
class RecordedRequest:
    """A request that reached the provider, and its response."""

    key: str
    path: str
    headers: Mapping[str, str]
    body: Any
    status: int
    reply: bytes

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The last usage in the response, as the provider writes it; None if there is none."""
        merged = None
        for line in self.reply.decode("utf-8", "replace").splitlines():
            data = line.removeprefix("data:").strip()
            if data.startswith("{"):
                merged = _merge_usage(merged, _find_usage(json.loads(data)))
        return merged


def _find_usage(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in (event, event.get("response"), event.get("message")):
        if isinstance(container, dict):
            usage = container.get("usage") or container.get("usageMetadata")
            if isinstance(usage, dict):
                return usage
    return None


def _merge_usage(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return first if second is None else {**(first or {}), **second}


@dataclass
class Model(Sandbox):
    """The sandbox with such a model; `tasks` has the task of each agent by its key."""

    tasks: dict[str, Task] = field(default_factory=dict)
    recorded: list[RecordedRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(clock=time.time, seed=b"agents", providers=frozenset(SandboxProvider))

    def reply(self, http_request: SandboxRequest) -> SandboxReply:
        return self.respond(http_request, self.accept(http_request))

    def respond(self, http_request: SandboxRequest, accepted: Any) -> SandboxReply:
        key, body = _find_key(http_request), _json(http_request.body)
        task = self.tasks.get(key)
        step = None if task is None else next_step(task, body)
        if step is not None:
            http_request = replace(
                http_request, headers={**http_request.headers, STEP_HEADER: msgspec.json.encode(step).decode()}
            )
        reply = super().respond(http_request, accepted)
        self.recorded.append(
            RecordedRequest(
                key, http_request.path, dict(http_request.headers), body, reply.status, b"".join(reply.chunks)
            )
        )
        return reply

    def requests_with_key(self, key: str) -> list[RecordedRequest]:
        """Requests with this key."""
        return [request for request in self.recorded if request.key == key]


def next_step(task: Task, body: Any) -> ScriptStep | None:
    """The next step of the model, or None if the request is not part of the task."""
    messages = _user_messages(body)
    if messages and SUMMARY in messages[-1]:
        return ScriptStep(text=_summary(task))
    if task.edits_text:
        lines = "".join(f"{number} is a number of this file\n" for number in range(1, task.done_lines + 2))
        text = (
            "I add the next number to the file: the one that follows the last number in it so far, on a line "
            "of its own, with the words that stand behind every other number."
        )
        return ScriptStep(text=f"{text}\n\n{NUMBERS}\n```\n{lines}```\n")
    tools = dict(_tools(body))
    shell = _find_tool(tools, _SHELLS)
    if shell is None:
        return None
    if any(SUBTASK in text for text in messages):
        if (task.folder / DELEGATED).exists():
            return ScriptStep(text="The sub-task is done.")
        return _run(shell, tools[shell], f"echo delegated > {task.folder / DELEGATED}")
    done_lines = task.done_lines
    delegation = _find_tool(tools, _DELEGATIONS)
    if task.sub_agent and delegation and done_lines == 1 and task.is_first("delegation"):
        text = f"{SUBTASK}: write a line into {DELEGATED}"
        chosen = {"subagent_type": task.sub_agent, "agent_type": task.sub_agent}
        return ScriptStep(tools=(ScriptedCall(name=delegation, input=_fill(tools[delegation], text, chosen)),))
    wait = _find_tool(tools, _WAITS)
    if task.sub_agent and wait and done_lines == 1 and task.is_first("wait"):
        return ScriptStep(tools=(ScriptedCall(name=wait, input={}),))
    if done_lines >= task.lines:
        return ScriptStep(text=f"All {task.lines} lines are in {NUMBERS}.")
    command = f"echo {done_lines + 1} >> {task.folder / NUMBERS}"
    if task.output_lines:
        command += f"; seq -f 'line %g of the output of command {done_lines + 1}' 1 {task.output_lines}"
    return _run(shell, tools[shell], command)


def _summary(task: Task) -> str:
    numbers = range(1, task.done_lines + 1)
    commands = "\n".join(f"- `echo {number} >> {task.folder / NUMBERS}`" for number in numbers)
    return (
        "## What the user wants\nWrite the numbers into the file, one after the other, with shell commands.\n\n"
        f"## What was done\nThese commands were run; each printed lines of its output:\n{commands}\n\n"
        f"## Where things stand\n{NUMBERS} has {task.done_lines} lines; {task.lines} are wanted."
    )


def _run(shell: str, schema: Mapping[str, Any], command: str) -> ScriptStep:
    return ScriptStep(tools=(ScriptedCall(name=shell, input=_fill(schema, command)),))


def _fill(
    schema: Mapping[str, Any], text: str, choices: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """An input that fits a tool's schema, with the command or the text in its place."""
    properties = schema.get("properties", {})
    arguments: dict[str, Any] = {name: value for name, value in choices.items() if name in properties}
    for name in set(schema.get("required", ())) - arguments.keys():
        kind = properties.get(name, {})
        if "enum" in kind:
            arguments[name] = kind["enum"][0]
        elif kind.get("type") == "boolean":
            arguments[name] = False
        elif kind.get("type") == "array":
            arguments[name] = ["bash", "-c", text]
        else:
            arguments[name] = _DEFAULT_INPUTS.get(name, text)
    return arguments


# Values of required text parameters other than the command.
_DEFAULT_INPUTS = {"description": "Do the next step", "task_name": "next_step"}


def _tools(body: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The function tools of a request, of any API, with the schemas of their inputs."""
    if not isinstance(body, dict):
        return
    for tool in body.get("tools") or ():
        inner = tool.get("functionDeclarations") or tool.get("tools") or ()  # of Gemini; in a namespace
        for definition in (tool, tool.get("function"), *inner):
            if not isinstance(definition, dict) or "name" not in definition:
                continue
            schema = next(
                (
                    definition[name]
                    for name in ("input_schema", "parameters", "parametersJsonSchema")
                    if isinstance(definition.get(name), dict)
                ),
                None,
            )
            if schema is not None:
                yield definition["name"], schema


def _find_tool(tools: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    lowered = {name.lower(): name for name in tools}
    return next((lowered[name] for name in names if name in lowered), None)


def _user_messages(body: Any) -> list[str]:
    """Messages of users, and of agents to each other, as JSON."""
    if not isinstance(body, dict):
        return []
    turns = body.get("messages") or body.get("input") or body.get("contents") or ()
    return [
        json.dumps(turn)
        for turn in turns
        if isinstance(turn, dict) and (turn.get("role") == "user" or turn.get("type") == "agent_message")
    ]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _find_key(request: SandboxRequest) -> str:
    for name in ("x-api-key", "authorization", "x-goog-api-key", "api-key"):
        if name in request.headers:
            return re.sub("(?i)^bearer ", "", request.headers[name])
    return ""


@contextmanager
def running_model() -> Iterator[tuple[str, Model]]:
    """Such a model on a loopback port, until the end of the block."""
    model = Model()
    with open_listening_socket("127.0.0.1", 0) as listener:
        server = build_server(SandboxApp(model))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            yield socket_url(listener), model
        finally:
            server.should_exit = True
            thread.join(10)
