"""Oracle of request edits: apply them the obvious way to a JSON tree."""

from collections import defaultdict
from typing import Any

from foveate.model import (
    Area,
    BreakpointStyle,
    CacheBreakpoint,
    Edit,
    Format,
    InsertParts,
    Message,
    Opaque,
    Part,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
    Text,
    Ttl,
)
from tests.support.oracles.json_tree import TreeEntry, TreeNode, scan

SYSTEM = {Format.ANTHROPIC: "system", Format.RESPONSES: "instructions", Format.BEDROCK: "system"}
MESSAGES = {Format.RESPONSES: "input", Format.GEMINI: "contents"}
BREAKPOINT_KEYS = ("cache_control", "prompt_cache_breakpoint")
TEXTS = ("text", "input_text", "output_text")


class EditedTree:
    """The tree of a request, to which edits are applied."""

    def __init__(self, api_format: Format, body: bytes, style: BreakpointStyle | None) -> None:
        self.api_format = api_format
        self.root = scan(body)
        self.style = style
        self.content = "parts" if api_format is Format.GEMINI else "content"

    def apply(self, edits: list[Edit]) -> TreeNode:
        rows: dict[tuple[Area, int | None], dict[str, Any]] = defaultdict(
            lambda: {"texts": {}, "breakpoints": {}, "inserts": defaultdict(list)}
        )
        messages: list[Edit] = []
        parameters: list[SetParameter] = []
        order: tuple[int, ...] = ()
        for edit in edits:
            match edit:
                case InsertParts(place=place) if place.area is Area.MESSAGES and place.block is None:
                    messages.append(edit)
                case CacheBreakpoint(place=place) | ReplaceText(place=place) | InsertParts(place=place):
                    in_message = place.area is Area.MESSAGES
                    row = rows[place.area, place.index if in_message else None]
                    block = place.block if in_message else place.index
                    if isinstance(edit, CacheBreakpoint):
                        row["breakpoints"][block] = edit
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
                self.edit_system(row)
            elif area is Area.MESSAGES and index is not None:
                self.edit_message(index, row, bool(messages))
        self.edit_tools(rows[Area.TOOLS, None]["breakpoints"], order)
        self.edit_messages(messages)
        for parameter in parameters:  # new members are appended last
            self.set_parameter(parameter)
        return self.root

    def set_parameter(self, edit: SetParameter) -> None:
        owner: Any = self.root
        for name in edit.path[:-1]:
            inner = owner.get(name)
            if inner is None or (isinstance(inner, TreeNode) and inner.raw == b"null"):
                values = [
                    entry.current
                    for entry in owner.entries
                    if entry.key == name and isinstance(entry.current, dict)
                ]
                inner = values[0] if values else {}
                owner.put(name, inner)
            owner = inner
            if isinstance(owner, dict):
                owner[edit.path[-1]] = edit.value
                return
        owner.put(edit.path[-1], edit.value)

    def edit_tools(self, breakpoints: dict[int, CacheBreakpoint], order: tuple[int, ...]) -> None:
        if not breakpoints and not order:
            return
        holder = self.root
        if self.api_format is Format.BEDROCK:
            holder = self.root.get("toolConfig") or holder
        listed = holder.get("tools")
        assert listed is not None
        if self.api_format is Format.GEMINI:
            listed = next(filter(None, (entry.get("functionDeclarations") for entry in listed.items())))
        slots = [entry for entry in listed.entries if not is_cache_point(entry.current)]
        if order and len(slots) < len(listed.entries):
            holder.put("tools", self.reorder_with_cache_points(listed, breakpoints, order))
            return
        tools = [entry.current for entry in slots]
        for position, index in enumerate(order or range(len(slots))):
            slots[position].current = tools[index]
            if index in breakpoints:
                self.add_breakpoint(listed, slots[position], breakpoints[index])

    def reorder_with_cache_points(
        self, listed: TreeNode, breakpoints: dict[int, CacheBreakpoint], order: tuple[int, ...]
    ) -> list[Any]:
        """Reorder Bedrock tools together with the cache points that follow them."""
        groups: list[list[Any]] = [[]]
        for entry in listed.items():
            if not is_cache_point(entry):
                groups.append([])
            groups[-1].append(entry)
        for index, cache_breakpoint in breakpoints.items():
            groups[index + 1][1:2] = [self.breakpoint_value(cache_breakpoint)]
        return [entry for group in (groups[0], *(groups[index + 1] for index in order)) for entry in group]

    def edit_system(self, row: dict[str, Any]) -> None:
        if self.api_format is Format.RESPONSES:
            self.edit_instructions(row)
        elif self.api_format is not Format.GEMINI:
            self.edit_content(self.root, SYSTEM[self.api_format], row, "")
        else:
            present = self.root.get("systemInstruction")
            if present is not None and present.first_char == "{":
                self.edit_content(present, "parts", row, "")
                return
            holder = TreeNode(b"{}", 0, 2)
            if present is not None and present.first_char == '"':
                holder.entries = [TreeEntry(present, present, "parts")]
            self.edit_content(holder, "parts", row, "")
            now = holder.entries[0].current
            self.root.put("systemInstruction", {"parts": now} if isinstance(now, list) else now)

    def edit_instructions(self, row: dict[str, Any]) -> None:
        present = self.root.get("instructions")
        old = present.value() if present is not None else None
        texts = [part.text for part in row["inserts"].get(0, [])]
        if old is not None:
            texts += [row["texts"].get(0, old)]
            texts += [part.text for part in row["inserts"].get(1, [])]
        self.root.put("instructions", "\n\n".join(filter(None, texts)))

    def edit_message(self, index: int, row: dict[str, Any], more_follow: bool) -> None:
        name = MESSAGES.get(self.api_format, "messages")
        listed = self.root.get(name)
        assert listed is not None
        if listed.first_char == '"':
            holder = TreeNode(b"{}", 0, 2, [TreeEntry(listed, listed, "content")], 1)
            self.edit_content(holder, "content", row, "user")
            now = holder.entries[0].current
            is_message = isinstance(now, list) or more_follow
            self.root.put(name, [{"role": "user", "content": now}] if is_message else now)
            return
        message = listed if listed.first_char == "{" else listed.items()[index]
        fields = message.value()
        role = fields.get("role", "")
        if self.api_format is Format.CHAT and role == "tool":
            self.edit_tool_result(message, "content", row)
        elif self.api_format is Format.RESPONSES and fields.get("type", "message") != "message":
            self.edit_tool_result(message, "output", row)
        else:
            self.edit_content(message, self.content, row, role)

    def edit_tool_result(self, message: TreeNode, name: str, row: dict[str, Any]) -> None:
        """Edit a message that is a tool result."""
        content = message.get(name)
        assert content is not None
        text, cache_breakpoint = row["texts"].get(0), row["breakpoints"].get(0)
        if cache_breakpoint is not None and self.has_breakpoint(message):
            message.put(self.breakpoint_key, self.breakpoint_value(cache_breakpoint))
            cache_breakpoint = None
        earlier_breakpoints: dict[str, Any] = {}
        for part in content.items() if content.first_char == "[" else []:
            own = {name: part.get(name) for name in BREAKPOINT_KEYS if part.value().get(name) is not None}
            earlier_breakpoints = (
                {name: part.get(name) for name in BREAKPOINT_KEYS if part.get(name)}
                if own
                else earlier_breakpoints
            )
        new = {self.breakpoint_key: self.breakpoint_value(cache_breakpoint)} if cache_breakpoint else {}
        if text is not None:
            is_block = content.first_char == "[" or cache_breakpoint
            message.put(name, [self.text_block(text, "") | earlier_breakpoints | new] if is_block else text)
        elif cache_breakpoint is not None and content.first_char == '"':
            message.put(name, [self.text_block(content, "") | new])
        elif cache_breakpoint is not None:
            self.add_breakpoint(content, content.entries[-1], cache_breakpoint)

    def has_breakpoint(self, owner: TreeNode) -> bool:
        return owner.value().get(self.breakpoint_key) is not None

    def edit_content(self, owner: TreeNode, name: str, row: dict[str, Any], role: str) -> None:
        new = {block: [self.new_block(part, role) for part in parts] for block, parts in row["inserts"].items()}
        present = owner.get(name)
        if self.api_format is Format.CHAT and present is not None and self.has_breakpoint(owner):
            self.add_message_breakpoint(owner, present, row)
        if present is None or present.raw == b"null":
            if new:
                owner.put(name, new[0])
        elif present.first_char == '"':
            text = row["texts"].get(0, present)
            is_empty = not (text.value() if isinstance(text, TreeNode) else text).strip()
            if new and is_empty and not row["breakpoints"]:
                owner.put(name, [*new.get(0, []), *new.get(1, [])])
                return
            if not new and not row["breakpoints"]:
                owner.put(name, text)
                return
            listed: list[Any] = [self.text_block(text, role)]
            if cache_breakpoint := row["breakpoints"].get(0):
                if self.style is BreakpointStyle.CACHE_POINT:
                    listed.append(self.breakpoint_value(cache_breakpoint))
                else:
                    listed[0][self.breakpoint_key] = self.breakpoint_value(cache_breakpoint)
            owner.put(name, [*new.get(0, []), *listed, *new.get(1, [])])
        elif present.first_char == "{":
            self.replace_text(present, row["texts"].get(0))
            if new:
                owner.put(name, [*new.get(0, []), present, *new.get(1, [])])
        else:
            self.edit_blocks(present, row, new)

    def add_message_breakpoint(self, message: TreeNode, content: TreeNode, row: dict[str, Any]) -> None:
        """Put the breakpoint of the last block on the message if the message had one and the block none."""
        last = len(content.entries) - 1 if content.first_char == "[" else 0
        own = content.entries[last].current.value() if content.first_char == "[" and content.entries else {}
        if last in row["breakpoints"] and all(own.get(name) is None for name in BREAKPOINT_KEYS):
            message.put(self.breakpoint_key, self.breakpoint_value(row["breakpoints"].pop(last)))

    def edit_blocks(self, present: TreeNode, row: dict[str, Any], new: dict[int, list[Any]]) -> None:
        blocks = [entry for entry in present.entries if not is_cache_point(entry.current)]
        for block, entry in enumerate(blocks):
            if block in row["texts"]:
                self.replace_text(entry.current, row["texts"][block])
            if block in row["breakpoints"]:
                self.add_breakpoint(present, entry, row["breakpoints"][block])
        for block, inserted in new.items():
            position = present.entries.index(blocks[block]) if block < len(blocks) else len(present.entries)
            present.entries[position:position] = [TreeEntry(None, block_value) for block_value in inserted]

    def replace_text(self, block: TreeNode, text: str | None) -> None:
        if text is None:
            return
        fields = block.value()
        if fields.get("type") == "tool_result":
            content = block.get("content")
            is_list = content is not None and content.first_char == "["
            block.put("content", [self.text_block(text, "")] if is_list else text)
        elif self.api_format is Format.GEMINI and (response := block.get("functionResponse")):
            response.put("response", {"result": text})
        elif self.api_format is Format.BEDROCK and (response := block.get("toolResult")):
            response.put("content", [{"text": text}])
        else:
            block.put("text", text)

    def add_breakpoint(self, listed: TreeNode, entry: TreeEntry, cache_breakpoint: CacheBreakpoint) -> None:
        if self.style is not BreakpointStyle.CACHE_POINT:
            entry.current.put(self.breakpoint_key, self.breakpoint_value(cache_breakpoint))
            return
        after = listed.entries.index(entry) + 1
        if after < len(listed.entries) and is_cache_point(listed.entries[after].current):
            listed.entries[after].current = self.breakpoint_value(cache_breakpoint)
        else:
            listed.entries.insert(after, TreeEntry(None, self.breakpoint_value(cache_breakpoint)))

    def edit_messages(self, edits: list[Edit]) -> None:
        if not edits:
            return
        name = MESSAGES.get(self.api_format, "messages")
        current: Any = next((e.current for e in reversed(self.root.entries) if e.key == name), None)
        entries = current.entries if isinstance(current, TreeNode) and current.first_char == "[" else []
        if isinstance(current, list):
            entries = [TreeEntry(None, message) for message in current]
        elif isinstance(current, TreeNode) and current.first_char == "{":
            entries = [TreeEntry(current, current)]
        elif isinstance(current, TreeNode) and current.first_char == '"':
            entries = [TreeEntry(None, {"role": "user", "content": current})]
        before: dict[int, list[Any]] = defaultdict(list)
        dropped: set[int] = set()
        for edit in edits:
            if isinstance(edit, ReplaceMessages):
                dropped |= set(range(edit.start, edit.end))
                before[edit.start] += map(self.new_message, edit.messages)
            elif isinstance(edit, InsertParts):
                before[edit.place.index] += [self.new_message(Message(role=edit.role, parts=edit.parts))]
        result = []
        for position in range(len(entries) + 1):
            result += [TreeEntry(None, message) for message in before[position]]
            result += entries[position : position + 1] if position not in dropped else []
        if isinstance(current, TreeNode) and current.first_char == "[":
            current.entries = result
        elif dropped or any(before.values()):
            self.root.put(name, [entry.current for entry in result])

    def new_message(self, message: Message) -> dict[str, Any]:
        parts: Any = [self.new_block(part, message.role) for part in message.parts]
        is_typed = self.api_format not in (Format.GEMINI, Format.BEDROCK)
        if is_typed and len(message.parts) == 1 and isinstance(message.parts[0], Text):
            parts = message.parts[0].text
        return {"role": message.role, self.content: parts}

    def new_block(self, part: Part, role: str) -> Any:
        if isinstance(part, Text):
            return self.text_block(part.text, role)
        assert isinstance(part, Opaque)
        return scan(part.raw).value()

    def text_block(self, text: Any, role: str) -> dict[str, Any]:
        match self.api_format:
            case Format.GEMINI | Format.BEDROCK:
                return {"text": text}
            case Format.RESPONSES:
                return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
            case _:
                return {"type": "text", "text": text}

    @property
    def breakpoint_key(self) -> str:
        return str(self.style)

    def breakpoint_value(self, cache_breakpoint: CacheBreakpoint) -> dict[str, Any]:
        ttl_field = {"ttl": "1h"} if cache_breakpoint.ttl is Ttl.ONE_HOUR else {}
        match self.style:
            case BreakpointStyle.PROMPT_CACHE_BREAKPOINT:
                return {"mode": "explicit"}
            case BreakpointStyle.CACHE_POINT:
                return {"cachePoint": {"type": "default", **ttl_field}}
            case _:
                return {"type": "ephemeral", **ttl_field}


def is_cache_point(node: Any) -> bool:
    return "cachePoint" in (node.value() if isinstance(node, TreeNode) and node.first_char == "{" else node)
