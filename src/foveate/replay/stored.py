"""What Foveate itself has kept: whole requests where that was wanted, otherwise what the ledger knows."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from foveate.cost.ledger import Entry
from foveate.errors import MalformedRequest
from foveate.replay.recognising import fields_of
from foveate.replay.recordings import Call, Lacking, Recording, Said, Source, lacks_of
from foveate.replay.request_logs import Conversations
from foveate.replay.rows import Row
from foveate.session.requests import KeptRequest
from foveate.store.reading import KeptSession, kept_sessions
from foveate.values import Format

# In the place of messages that were not kept.
_UNKNOWN = b'{"role":"%s","content":"(not kept)"}'
_ANTHROPIC = ("anthropic", "vertex")


def read_store(url: str, model: str | None = None) -> Iterator[Recording]:
    """The sessions that a store knows, read one at a time; nothing in it is changed.

    Raises:
        NothingKept: there is no store.
        StoreUnavailable: it cannot be read.
    """
    for session in kept_sessions(url):
        recordings = _requested(session, model) or _billed(session)
        dollars = [entry.dollars for entry in session.entries if entry.dollars is not None]
        is_whole = len(recordings) == 1 and len(dollars) == len(session.entries) == len(recordings[0].calls)
        for one in recordings:
            yield replace(one, said_dollars=sum(dollars, Decimal(0))) if is_whole and dollars else one


def _requested(session: KeptSession, model: str | None) -> list[Recording]:
    """The kept requests of a session that were answered, each with its bill."""
    bills = {entry.call.id: entry.usage for entry in session.entries}
    conversations = Conversations(Source.STORE, session.id)
    for request in session.requests:
        if not 200 <= request.status < 300:
            continue
        row = _row(request, model)
        if row is None:
            continue
        billed = request.usage or bills.get(request.id)
        try:
            conversations.add(replace(row, billed=billed), request.id)
        except MalformedRequest:
            continue  # it was sent as it came, and a message of it cannot be read
    found = conversations.recordings()
    size_bytes = sum(len(request.sent) for request in session.requests)
    return [replace(one, size_bytes=size_bytes if at == 0 else 0) for at, one in enumerate(found)]


def _row(request: KeptRequest, model: str | None) -> Row | None:
    body = fields_of(request.sent)
    if not body:
        return None
    return Row(
        body=body,
        format=request.format,
        model=request.model or model or "",
        at=request.at,
        answers_at=request.at,
        session=request.session_id,
        id=request.id,
    )


def _billed(session: KeptSession) -> list[Recording]:
    """A session of which only bills are known: it is taken to have grown from call to call."""
    last: Said | None = None
    calls = []
    for entry in session.entries:
        if last is not None:
            last = _said(last, "assistant")
        last = _said(last, "user")
        calls.append(_call(entry, session.id, last))
    if not calls:
        return []
    is_anthropic = session.entries[0].call.provider in _ANTHROPIC
    return [
        Recording(
            name=session.id,
            source=Source.STORE,
            format=Format.ANTHROPIC if is_anthropic else Format.CHAT,
            calls=tuple(calls),
            lacks=frozenset((Lacking.SYSTEM, Lacking.TOOLS, Lacking.MESSAGES)) | lacks_of(calls),
        )
    ]


def _said(before: Said | None, role: str) -> Said:
    depth = 0 if before is None else before.depth + 1
    return Said(before=before, role=role, raw=_UNKNOWN % role.encode(), depth=depth)


def _call(entry: Entry, session_id: str, last: Said) -> Call:
    return Call(
        id=entry.call.id,
        conversation=session_id,
        model=entry.call.model,
        at=entry.call.at,
        answers_at=entry.call.at,
        last=last,
        billed=entry.usage,
        output_is_known=not entry.is_partial,
    )
