"""Plain lists of messages: each answer was asked for with all that stands before it. No bill, no times."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.replay.growing import Growing, role_of
from foveate.replay.log_files import LogFile, trouble
from foveate.replay.marks_seen import marks_seen
from foveate.replay.recognising import Fields, fields_of, items_of, text_of
from foveate.replay.recordings import Call, Lacking, Recording, Said, Source, lacks_of
from foveate.values import Format
from foveate.wire.body import as_text, compact, value

_LISTS = ("messages", "contents", "input", "conversations", "conversation")
# What is sent beside the messages.
_BESIDE = ("model", "system", "tools", "functions", "tool_choice", "systemInstruction", "instructions")
_DEEPEST = 2
_TOOL_CALLS = (b'"tool_calls"', b'"tool_use"', b'"function_call"', b'"functionCall"', b'"toolUse"')
# In lists that are shared to train models on, speakers have other names.
_SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """One list of messages and what stands beside it; `line` is where it begins."""

    line: int
    messages: tuple[bytes, ...]
    named: str = "messages"
    beside: Fields | None = None
    name: str = ""


def read_lists(file: LogFile, model: str | None = None) -> list[Recording]:
    """The conversations in a file, each a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    talks = _Talks()
    for one in _lists(file):
        if one.messages:
            try:
                talks.add(one, _format(one, model))
            except MalformedRequest as error:
                file.broke(one.line, str(error))
    told = [_recording(talk, file, model, is_alone=len(talks.all) == 1) for talk in talks.all]
    return [
        replace(one, broken=tuple(file.broken), size_bytes=file.size_bytes) if at == 0 else one
        for at, one in enumerate(told)
    ]


@dataclass(slots=True)
class _Talk:
    """A conversation: the list that began it, and each answer with what was asked."""

    begun: _List
    format: Format
    asked: list[tuple[Said, bytes]] = field(default_factory=list)


class _Talks:
    """The conversations of a file. A list that begins with all of an earlier one goes on with that."""

    def __init__(self) -> None:
        self.all: list[_Talk] = []
        self._trees: dict[Format, Growing] = {}
        self._ends: dict[Said, _Talk] = {}

    def add(self, one: _List, spoken: Format) -> None:
        """Add a list, or what it has beyond one that is there already."""
        tree = self._trees.setdefault(spoken, Growing())
        talk = _Talk(one, spoken)
        last: Said | None = None
        for raw in one.messages:
            # The items of one answer of OpenAI's Responses stand in a row.
            goes_on = spoken is Format.RESPONSES and last is not None and last.role == "assistant"
            if last is not None and role_of(raw) == "assistant" and not goes_on:
                talk.asked.append((last, raw))
            last = tree.hung(last, raw)
            if last in self._ends:
                talk = self._ends.pop(last)
        if last is None:
            return
        if not talk.asked and last.role != "assistant":  # it was still to be answered
            talk.asked.append((last, b""))
        if talk.begun is one:
            self.all.append(talk)
        self._ends[last] = talk


def _lists(file: LogFile) -> Iterator[_List]:
    """Every list in a file; messages that stand one a line are one list together."""
    first, single = 0, []
    for number, document in file.documents():
        if document.startswith(b"["):
            lists = list(_in_list(items_of(document), number, _DEEPEST))
            yield from lists
            if not lists:
                file.broke(number, trouble(document, "holds no messages"))
            continue
        told = fields_of(document)
        if (one := _in_object(told, number)) is not None:
            yield one
        elif (message := _message(document, told)) is not None:
            first = first or number
            single.append(message)
        else:
            file.broke(number, trouble(document, "holds no messages"))
    yield _List(line=first, messages=tuple(single))


def _in_list(found: list[msgspec.Raw], number: int, deepest: int) -> Iterator[_List]:
    """A list of messages is one conversation; a list of such lists is several."""
    single = []
    for item in found:
        raw = bytes(item)
        if raw.startswith(b"["):
            if deepest:
                yield from _in_list(items_of(raw), number, deepest - 1)
            continue
        told = fields_of(raw)
        if (one := _in_object(told, number)) is not None:
            yield one
        elif (message := _message(raw, told)) is not None:
            single.append(message)
    if single:
        yield _List(line=number, messages=tuple(single))


def _in_object(told: Fields, number: int) -> _List | None:
    for name in _LISTS:
        raw = told.get(name)
        if raw is None:
            continue
        document = bytes(raw)
        if document.startswith(b'"'):  # JSON inside of a string
            document = as_text(value(document)).encode("utf-8", "replace")
        items = [(bytes(item), fields_of(item)) for item in items_of(document)]
        messages = [message for item, inner in items if (message := _message(item, inner)) is not None]
        if messages:
            beside = {key: told[key] for key in _BESIDE if key in told}
            named = name if name in ("contents", "input") else "messages"
            called = text_of(told, "id") or text_of(told, "session_id") or text_of(told, "conversation_id")
            return _List(line=number, messages=tuple(messages), named=named, beside=beside, name=called)
    return None


def _message(raw: bytes, told: Fields) -> bytes | None:
    """A message as it is sent; None where it is none."""
    if "role" in told or ("type" in told and told.keys() & {"call_id", "summary"}):
        return raw
    if "from" in told and "value" in told:
        speaker = text_of(told, "from")
        text = as_text(value(told["value"]))
        return compact({"role": _SPEAKERS.get(speaker, speaker), "content": text})
    return None


def _recording(talk: _Talk, file: LogFile, model: str | None, *, is_alone: bool) -> Recording:
    one, spoken = talk.begun, talk.format
    name = one.name or (file.name if is_alone else f"{file.name}:{one.line}")
    beside = one.beside or {}
    around = msgspec.json.encode(beside) if beside.keys() - {"model"} else b""
    named = text_of(beside, "model") or model or ""
    marks = next((found for raw in (*one.messages, around) if (found := marks_seen(raw)) is not None), None)
    calls = tuple(
        Call(
            id=f"{file.path}:{one.line}:{number}",
            conversation=name,
            model=named,
            at=0.0,
            answers_at=0.0,
            last=last,
            answer=answer,
            around=around,
            marks=marks,
            thinks=b'"thinking"' in answer or b'"reasoning' in answer,
        )
        for number, (last, answer) in enumerate(talk.asked)
    )
    return Recording(
        name=name,
        source=Source.MESSAGES,
        format=spoken,
        calls=calls,
        lacks=lacks_of(calls) | unsaid(calls, beside),
    )


def unsaid(calls: Sequence[Call], beside: Iterable[str]) -> frozenset[Lacking]:
    """Whether system prompt and tools are missing, by what stands beside the messages and in them."""
    lacks, names = set(), set(beside)
    for call in calls:
        if not names & {"tools", "functions", "toolConfig"} and _calls_tools(call.answer):
            lacks.add(Lacking.TOOLS)
    first = next(iter(calls), None)
    has_system = bool(names & {"system", "systemInstruction", "system_instruction", "instructions"})
    if first is not None and not has_system and first.last.history()[0].role not in ("system", "developer"):
        lacks.add(Lacking.SYSTEM)
    return frozenset(lacks)


def _calls_tools(answer: bytes) -> bool:
    return any(name in answer for name in _TOOL_CALLS)


def _format(one: _List, model: str | None) -> Format:
    if one.named == "contents" or any(b'"parts"' in raw[:200] for raw in one.messages[:4]):
        return Format.GEMINI
    if one.named == "input" or any(b'"call_id"' in raw for raw in one.messages):
        return Format.RESPONSES
    body = dict(one.beside or {}) | {"messages": msgspec.Raw(b"[" + b",".join(one.messages) + b"]")}
    if "model" not in body and model:
        body["model"] = msgspec.Raw(compact(model))
    try:
        return wire.recognise(body)
    except MalformedRequest:
        return Format.CHAT
