"""Read a stored compaction: its original messages, its author and the meaning of its outcome."""

from collections.abc import Sequence
from dataclasses import dataclass

from foveate import formats
from foveate.compaction.apply import describe_non_text
from foveate.compaction.store import Compaction, CompactionOutcome, CompactionStore
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL
from foveate.errors import MalformedRequest
from foveate.model import Format, Part, Request, Text, Thinking, ToolCall, ToolResult
from foveate.session.hash_chain import compute_chain

OUTCOME_MEANINGS = {
    CompactionOutcome.OK: "the summary is sent instead of these messages",
    CompactionOutcome.FAILED: "no summary could be written, so the messages are sent unchanged",
    CompactionOutcome.LOCK_HELD: "another process was compacting the session, or had just done so",
    CompactionOutcome.NO_BOUNDARY: "the history has no place to cut that keeps tool calls and results together",
    CompactionOutcome.TOOL_RESULT_TRUNCATED: "only the beginning and end of a long tool result are sent",
}
_UNDONE_MEANINGS = {
    CompactionOutcome.OK: "the messages are sent unchanged",
    CompactionOutcome.TOOL_RESULT_TRUNCATED: "the tool result is sent in full",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionContents:
    """`api_format` is None if it is not known."""

    compaction: Compaction
    messages: Sequence[bytes]
    api_format: Format | None
    hashes: Sequence[bytes] = ()


async def load_contents(store: CompactionStore, compaction: Compaction) -> CompactionContents:
    return identify_contents(compaction, await store.load_messages(compaction.id))


def identify_contents(compaction: Compaction, messages: Sequence[bytes]) -> CompactionContents:
    for api_format in Format if messages else ():
        request = Request(
            format=api_format, model=compaction.model, body=b"{}", system=(), tools=(), messages=tuple(messages)
        )
        try:
            chain = compute_chain(request)
        except MalformedRequest:
            continue
        # The format is not stored, but it is part of each hash: only the right one gives the boundary.
        if chain.hashes[-1:] == (compaction.boundary,):
            return CompactionContents(
                compaction=compaction, messages=messages, api_format=api_format, hashes=chain.hashes
            )
    return CompactionContents(compaction=compaction, messages=messages, api_format=None)


def undone_meaning(compaction: Compaction) -> str:
    return _UNDONE_MEANINGS.get(compaction.outcome, "it changed nothing")


def describe_author(compaction: Compaction) -> str:
    if compaction.outcome is CompactionOutcome.TOOL_RESULT_TRUNCATED:
        return f"rules, for {compaction.model}"
    return "rules, without a model" if compaction.model == EXTRACTIVE_MODEL else compaction.model


def read_message(api_format: Format | None, raw: bytes) -> tuple[str, str]:
    """Return role and text of a message; the raw text if its format is not known."""
    if api_format is None:
        return "", raw.decode("utf-8", "backslashreplace")
    message = formats.parse_message(api_format, raw)
    return message.role, "\n".join(filter(None, map(_part_text, message.parts)))


def _part_text(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case Thinking():
            return f"[thinking] {part.text}" if part.text else "[thinking]"
        case ToolCall():
            return f"[calls {part.name}] {part.arguments}"
        case ToolResult():
            inner = "\n".join(filter(None, map(_part_text, part.parts)))
            return (
                f"[{'error' if part.is_error else 'result'}{f' of {part.name}' if part.name else ''}] {inner}"
            )
        case _:
            return describe_non_text(part) or ""
