"""Reads sessions from Foveate's own store: whole requests if archived, otherwise charges from the ledger."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from foveate.cost.ledger import Charge
from foveate.errors import MalformedRequest
from foveate.model import Format
from foveate.replay.readers.format_detection import read_fields
from foveate.replay.readers.request_logs import LoggedConversations, LoggedRequest
from foveate.replay.recording import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)
from foveate.session.store import ArchivedRequest
from foveate.store.store import StoredSession, read_sessions

# Stands for messages that were not archived.
_UNKNOWN_MESSAGE = b'{"role":"%s","content":"(not kept)"}'
_ANTHROPIC_PROVIDERS = ("anthropic", "vertex")


def read_store(url: str, model: str | None = None) -> Iterator[Recording]:
    """Read the sessions in a store one at a time, without changing it.

    Raises:
        NothingKept: there is no store.
        StoreUnavailable: it cannot be read.
    """
    for session in read_sessions(url):
        recordings = _read_requests(session, model) or _read_charges(session)
        dollars = [entry.dollars for entry in session.charges if entry.dollars is not None]
        is_whole = len(recordings) == 1 and len(dollars) == len(session.charges) == len(recordings[0].calls)
        for recording in recordings:
            yield (
                replace(recording, reported_dollars=sum(dollars, Decimal(0)))
                if is_whole and dollars
                else recording
            )


def _read_requests(session: StoredSession, model: str | None) -> list[Recording]:
    usage_by_call = {entry.call.id: entry.usage for entry in session.charges}
    conversations = LoggedConversations(RecordingSource.STORE, session.id)
    for request in session.requests:
        if not 200 <= request.status < 300:
            continue
        row = _make_row(request, model)
        if row is None:
            continue
        usage = request.usage or usage_by_call.get(request.id)
        try:
            conversations.add(replace(row, usage=usage), request.id)
        except MalformedRequest:
            continue  # it was sent unchanged, but one of its messages cannot be parsed
    recordings = conversations.recordings()
    size_bytes = sum(len(request.request_body) for request in session.requests)
    return [
        replace(recording, size_bytes=size_bytes if at == 0 else 0) for at, recording in enumerate(recordings)
    ]


def _make_row(request: ArchivedRequest, model: str | None) -> LoggedRequest | None:
    body = read_fields(request.request_body)
    if not body:
        return None
    return LoggedRequest(
        body=body,
        format=request.format,
        model=request.model or model or "",
        at=request.at,
        response_at=request.at,
        session=request.session_id,
        id=request.id,
    )


def _read_charges(session: StoredSession) -> list[Recording]:
    """A session of which only charges are known, assuming that it grew from call to call."""
    last: RecordedMessage | None = None
    calls = []
    for entry in session.charges:
        if last is not None:
            last = _unknown_message(last, "assistant")
        last = _unknown_message(last, "user")
        calls.append(_make_call(entry, session.id, last))
    if not calls:
        return []
    is_anthropic = session.charges[0].call.provider in _ANTHROPIC_PROVIDERS
    return [
        Recording(
            name=session.id,
            source=RecordingSource.STORE,
            format=Format.ANTHROPIC if is_anthropic else Format.CHAT,
            calls=tuple(calls),
            missing=frozenset((MissingPart.SYSTEM, MissingPart.TOOLS, MissingPart.MESSAGES))
            | find_missing_parts(calls),
        )
    ]


def _unknown_message(previous: RecordedMessage | None, role: str) -> RecordedMessage:
    depth = 0 if previous is None else previous.depth + 1
    return RecordedMessage(previous=previous, role=role, raw=_UNKNOWN_MESSAGE % role.encode(), depth=depth)


def _make_call(entry: Charge, session_id: str, last: RecordedMessage) -> RecordedCall:
    return RecordedCall(
        id=entry.call.id,
        conversation=session_id,
        model=entry.call.model,
        at=entry.call.at,
        response_at=entry.call.at,
        last_message=last,
        usage=entry.usage,
        output_is_known=not entry.is_partial,
    )
