"""Requests changed in known ways, to check explanations of the change.

A mutation takes a pair of equal bodies, changes the second one or both, and returns the correct causes and
their position; or None, if the body has nothing to change in that way.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from foveate.model import Area

Body = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    causes: tuple[str, ...]
    area: Area | None = None
    index: int | None = None


Kind = Callable[[Body, Body], Expected | None]

# Parts of a text that differ each time, and the causes that may be named for them.
CHANGING: dict[str, tuple[str, str, str]] = {
    "an ISO timestamp": ("2026-11-15T10:00:00Z", "2026-11-15T10:00:07Z", "timestamp"),
    "a timestamp with a blank": ("2026-11-15 09:59:59.120", "2026-11-15 10:00:03.455", "timestamp"),
    "a timestamp with an offset": ("2026-11-15T10:00:00+01:00", "2026-11-16T10:00:00+01:00", "timestamp"),
    "seconds since 1970": ("1794736800", "1794736981", "timestamp"),
    "milliseconds since 1970": ("1794736800123", "1794736981456", "timestamp"),
    "a mail's timestamp": ("Sun, 15 Nov 2026 10:00:00 GMT", "Sun, 15 Nov 2026 10:02:10 GMT", "timestamp"),
    "the output of date": ("Sun Nov 15 12:00:22 UTC 2026", "Sun Nov 15 12:03:02 UTC 2026", "timestamp"),
    "a long date with a time": (
        "Sunday, November 15, 2026 at 9:59 AM",
        "Sunday, November 15, 2026 at 10:03 AM",
        "timestamp",
    ),
    "an ISO date": ("2026-11-15", "2026-11-16", "date"),
    "an American date": ("11/9/2026", "11/10/2026", "date"),
    "a German date": ("15.11.2026", "16.11.2026", "date"),
    "a long date": ("November 15, 2026", "November 16, 2026", "date"),
    "a weekday": ("Tuesday", "Thursday", "date"),
    "a time of day": ("10:59", "11:01", "time"),
    "a time of day with seconds": ("10:59:58", "10:59:59", "time"),
    "a UUID": ("0b9d3c1e-9c1c-4c4b-8f57-4a2f8a3c9d11", "7f0e2a44-1f0b-4f2e-9a6e-0d5a1b2c3d4e", "uuid"),
    "a session id": ("sess_8fk29dk1", "sess_qm4lw0zx", "random_id"),
    "a hex id": ("9f86d081884c7d65", "60303ae22b998861", "random_id"),
    "a request id": ("req_011CSHoEeqs5C35K2UUqR7Fy", "req_011CSJx9f2uBqP7n4TzLwKdA", "random_id"),
    "a counter": ("turn 9", "turn 10", "counter"),
    "a counter in a word": ("step-41", "step-42", "counter"),
    "a number that goes down": ("1200 tokens left", "310 tokens left", "number"),
    "a fraction": ("load 0.71", "load 0.93", "number"),
}


def lists_of_tools(body: Body) -> list[Any] | None:
    tools = body.get("tools") or []
    if tools and isinstance(tools[0], dict):
        for name in ("functionDeclarations", "function_declarations"):
            if isinstance(tools[0].get(name), list) and len(tools) == 1:
                declared: list[Any] = tools[0][name]
                return declared
    return tools if isinstance(tools, list) else None


def messages_name(body: Body) -> str:
    return next((name for name in ("messages", "input", "contents") if name in body), "messages")


def messages(body: Body) -> list[Any]:
    found = body.get(messages_name(body))
    return found if isinstance(found, list) else []


def text_slots(body: Body) -> Iterator[tuple[Any, Any, Area, int]]:
    """Yield the positions of plain texts: the container of each, its key, and its place."""
    for name in ("system", "instructions"):
        if isinstance(body.get(name), str):
            yield body, name, Area.SYSTEM, 0
        elif isinstance(body.get(name), list):
            for index, block in enumerate(body[name]):
                if isinstance(block, dict) and isinstance(block.get("text"), str):
                    yield block, "text", Area.SYSTEM, index
    given = body.get("systemInstruction") or body.get("system_instruction")
    if isinstance(given, dict) and isinstance(given.get("parts"), list):
        for index, block in enumerate(given["parts"]):
            if isinstance(block.get("text"), str):
                yield block, "text", Area.SYSTEM, index
    for index, message in enumerate(messages(body)):
        if not isinstance(message, dict):
            continue
        content = message.get("content", message.get("parts"))
        if isinstance(message.get("content"), str) and message["content"]:
            yield message, "content", Area.MESSAGES, index
        elif isinstance(content, list):
            for block in content:
                if isinstance(block, dict) and isinstance(block.get("text"), str) and "signature" not in block:
                    yield block, "text", Area.MESSAGES, index


def in_text(before: str, after: str, *causes: str, last: bool = False) -> Kind:
    """Add a different line to the first or last text of both bodies."""

    def change(one: Body, other: Body) -> Expected | None:
        slots = list(text_slots(one))
        if not slots:
            return None
        at = len(slots) - 1 if last else 0
        area, index = slots[at][2:]
        for body, line in ((one, before), (other, after)):
            holder, key, _, _ = list(text_slots(body))[at]
            holder[key] = f"It is {line}, and so on.\n{holder[key]}"
        return Expected(causes, area, index)

    return change


def of_tools(least: int, act: Callable[[list[Any]], int], *causes: str) -> Kind:
    """Change the tools of the second body; `act` returns the index of the first that differs."""

    def change(one: Body, other: Body) -> Expected | None:
        tools = lists_of_tools(other)
        if not tools or len(tools) < least or tools != lists_of_tools(one):
            return None
        if len({json.dumps(tool) for tool in tools}) < len(tools):
            return None
        try:
            return Expected(causes, Area.TOOLS, act(tools))
        except KeyError:  # a provider tool without the part to change
            return None

    return change


def inner(tool: Any) -> Any:
    return next((tool[name] for name in ("function", "toolSpec") if isinstance(tool.get(name), dict)), tool)


def schema(tool: Any) -> Any:
    found = inner(tool)
    for name in ("input_schema", "parameters", "parametersJsonSchema", "parameters_json_schema"):
        if isinstance(found.get(name), dict) and isinstance(found[name].get("properties"), dict):
            return found[name]
    raise KeyError("schema")


def _move(tools: list[Any]) -> int:
    tools.append(tools.pop(0))
    return 0


def _remove(tools: list[Any]) -> int:
    del tools[-2]
    return len(tools) - 1


def _add(tools: list[Any], at: int) -> int:
    new = copy.deepcopy(tools[0])
    inner(new)["name"] = inner(new)["name"] + "_again"
    inner(new)["description"] = "Looks once more."
    tools.insert(at, new)
    return at


def _rename(tools: list[Any]) -> int:
    inner(tools[-1])["name"] = inner(tools[-1])["name"] + "_v"
    return len(tools) - 1


def _describe(tools: list[Any]) -> int:
    inner(tools[-1])["description"] = f"{inner(tools[-1])['description']}".upper() + " Always."
    return len(tools) - 1


def _property(tools: list[Any]) -> int:
    schema(tools[0])["properties"]["another"] = {"type": "string"}
    return 0


def _keys(tools: list[Any]) -> int:
    found = schema(tools[-1])
    turned = dict(reversed(found.items()))
    found.clear()
    found.update(turned)
    return len(tools) - 1


def drop_head(_: Body, other: Body) -> Expected | None:
    def drop(first: int, found: list[Any]) -> None:
        del found[first : first + 2]

    return _cut_messages(other, drop, "messages_dropped")


def compact_head(_: Body, other: Body) -> Expected | None:
    def compact(first: int, found: list[Any]) -> None:
        summary = _message(other, "user", "What happened so far: we looked at the lamp.")
        found[first : first + 3] = [summary]

    return _cut_messages(other, compact, "messages_replaced")


def insert(_: Body, other: Body) -> Expected | None:
    def put(first: int, found: list[Any]) -> None:
        found.insert(first, _message(other, "user", "By the way, the lamp is green."))

    return _cut_messages(other, put, "messages_inserted")


def _cut_messages(other: Body, act: Callable[[int, list[Any]], None], cause: str) -> Expected | None:
    found = messages(other)
    first = _first_message_index(other)
    encoded = [json.dumps(message) for message in found]
    if len(found) - first < 5 or len(set(encoded)) < len(encoded):
        return None
    if "reasoning" in (message.get("type") for message in found[first : first + 2]):
        return None
    act(first, found)
    return Expected((cause,), Area.MESSAGES, first)


def _first_message_index(body: Body) -> int:
    roles = [message.get("role") for message in messages(body)]
    return next((at for at, role in enumerate(roles) if role not in ("system", "developer")), 0)


def _message(body: Body, role: str, text: str) -> Body:
    if messages_name(body) == "contents":
        return {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
    return {"role": role, "content": text}


def go_on(body: Body) -> None:
    """Continue the conversation: the response, and another question."""
    if messages(body):
        body[messages_name(body)] += [
            _message(body, "assistant", "It is on."),
            _message(body, "user", "And the other one?"),
        ]


def edit_last(_: Body, other: Body) -> Expected | None:
    slots = list(text_slots(other))
    if not slots:
        return None
    holder, key, area, index = slots[-1]
    holder[key] = "Quite another beginning. " + holder[key]
    return Expected(("edited",), area, index)


def tell_it_longer(_: Body, other: Body) -> Expected | None:
    slots = list(text_slots(other))
    if not slots:
        return None
    holder, key, area, index = slots[0]
    holder[key] += " Do so at once."
    return Expected(("extended",), area, index)


def cut_text(_: Body, other: Body) -> Expected | None:
    slots = [slot for slot in text_slots(other) if len(slot[0][slot[1]]) > 400 and slot[2] is Area.MESSAGES]
    if not slots:
        return None
    holder, key, area, index = slots[0]
    holder[key] = holder[key][:150] + "\n[...truncated]"
    return Expected(("shortened",), area, index)


def change_model(_: Body, other: Body) -> Expected | None:
    if not other.get("model"):
        return None
    other["model"] += "-20990101"
    return Expected(("model",))


def space(one: Body, other: Body) -> Expected | None:
    slots = list(text_slots(other))
    if not slots:
        return None
    for body, gap in ((one, " "), (other, "  ")):
        holder, key, _, _ = next(text_slots(body))
        holder[key] = f"Look{gap}here. {holder[key]}"
    return Expected(("whitespace",), slots[0][2], slots[0][3])


def ends_of_lines(one: Body, other: Body) -> Expected | None:
    slots = list(text_slots(other))
    if not slots:
        return None
    for body, end in ((one, "\n"), (other, "\r\n")):
        holder, key, _, _ = next(text_slots(body))
        holder[key] = f"Look here.{end}{holder[key]}"
    return Expected(("whitespace",), slots[0][2], slots[0][3])


KINDS: dict[str, Kind] = {
    **{f"{name} at the start": in_text(*given) for name, given in CHANGING.items()},
    **{f"{name} in the last text": in_text(*given, last=True) for name, given in CHANGING.items()},
    "an accent as two characters": in_text("the caf\u00e9", "the cafe\u0301", "unicode_form"),
    "another word": in_text("a quiet lamp", "a noisy one", "edited"),
    "another beginning of a turn": edit_last,
    "a longer text": tell_it_longer,
    "a text that was cut": cut_text,
    "two blanks": space,
    "the ends of lines": ends_of_lines,
    "a tool that moved": of_tools(2, _move, "tools_reordered"),
    "a tool less": of_tools(2, _remove, "tool_removed"),
    "a tool more at the end": of_tools(1, lambda tools: _add(tools, len(tools)), "tool_added"),
    "a tool more in front": of_tools(1, lambda tools: _add(tools, 0), "tool_added"),
    "a tool renamed": of_tools(1, _rename, "tool_changed"),
    "a tool described anew": of_tools(1, _describe, "tool_changed"),
    "a property more": of_tools(1, _property, "tool_changed"),
    "the keys of a schema in another order": of_tools(1, _keys, "key_order"),
    "the head dropped": drop_head,
    "the head folded": compact_head,
    "a message put in": insert,
    "another model": change_model,
}
