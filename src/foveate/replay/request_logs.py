"""Logs of requests, one a line: bodies as they were sent, bare or with what came back for them.

A body holds the whole conversation so far, so what one body has in common with an earlier one is held once. It
takes time in proportion to the bytes of the log: each message is looked up behind the one before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec

from foveate.errors import MalformedRequest
from foveate.replay.growing import Growing
from foveate.replay.lists import unsaid
from foveate.replay.log_files import LogFile, trouble
from foveate.replay.marks_seen import marks_seen
from foveate.replay.recognising import Fields, fields_of, items_of, rows_in, text_of
from foveate.replay.recordings import Call, Recording, Said, Source, lacks_of
from foveate.replay.rows import MESSAGES, Row, row_of
from foveate.replay.times import seconds
from foveate.values import Format
from foveate.wire.body import as_record, as_text, compact, value

_WRAPPER = "generateContentRequest"
# What observers call what is no call of a model, and the model where they do not simply call it that.
_NO_CALLS = frozenset(("SPAN", "EVENT", "TOOL", "CHAIN", "AGENT", "RETRIEVER", "EVALUATOR", "GUARDRAIL"))
_MODELS = ("provided_model_name", "providedModelName", "request_model", "model_name", "modelName")
_STATUSES = ("status", "status_code", "statusCode", "response_status", "responseStatus", "level")
_FAILED = frozenset(("failure", "failed", "error"))
_LEAST_ERROR = 400
_REPLIES = ("response", "response_body", "responseBody")
_THINKING = ("thinking", "reasoning")


@dataclass(slots=True)
class Conversations:
    """Calls that are added one by one, put together by the conversation that they go on with."""

    source: Source
    name: str
    _trees: dict[Format, Growing] = field(default_factory=dict)
    _arounds: dict[bytes, bytes] = field(default_factory=dict)
    _beside: dict[tuple[Format, str], set[str]] = field(default_factory=dict)
    _calls: dict[tuple[Format, str], list[Call]] = field(default_factory=dict)
    _roots: dict[Said, str] = field(default_factory=dict)

    def add(self, row: Row, called: str) -> None:
        """Add a call under an id of its own, `called` where the row has none; none where nothing is said.

        Raises:
            MalformedRequest: a message of it cannot be read.
        """
        tree = self._trees.setdefault(row.format, Growing())
        body = fields_of(row.body[_WRAPPER]) if _WRAPPER in row.body else row.body
        named = next((name for name in MESSAGES if name in body), "")
        last = tree.last(_messages(body.get(named)))
        if last is None:
            return
        root = tree.root(last)
        session = row.session or self._roots.setdefault(root, f"{self.name}:{len(self._roots) + 1}")
        beside = {name: raw for name, raw in body.items() if name != named}
        around = msgspec.json.encode(beside) if beside else b""
        call = Call(
            id=row.id or called,
            conversation=self._roots.get(root, session),
            model=row.model,
            at=row.at,
            answers_at=row.answers_at,
            last=last,
            answer=row.answer,
            around=self._arounds.setdefault(around, around),
            thinks=_thinks(body),
            # A bill tells it better.
            marks=marks_seen(bytes(body[named])) or marks_seen(around) if row.billed is None else None,
            billed=row.billed,
        )
        self._calls.setdefault((row.format, session), []).append(call)
        self._beside.setdefault((row.format, session), set()).update(beside)

    def recordings(self) -> list[Recording]:
        """A recording for each conversation; those of one call alone are put together."""
        alone: dict[Format, list[Call]] = {}
        found = []
        for (spoken, session), calls in self._calls.items():
            if len(calls) == 1 and session.startswith(f"{self.name}:") and len(self._calls) > 1:
                alone.setdefault(spoken, []).extend(calls)
            else:
                name = self.name if len(self._calls) == 1 and session in self._roots.values() else session
                found.append(self._recording(name, spoken, calls, self._beside[spoken, session]))
        for spoken, calls in alone.items():
            beside = {"tools", "system"}  # each had its own
            found.append(self._recording(f"{self.name} ({spoken})", spoken, calls, beside))
        return found

    def _recording(self, name: str, spoken: Format, calls: list[Call], beside: set[str]) -> Recording:
        ordered = tuple(sorted(calls, key=lambda call: call.at))
        lacks = lacks_of(ordered)
        if not any(call.around for call in calls):
            lacks |= unsaid(ordered, beside)
        return Recording(name=name, source=self.source, format=spoken, calls=ordered, lacks=lacks)


def read_requests(file: LogFile, model: str | None = None) -> list[Recording]:
    """The conversations in a log.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    conversations = Conversations(Source.REQUESTS, file.name)
    for number, document in file.documents():
        for at, told in enumerate(_rows(document)):
            try:
                row = _row(told, model)
                if row is None:
                    continue
                conversations.add(row, f"{file.path}:{number}:{at}")
            except MalformedRequest as error:
                file.broke(number, str(error))
        if not document.startswith(b"[") and not fields_of(document):
            file.broke(number, trouble(document, "is JSON, but no object"))
    return [
        replace(one, broken=tuple(file.broken), size_bytes=file.size_bytes) if at == 0 else one
        for at, one in enumerate(conversations.recordings())
    ]


def _rows(document: bytes) -> Iterator[Fields]:
    """The rows of a document: itself, or each of a list, or of one that it holds."""
    if document.startswith(b"["):
        yield from map(fields_of, items_of(document))
    elif told := fields_of(document):
        held = [item for rows in rows_in(told) for item in rows]
        yield from map(fields_of, held) if held and row_of(told) is None else (told,)


def _row(told: Fields, model: str | None) -> Row | None:
    """The call that a row shows; None where it asked for no text, is none of a model, or was refused."""
    if text_of(told, "type").upper() in _NO_CALLS and told.keys() & {"traceId", "trace_id"}:
        return None
    row = row_of(told)
    if row is None or (row.billed is None and _is_refused(told)):
        return None
    named = row.model or next((name for name in (text_of(told, one) for one in _MODELS) if name), "")
    at = row.at or _answered_at(told)
    return replace(row, model=named or model or "", at=at, answers_at=row.answers_at or at)


def _is_refused(told: Fields) -> bool:
    """Whether a row says that its request failed, for which nobody is billed."""
    for name in _STATUSES:
        said = value(told[name]) if name in told else None
        if (isinstance(said, int) and said >= _LEAST_ERROR) or as_text(said).lower() in _FAILED:
            return True
    answers = (fields_of(told[name]) for name in _REPLIES if name in told)
    return any("error" in one and bytes(one["error"]) != b"null" for one in answers)


def _answered_at(told: Fields) -> float:
    """The time that an answer bears itself, where the row has none."""
    for name in _REPLIES:
        answer = fields_of(told[name]) if name in told else {}
        for inner in (answer, fields_of(answer.get("body", b""))):
            said = next((inner[created] for created in ("created", "created_at") if created in inner), None)
            if said is not None and (at := seconds(value(said))):
                return at
    return 0.0


def _thinks(body: Fields) -> bool:
    """Whether a body asks the model to think first."""
    thinking, reasoning = (as_record(value(body[name])) if name in body else {} for name in _THINKING)
    return thinking.get("type") in ("enabled", "adaptive") or reasoning.get("effort") not in (None, "none")


def _messages(raw: msgspec.Raw | None) -> Iterator[bytes]:
    if raw is None:
        return
    if bytes(memoryview(raw)[:1]) == b'"':  # the input of OpenAI's Responses can be a mere string
        text = as_text(value(raw))
        if text:
            yield compact({"role": "user", "content": text})
        return
    for item in items_of(raw):
        found = bytes(item)
        if found.startswith(b"{"):
            yield found
