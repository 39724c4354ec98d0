"""What edits mean, done the obvious way on a tree of the request: the oracle of `wire.write`."""

from collections import defaultdict
from typing import Any

from foveate.values import (
    Area,
    Edit,
    Format,
    Insert,
    Mark,
    MarkStyle,
    Message,
    Part,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
    Text,
    Ttl,
)
from tests.json_tree import Entry, Node, scan

SYSTEM = {Format.ANTHROPIC: "system", Format.RESPONSES: "instructions", Format.BEDROCK: "system"}
MESSAGES = {Format.RESPONSES: "input", Format.GEMINI: "contents"}
MARKS = ("cache_control", "prompt_cache_breakpoint")
TEXTS = ("text", "input_text", "output_text")


class Edited:
    """The tree of a request, with edits."""

    def __init__(self, spoken: Format, body: bytes, style: MarkStyle | None) -> None:
        self.spoken = spoken
        self.root = scan(body)
        self.style = style
        self.content = "parts" if spoken is Format.GEMINI else "content"

    def apply(self, edits: list[Edit]) -> Node:
        rows: dict[tuple[Area, int | None], dict[str, Any]] = defaultdict(
            lambda: {"texts": {}, "marks": {}, "inserts": defaultdict(list)}
        )
        messages: list[Edit] = []
        parameters: list[SetParameter] = []
        order: tuple[int, ...] = ()
        for edit in edits:
            match edit:
                case Insert(place=place) if place.area is Area.MESSAGES and place.block is None:
                    messages.append(edit)
                case Mark(place=place) | ReplaceText(place=place) | Insert(place=place):
                    in_message = place.area is Area.MESSAGES
                    row = rows[place.area, place.index if in_message else None]
                    block = place.block if in_message else place.index
                    if isinstance(edit, Mark):
                        row["marks"][block] = edit
                    elif isinstance(edit, ReplaceText):
                        row["texts"][block] = edit.text
                    else:
                        row["inserts"][block] += edit.parts
                case ReplaceMessages():
                    if edit.messages or edit.start < edit.end:
                        messages.append(edit)
                case ReorderTools():
                    order = edit.order
                case SetParameter():
                    parameters.append(edit)
        for (area, index), row in rows.items():
            if area is Area.SYSTEM:
                self.system(row)
            elif area is Area.MESSAGES and index is not None:
                self.message(index, row, bool(messages))
        self.tools(rows[Area.TOOLS, None]["marks"], order)
        self.messages(messages)
        for parameter in parameters:  # new members come last
            self.set_parameter(parameter)
        return self.root

    def set_parameter(self, edit: SetParameter) -> None:
        owner: Any = self.root
        for name in edit.path[:-1]:
            inner = owner.get(name)
            if inner is None or (isinstance(inner, Node) and inner.raw == b"null"):
                found = [
                    entry.now for entry in owner.entries if entry.key == name and isinstance(entry.now, dict)
                ]
                inner = found[0] if found else {}
                owner.put(name, inner)
            owner = inner
            if isinstance(owner, dict):
                owner[edit.path[-1]] = edit.value
                return
        owner.put(edit.path[-1], edit.value)

    def tools(self, marks: dict[int, Mark], order: tuple[int, ...]) -> None:
        if not marks and not order:
            return
        holder = self.root
        if self.spoken is Format.BEDROCK:
            holder = self.root.get("toolConfig") or holder
        listed = holder.get("tools")
        assert listed is not None
        if self.spoken is Format.GEMINI:
            listed = next(filter(None, (entry.get("functionDeclarations") for entry in listed.items())))
        slots = [entry for entry in listed.entries if not is_point(entry.now)]
        if order and len(slots) < len(listed.entries):
            holder.put("tools", self.with_points(listed, marks, order))
            return
        tools = [entry.now for entry in slots]
        for position, index in enumerate(order or range(len(slots))):
            slots[position].now = tools[index]
            if index in marks:
                self.mark(listed, slots[position], marks[index])

    def with_points(self, listed: Node, marks: dict[int, Mark], order: tuple[int, ...]) -> list[Any]:
        """Bedrock's tools in another order, behind each the points that stood there."""
        groups: list[list[Any]] = [[]]
        for entry in listed.items():
            if not is_point(entry):
                groups.append([])
            groups[-1].append(entry)
        for index, mark in marks.items():
            groups[index + 1][1:2] = [self.mark_value(mark)]
        return [entry for group in (groups[0], *(groups[index + 1] for index in order)) for entry in group]

    def system(self, row: dict[str, Any]) -> None:
        if self.spoken is Format.RESPONSES:
            self.instructions(row)
        elif self.spoken is not Format.GEMINI:
            self.row(self.root, SYSTEM[self.spoken], row, "")
        else:
            present = self.root.get("systemInstruction")
            if present is not None and present.sign == "{":
                self.row(present, "parts", row, "")
                return
            held = Node(b"{}", 0, 2)
            if present is not None and present.sign == '"':
                held.entries = [Entry(present, present, "parts")]
            self.row(held, "parts", row, "")
            now = held.entries[0].now
            self.root.put("systemInstruction", {"parts": now} if isinstance(now, list) else now)

    def instructions(self, row: dict[str, Any]) -> None:
        present = self.root.get("instructions")
        old = present.value() if present is not None else None
        texts = [part.text for part in row["inserts"].get(0, [])]
        if old is not None:
            texts += [row["texts"].get(0, old)]
            texts += [part.text for part in row["inserts"].get(1, [])]
        self.root.put("instructions", "\n\n".join(filter(None, texts)))

    def message(self, index: int, row: dict[str, Any], more_follow: bool) -> None:
        name = MESSAGES.get(self.spoken, "messages")
        listed = self.root.get(name)
        assert listed is not None
        if listed.sign == '"':
            held = Node(b"{}", 0, 2, [Entry(listed, listed, "content")], 1)
            self.row(held, "content", row, "user")
            now = held.entries[0].now
            is_message = isinstance(now, list) or more_follow
            self.root.put(name, [{"role": "user", "content": now}] if is_message else now)
            return
        message = listed if listed.sign == "{" else listed.items()[index]
        found = message.value()
        role = found.get("role", "")
        if self.spoken is Format.CHAT and role == "tool":
            self.whole(message, "content", row)
        elif self.spoken is Format.RESPONSES and found.get("type", "message") != "message":
            self.whole(message, "output", row)
        else:
            self.row(message, self.content, row, role)

    def whole(self, message: Node, name: str, row: dict[str, Any]) -> None:
        """A message that is a tool's result."""
        held = message.get(name)
        assert held is not None
        text, mark = row["texts"].get(0), row["marks"].get(0)
        if mark is not None and self.is_marked(message):
            message.put(self.mark_name, self.mark_value(mark))
            mark = None
        kept: dict[str, Any] = {}
        for part in held.items() if held.sign == "[" else []:
            own = {name: part.get(name) for name in MARKS if part.value().get(name) is not None}
            kept = {name: part.get(name) for name in MARKS if part.get(name)} if own else kept
        new = {self.mark_name: self.mark_value(mark)} if mark else {}
        if text is not None:
            is_block = held.sign == "[" or mark
            message.put(name, [self.text_block(text, "") | kept | new] if is_block else text)
        elif mark is not None and held.sign == '"':
            message.put(name, [self.text_block(held, "") | new])
        elif mark is not None:
            self.mark(held, held.entries[-1], mark)

    def is_marked(self, owner: Node) -> bool:
        return owner.value().get(self.mark_name) is not None

    def row(self, owner: Node, name: str, row: dict[str, Any], role: str) -> None:
        new = {block: [self.new(part, role) for part in parts] for block, parts in row["inserts"].items()}
        present = owner.get(name)
        if self.spoken is Format.CHAT and present is not None and self.is_marked(owner):
            self.mark_message(owner, present, row)
        if present is None or present.raw == b"null":
            if new:
                owner.put(name, new[0])
        elif present.sign == '"':
            text = row["texts"].get(0, present)
            is_empty = not (text.value() if isinstance(text, Node) else text).strip()
            if new and is_empty and not row["marks"]:
                owner.put(name, [*new.get(0, []), *new.get(1, [])])
                return
            if not new and not row["marks"]:
                owner.put(name, text)
                return
            listed: list[Any] = [self.text_block(text, role)]
            if mark := row["marks"].get(0):
                if self.style is MarkStyle.CACHE_POINT:
                    listed.append(self.mark_value(mark))
                else:
                    listed[0][self.mark_name] = self.mark_value(mark)
            owner.put(name, [*new.get(0, []), *listed, *new.get(1, [])])
        elif present.sign == "{":
            self.text(present, row["texts"].get(0))
            if new:
                owner.put(name, [*new.get(0, []), present, *new.get(1, [])])
        else:
            self.listed(present, row, new)

    def mark_message(self, message: Node, content: Node, row: dict[str, Any]) -> None:
        """A mark on the last block, where the message bears one and the block none."""
        last = len(content.entries) - 1 if content.sign == "[" else 0
        own = content.entries[last].now.value() if content.sign == "[" and content.entries else {}
        if last in row["marks"] and all(own.get(name) is None for name in MARKS):
            message.put(self.mark_name, self.mark_value(row["marks"].pop(last)))

    def listed(self, present: Node, row: dict[str, Any], new: dict[int, list[Any]]) -> None:
        blocks = [entry for entry in present.entries if not is_point(entry.now)]
        for block, entry in enumerate(blocks):
            if block in row["texts"]:
                self.text(entry.now, row["texts"][block])
            if block in row["marks"]:
                self.mark(present, entry, row["marks"][block])
        for block, inserted in new.items():
            where = present.entries.index(blocks[block]) if block < len(blocks) else len(present.entries)
            present.entries[where:where] = [Entry(None, one) for one in inserted]

    def text(self, block: Node, text: str | None) -> None:
        if text is None:
            return
        found = block.value()
        if found.get("type") == "tool_result":
            content = block.get("content")
            is_list = content is not None and content.sign == "["
            block.put("content", [self.text_block(text, "")] if is_list else text)
        elif self.spoken is Format.GEMINI and (answer := block.get("functionResponse")):
            answer.put("response", {"result": text})
        elif self.spoken is Format.BEDROCK and (answer := block.get("toolResult")):
            answer.put("content", [{"text": text}])
        else:
            block.put("text", text)

    def mark(self, listed: Node, entry: Entry, mark: Mark) -> None:
        if self.style is not MarkStyle.CACHE_POINT:
            entry.now.put(self.mark_name, self.mark_value(mark))
            return
        after = listed.entries.index(entry) + 1
        if after < len(listed.entries) and is_point(listed.entries[after].now):
            listed.entries[after].now = self.mark_value(mark)
        else:
            listed.entries.insert(after, Entry(None, self.mark_value(mark)))

    def messages(self, edits: list[Edit]) -> None:
        if not edits:
            return
        name = MESSAGES.get(self.spoken, "messages")
        now: Any = next((e.now for e in reversed(self.root.entries) if e.key == name), None)
        entries = now.entries if isinstance(now, Node) and now.sign == "[" else []
        if isinstance(now, list):
            entries = [Entry(None, one) for one in now]
        elif isinstance(now, Node) and now.sign == "{":
            entries = [Entry(now, now)]
        elif isinstance(now, Node) and now.sign == '"':
            entries = [Entry(None, {"role": "user", "content": now})]
        before: dict[int, list[Any]] = defaultdict(list)
        dropped: set[int] = set()
        for edit in edits:
            if isinstance(edit, ReplaceMessages):
                dropped |= set(range(edit.start, edit.end))
                before[edit.start] += map(self.new_message, edit.messages)
            elif isinstance(edit, Insert):
                before[edit.place.index] += [self.new_message(Message(role=edit.role, parts=edit.parts))]
        result = []
        for position in range(len(entries) + 1):
            result += [Entry(None, one) for one in before[position]]
            result += entries[position : position + 1] if position not in dropped else []
        if isinstance(now, Node) and now.sign == "[":
            now.entries = result
        elif dropped or any(before.values()):
            self.root.put(name, [entry.now for entry in result])

    def new_message(self, message: Message) -> dict[str, Any]:
        parts: Any = [self.new(part, message.role) for part in message.parts]
        is_typed = self.spoken not in (Format.GEMINI, Format.BEDROCK)
        if is_typed and len(message.parts) == 1 and isinstance(message.parts[0], Text):
            parts = message.parts[0].text
        return {"role": message.role, self.content: parts}

    def new(self, part: Part, role: str) -> Any:
        return self.text_block(part.text, role) if isinstance(part, Text) else scan(part.raw).value()  # type: ignore[union-attr]

    def text_block(self, text: Any, role: str) -> dict[str, Any]:
        match self.spoken:
            case Format.GEMINI | Format.BEDROCK:
                return {"text": text}
            case Format.RESPONSES:
                return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
            case _:
                return {"type": "text", "text": text}

    @property
    def mark_name(self) -> str:
        return str(self.style)

    def mark_value(self, mark: Mark) -> dict[str, Any]:
        long = {"ttl": "1h"} if mark.ttl is Ttl.ONE_HOUR else {}
        match self.style:
            case MarkStyle.BREAKPOINT:
                return {"mode": "explicit"}
            case MarkStyle.CACHE_POINT:
                return {"cachePoint": {"type": "default", **long}}
            case _:
                return {"type": "ephemeral", **long}


def is_point(node: Any) -> bool:
    """Whether it is Bedrock's mark."""
    return "cachePoint" in (node.value() if isinstance(node, Node) and node.sign == "{" else node)
