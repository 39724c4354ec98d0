"""A model that does a small task with the shell of whatever agent asks it, behind the sandbox's strict APIs.

It decides by what is in the agent's folder, not by the conversation, so that it goes on after a compaction. It
tells agents apart by their keys.
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

from foveate.sandbox.http import Provider, SandboxReply, SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import STEP_HEADER, ScriptedCall, ScriptStep
from foveate.sandbox.server import SandboxApp, build_server, open_listening_socket, socket_url

NUMBERS = "numbers.txt"
DELEGATED = "delegated.txt"
SUBTASK = "SUBTASK"
SUMMARY = "[Foveate] This conversation has become long"
_SHELLS = ("bash", "exec_command", "shell_command", "shell", "run_shell_command")
_DELEGATIONS = ("task", "agent", "spawn_agent")
_WAITS = ("wait_agent",)


@dataclass(frozen=True)
class Task:
    """Lines to write into a file of a folder, one command each, and another file by a `sub_agent` of that kind.

    Each command also prints `output_lines` lines, so that the conversation grows. With `edits_text` the agent
    has no shell: what the model says is the new text of the file.
    """

    folder: Path
    lines: int = 4
    output_lines: int = 0
    sub_agent: str | None = None
    edits_text: bool = False
    _asked: set[str] = field(default_factory=set)

    @property
    def done_lines(self) -> int:
        path = self.folder / NUMBERS
        return len(path.read_text().splitlines()) if path.exists() else 0

    def is_first(self, what: str) -> bool:
        """Whether this is asked for the first time."""
        is_first = what not in self._asked
        self._asked.add(what)
        return is_first


@dataclass(frozen=True)
class Recorded:
    """A request that reached the provider, and how it was answered."""

    key: str
    path: str
    headers: Mapping[str, str]
    body: Any
    status: int
    reply: bytes

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The last usage in the reply, as the provider writes it; None if it was not billed."""
        found = None
        for line in self.reply.decode("utf-8", "replace").splitlines():
            data = line.removeprefix("data:").strip()
            if data.startswith("{"):
                found = _merged(found, _usage_in(json.loads(data)))
        return found


def _usage_in(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for inside in (event, event.get("response"), event.get("message")):
        if isinstance(inside, dict):
            usage = inside.get("usage") or inside.get("usageMetadata")
            if isinstance(usage, dict):
                return usage
    return None


def _merged(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return one if other is None else {**(one or {}), **other}


@dataclass
class Model(Sandbox):
    """The sandbox with such a model. `tasks` are those of the agents, by their keys."""

    tasks: dict[str, Task] = field(default_factory=dict)
    recorded: list[Recorded] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(clock=time.time, seed=b"agents", providers=frozenset(Provider))

    def reply(self, http_request: SandboxRequest) -> SandboxReply:
        return self.respond(http_request, self.accept(http_request))

    def respond(self, http_request: SandboxRequest, accepted: Any) -> SandboxReply:
        key, body = _key_of(http_request), _json(http_request.body)
        task = self.tasks.get(key)
        step = None if task is None else next_step(task, body)
        if step is not None:
            http_request = replace(
                http_request, headers={**http_request.headers, STEP_HEADER: msgspec.json.encode(step).decode()}
            )
        reply = super().respond(http_request, accepted)
        self.recorded.append(
            Recorded(
                key, http_request.path, dict(http_request.headers), body, reply.status, b"".join(reply.chunks)
            )
        )
        return reply

    def of(self, key: str) -> list[Recorded]:
        """The requests that came with a key."""
        return [each for each in self.recorded if each.key == key]


def next_step(task: Task, body: Any) -> ScriptStep | None:
    """What the model does next; None: something that is not part of the task is asked of it."""
    said = _user_words(body)
    if said and SUMMARY in said[-1]:
        return ScriptStep(text=_summary(task))
    if task.edits_text:
        lines = "".join(f"{number} is a number of this file\n" for number in range(1, task.done_lines + 2))
        words = (
            "I add the next number to the file: the one that follows the last number in it so far, on a line "
            "of its own, with the words that stand behind every other number."
        )
        return ScriptStep(text=f"{words}\n\n{NUMBERS}\n```\n{lines}```\n")
    tools = dict(_tools(body))
    shell = _first(tools, _SHELLS)
    if shell is None:
        return None
    if any(SUBTASK in words for words in said):
        if (task.folder / DELEGATED).exists():
            return ScriptStep(text="The sub-task is done.")
        return _run(shell, tools[shell], f"echo delegated > {task.folder / DELEGATED}")
    done = task.done_lines
    delegation = _first(tools, _DELEGATIONS)
    if task.sub_agent and delegation and done == 1 and task.is_first("delegation"):
        words = f"{SUBTASK}: write a line into {DELEGATED}"
        chosen = {"subagent_type": task.sub_agent, "agent_type": task.sub_agent}
        return ScriptStep(tools=(ScriptedCall(name=delegation, input=_fill(tools[delegation], words, chosen)),))
    wait = _first(tools, _WAITS)
    if task.sub_agent and wait and done == 1 and task.is_first("wait"):
        return ScriptStep(tools=(ScriptedCall(name=wait, input={}),))
    if done >= task.lines:
        return ScriptStep(text=f"All {task.lines} lines are in {NUMBERS}.")
    command = f"echo {done + 1} >> {task.folder / NUMBERS}"
    if task.output_lines:
        command += f"; seq -f 'line %g of the output of command {done + 1}' 1 {task.output_lines}"
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
    schema: Mapping[str, Any], words: str, chosen: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """An input that fits a tool's schema, with the command or the words where they belong."""
    properties = schema.get("properties", {})
    found: dict[str, Any] = {name: value for name, value in chosen.items() if name in properties}
    for name in set(schema.get("required", ())) - found.keys():
        kind = properties.get(name, {})
        if "enum" in kind:
            found[name] = kind["enum"][0]
        elif kind.get("type") == "boolean":
            found[name] = False
        elif kind.get("type") == "array":
            found[name] = ["bash", "-c", words]
        else:
            found[name] = _OTHERS.get(name, words)
    return found


# What required texts of tools other than the command are filled with.
_OTHERS = {"description": "Do the next step", "task_name": "next_step"}


def _tools(body: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The function tools of a request, of any API, with the schemas of their inputs."""
    if not isinstance(body, dict):
        return
    for tool in body.get("tools") or ():
        inner = tool.get("functionDeclarations") or tool.get("tools") or ()  # of Gemini; in a namespace
        for each in (tool, tool.get("function"), *inner):
            if not isinstance(each, dict) or "name" not in each:
                continue
            schema = next(
                (
                    each[name]
                    for name in ("input_schema", "parameters", "parametersJsonSchema")
                    if isinstance(each.get(name), dict)
                ),
                None,
            )
            if schema is not None:
                yield each["name"], schema


def _first(tools: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    lowered = {name.lower(): name for name in tools}
    return next((lowered[name] for name in names if name in lowered), None)


def _user_words(body: Any) -> list[str]:
    """What users said, and agents to each other, message by message."""
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


def _key_of(ask: SandboxRequest) -> str:
    for name in ("x-api-key", "authorization", "x-goog-api-key", "api-key"):
        if name in ask.headers:
            return re.sub("(?i)^bearer ", "", ask.headers[name])
    return ""


@contextmanager
def running_model() -> Iterator[tuple[str, Model]]:
    """Such a model on a loopback port, until the end of the block."""
    model = Model()
    with open_listening_socket("127.0.0.1", 0) as where:
        served = build_server(SandboxApp(model))
        thread = Thread(target=served.run, kwargs={"sockets": [where]}, daemon=True)
        thread.start()
        try:
            while not served.started and thread.is_alive():
                time.sleep(0.005)
            yield socket_url(where), model
        finally:
            served.should_exit = True
            thread.join(10)
