"""Sessions of the coding agent pi: every answer was asked for with all that stands before it on its branch.

Lines name the one before them (`parentId`); in the first version of the format they did not, and each follows
the last. A compaction stands for all before the first entry that it keeps. What was said is told in the format
of Anthropic, whatever API it went to.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec

from foveate.replay.log_files import TOO_DEEP, LogFile, decoded, why_broken
from foveate.replay.recordings import Call, Lacking, Recording, Said, Source, lacks_of
from foveate.replay.times import seconds
from foveate.values import CacheUsage, Format, Usage
from foveate.wire.body import as_list, as_record, as_text, compact
from foveate.wire.usage import tokens

# An answer that was not to the end is left out of what is sent next.
_UNFINISHED = ("aborted", "error")
_SUMMARIES = frozenset(("branchSummary", "compactionSummary"))


class _Line(msgspec.Struct, rename="camel"):
    type: Any = None
    id: Any = None
    parent_id: Any = msgspec.UNSET
    timestamp: Any = None
    message: Any = None
    content: Any = None
    summary: Any = None
    model_id: Any = None
    first_kept_entry_id: Any = None
    first_kept_entry_index: Any = None


_LINES = msgspec.json.Decoder(_Line)


class _Step:
    """What an entry says, behind all that stands before it; entries of one speaker in a row are one message.

    `opens` says that the user speaks in it, and not a tool.
    """

    __slots__ = ("blocks", "entry", "opens", "prev", "role", "said", "turns")

    def __init__(
        self, prev: "_Step | None", entry: str, role: str, blocks: list[bytes], *, opens: bool
    ) -> None:
        self.prev = prev
        self.entry = entry
        self.role = role
        self.blocks = blocks
        self.opens = opens
        self.said: Said | None = None
        self.turns = 0


def read_pi(file: LogFile, model: str | None = None) -> list[Recording]:
    """The session of a log.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    session = _Session(file.name, model)
    for number, raw in file.objects():
        try:
            line = decoded(_LINES, raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            file.broke(number, why_broken(error))
            continue
        try:
            session.add(line)
        except RecursionError:  # read, but too deep to be written
            file.broke(number, TOO_DEEP)
    if not session.calls and not session.is_told:
        return []
    calls = session.in_order()
    dollars = [
        call.billed.said_dollars for call in calls if call.billed and call.billed.said_dollars is not None
    ]
    return [
        Recording(
            name=session.name,
            source=Source.PI,
            format=Format.ANTHROPIC,
            calls=calls,
            lacks=frozenset((Lacking.SYSTEM, Lacking.TOOLS)) | lacks_of(calls),
            broken=tuple(file.broken),
            said_dollars=sum(dollars, Decimal(0)) if dollars else None,
            size_bytes=file.size_bytes,
        )
    ]


class _Session:
    """A session as far as it was read."""

    def __init__(self, name: str, model: str | None) -> None:
        self.name = name
        self.calls: list[tuple[Call, int]] = []
        self.is_told = False
        self._fallback = model or ""
        self._model = ""
        self._steps: dict[str, _Step | None] = {}
        self._last: _Step | None = None
        self._ids: set[str] = set()
        self._index = -1

    def add(self, line: _Line) -> None:
        """Read on by one line."""
        self._index += 1
        kind = as_text(line.type)
        if kind == "session":
            self.is_told = True
            self.name = as_text(line.id) or self.name
            self._model = as_text(line.model_id) or self._model
            return
        if kind == "model_change":
            self._model = as_text(line.model_id) or self._model
        entry = as_text(line.id) or str(self._index)
        before = self._before(line)
        match kind:
            case "message":
                step = self._spoken(before, entry, line)
            case "compaction":
                step = self._compacted(before, entry, line)
            case "branch_summary":
                step = _said_by_user(before, entry, line.summary)
            case "custom_message":
                step = _said_by_user(before, entry, line.content)
            case _:
                step = before
        self._steps[entry] = step
        self._last = step

    def in_order(self) -> tuple[Call, ...]:
        """The calls by time, each of them thinking if one of its turn does."""
        thinking = {turns for call, turns in self.calls if call.thinks}
        told = [replace(call, thinks=turns in thinking) for call, turns in self.calls]
        return tuple(sorted(told, key=lambda call: call.at))

    def _compacted(self, before: _Step | None, entry: str, line: _Line) -> _Step | None:
        """A summary, and behind it all that it keeps; all is summed up where nothing is called so."""
        index = line.first_kept_entry_index
        first = as_text(line.first_kept_entry_id) or (str(index) if isinstance(index, int) else "")
        kept: list[_Step] = []
        if first in self._steps:
            end = self._steps[first]  # the last that was said up to there
            here = before
            while here is not None and here is not end:
                kept.append(here)
                here = here.prev
            if here is not None and here.entry == first:
                kept.append(here)
        step = _said_by_user(None, entry, line.summary)
        for one in reversed(kept):
            step = _Step(step, one.entry, one.role, one.blocks, opens=one.opens)
        return step

    def _before(self, line: _Line) -> _Step | None:
        if line.parent_id is msgspec.UNSET:
            return self._last
        if line.parent_id is None:
            return None
        return self._steps.get(as_text(line.parent_id), self._last)

    def _spoken(self, before: _Step | None, entry: str, line: _Line) -> _Step | None:
        said = as_record(line.message)
        match as_text(said.get("role")):
            case "assistant":
                blocks = _blocks(said.get("content"))
                self._ask(before, entry, line, said, blocks)
                is_whole = as_text(said.get("stopReason")) not in _UNFINISHED
                if not blocks or not is_whole:
                    return before
                return _Step(before, entry, "assistant", _raws(blocks), opens=False)
            case "toolResult":
                return _Step(before, entry, "user", _raws([_result(said)]), opens=False)
            case "bashExecution":
                if said.get("excludeFromContext") is True:
                    return before
                ran = f"Ran `{as_text(said.get('command'))}`\n{as_text(said.get('output'))}"
                return _said_by_user(before, entry, ran)
            case role:
                return _said_by_user(before, entry, said.get("summary" if role in _SUMMARIES else "content"))

    def _ask(
        self,
        before: _Step | None,
        entry: str,
        line: _Line,
        said: Mapping[str, Any],
        blocks: list[dict[str, Any]],
    ) -> None:
        """Note the call that an answer shows; it is none where nothing was read or written."""
        billed = _billed(as_record(said.get("usage")))
        if billed is not None and not billed.cache.input_tokens and not billed.output_tokens:
            return
        last = _said(before) or Said(before=None, role="user", raw=_message("user", []), depth=0)
        at = seconds(said.get("timestamp")) or seconds(line.timestamp)
        model = as_text(said.get("model")) or self._model or self._fallback
        named = as_text(said.get("responseId")) or _name(self.name, entry, model, at, billed)
        named = f"{named}:{entry}" if named in self._ids else named
        self._ids.add(named)
        call = Call(
            id=named,
            conversation=self.name,
            model=model,
            at=at,
            answers_at=at,
            last=last,
            answer=_message("assistant", _raws(blocks)),
            thinks=any(block["type"] == "thinking" for block in blocks),
            billed=billed,
        )
        self.calls.append((call, before.turns if before is not None else 0))


def _name(session: str, entry: str, model: str, at: float, billed: Usage | None) -> str:
    """A call's name in every file that has it: a session that is forked copies what was said before."""
    if not at or billed is None:
        return f"{session}:{entry}"
    return f"{model}:{at:.3f}:{billed.cache.input_tokens}:{billed.output_tokens}"


def _said_by_user(before: _Step | None, entry: str, content: object) -> _Step | None:
    blocks = _blocks(content)
    return _Step(before, entry, "user", _raws(blocks), opens=True) if blocks else before


def _said(step: _Step | None) -> Said | None:
    """The message that ends with `step`, with all before it."""
    runs: list[list[_Step]] = []
    here = step
    while here is not None and here.said is None:
        run = [here]
        while here.prev is not None and here.prev.role == here.role:
            here = here.prev
            run.append(here)
        runs.append(run)
        here = here.prev
    for run in reversed(runs):
        first, last = run[-1], run[0]
        before = first.prev.said if first.prev is not None else None
        blocks = [block for one in reversed(run) for block in one.blocks]
        last.turns = (first.prev.turns if first.prev is not None else 0) + any(one.opens for one in run)
        last.said = Said(
            before=before,
            role=last.role,
            raw=_message(last.role, blocks),
            depth=0 if before is None else before.depth + 1,
        )
    return step.said if step is not None else None


def _message(role: str, blocks: Iterable[bytes]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks))


def _raws(blocks: Iterable[Mapping[str, Any]]) -> list[bytes]:
    return [compact(block) for block in blocks]


def _blocks(content: object) -> list[dict[str, Any]]:
    """Blocks in the words of Anthropic."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(as_record(block)) for block in as_list(content) if isinstance(block, dict)]


def _block(block: dict[str, Any]) -> dict[str, Any]:
    match block.get("type"):
        case "toolCall":
            name, arguments = as_text(block.get("name")), block.get("arguments")
            return {"type": "tool_use", "id": as_text(block.get("id")), "name": name, "input": arguments or {}}
        case "thinking":
            signature = as_text(block.get("thinkingSignature"))
            return {"type": "thinking", "thinking": as_text(block.get("thinking")), "signature": signature}
        case "text":
            return {"type": "text", "text": as_text(block.get("text"))}
        case "image" if "data" in block:
            source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
            return {"type": "image", "source": source}
        case _:
            return block if isinstance(block.get("type"), str) else {**block, "type": "unknown"}


def _result(said: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": as_text(said.get("toolCallId")),
        "content": _blocks(said.get("content")),
    }
    return found | {"is_error": True} if said.get("isError") is True else found


def _billed(usage: Mapping[str, Any]) -> Usage | None:
    if not usage:
        return None
    total = as_record(usage.get("cost")).get("total")
    is_sum = isinstance(total, int | float) and not isinstance(total, bool) and total >= 0
    return Usage(
        cache=CacheUsage(
            uncached=tokens(usage.get("input")),
            read=tokens(usage.get("cacheRead")),
            written_5m=tokens(usage.get("cacheWrite")),
        ),
        output_tokens=tokens(usage.get("output")),
        said_dollars=Decimal(repr(total)) if is_sum else None,
        raw=compact(usage),
    )
