"""The page of one compaction, and compactions as the page of a session shows them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from foveate.budget import graphemes
from foveate.caching import LruCache
from foveate.compaction.inspection import (
    OUTCOME_MEANINGS,
    EditGain,
    describe_author,
    group_facts,
    identify_contents,
    load_gains,
    read_message,
    undone_meaning,
)
from foveate.compaction.store import Compaction, CompactionStore
from foveate.errors import MalformedRequest
from foveate.model import Format
from foveate.store import Store
from foveate.store.dashboard import CompactedMessage, CompactedMessages
from foveate.web.formatting import shorten_name
from foveate.web.page import GatewayData, PageNotFound, PageRequest, WebPage

MAX_CALLS = 5_000
"""With more calls, sums of a session's calls would be too slow."""
_MESSAGES_AT_EACH_END = 3
"""Messages shown from the start and the end of each compaction of a list."""
_EXCERPT_CHARS = 300
_SUMMARY_CHARS = 1_500
_MESSAGE_CHARS = 4_000
_MAX_FACTS = 40
_FACT_CHARS = 300
_MAX_SUMMARY_CHARS = 100_000
_MESSAGES_PER_PAGE = 30
_MAX_CACHED_FORMATS = 1024
_MAX_MESSAGE_NUMBER = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
    text: str
    left_out_chars: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """A compacted message and its number in the conversation.

    `is_raw`: it is shown as received, because it cannot be parsed or is far too long. `left_out` messages
    before it are not shown.
    """

    number: int
    role: str
    content: ShownText
    is_raw: bool
    size_bytes: int
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionDetails:
    """A compaction with some of the messages that it was the first to replace, of `message_count`.

    `is_superseded`: it is part of a later one, whose summary is sent.
    """

    compaction: Compaction
    message_count: int
    is_superseded: bool
    messages: Sequence[ShownMessage]
    summary: ShownText
    facts: Mapping[str, Sequence[str]]
    """Facts added to the summary, by section. All names are one of them."""
    facts_left_out: int = 0
    gains: Sequence[str] = ()

    @property
    def is_in_force(self) -> bool:
        """Return whether its summary or cut is sent."""
        is_made = self.compaction.outcome.changes_requests
        return is_made and self.compaction.undone_at is None and not self.is_superseded

    @property
    def meaning(self) -> str:
        if self.compaction.undone_at is not None:
            return undone_meaning(self.compaction)
        return (
            "included in a later compaction"
            if self.is_superseded
            else OUTCOME_MEANINGS[self.compaction.outcome]
        )

    @property
    def author(self) -> str:
        """The model or rules that made the summary."""
        return describe_author(self.compaction)

    @property
    def saved_share(self) -> float | None:
        """The share of the replaced tokens that is no longer sent; None if nothing is saved."""
        saved = self.compaction.tokens_before - self.compaction.tokens_after
        return saved / self.compaction.tokens_before if saved > 0 else None


async def load_compactions(store: Store, compactions: Sequence[Compaction]) -> Sequence[CompactionDetails]:
    spans = await store.dashboard.compacted_ends(
        [compaction.id for compaction in compactions], per_end=_MESSAGES_AT_EACH_END
    )
    api_formats = await _find_api_formats(store.compactions, spans)
    gains = {
        id_: gain.sentences()
        for session_id in {compaction.session_id for compaction in compactions}
        for id_, gain in (await _load_gains(store, session_id)).items()
    }
    return await asyncio.to_thread(
        lambda: [
            _describe_compaction(
                compaction,
                spans[compaction.id],
                api_formats.get(spans[compaction.id].first_compaction_id),
                message_chars=_EXCERPT_CHARS,
                summary_chars=_SUMMARY_CHARS,
                max_facts=_MAX_FACTS,
                gains=gains.get(compaction.id, ()),
            )
            for compaction in compactions
        ]
    )


async def _load_gains(store: Store, session_id: str) -> Mapping[str, EditGain]:
    """Load the gains of a session's edits, but not what they have saved if it has too many calls."""
    session = await store.totals.get_session(session_id)
    is_long = session is not None and session.totals.calls > MAX_CALLS
    return await load_gains(store.compactions, None if is_long else store.ledger, session_id)


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    compaction_id = page_request.path_parameters["id"]
    compaction = await data.store.compactions.get_compaction(compaction_id)
    if compaction is None or not page_request.viewer.can_see(compaction.agent):
        raise PageNotFound(f"No compaction {shorten_name(compaction_id, 80)!r}. It may have been deleted.")
    first = page_request.number("from", 1, min_value=1, max_value=_MAX_MESSAGE_NUMBER)
    span = await data.store.dashboard.compacted_page(compaction_id, skip=first - 1, limit=_MESSAGES_PER_PAGE)
    api_formats = await _find_api_formats(data.store.compactions, {compaction_id: span})
    gains = await _load_gains(data.store, compaction.session_id)
    details = await asyncio.to_thread(
        lambda: _describe_compaction(
            compaction,
            span,
            api_formats.get(span.first_compaction_id),
            message_chars=_MESSAGE_CHARS,
            summary_chars=_MAX_SUMMARY_CHARS,
            max_facts=len(compaction.carried),
            gains=gains[compaction_id].sentences() if compaction_id in gains else (),
        )
    )
    context = {
        "details": details,
        "first": first,
        "last": first + len(span.messages) - 1,
        "next": first + _MESSAGES_PER_PAGE if first - 1 + len(span.messages) < span.total else None,
        "previous": max(1, min(first, span.total + 1) - _MESSAGES_PER_PAGE) if first > 1 else None,
    }
    return WebPage(
        template="compaction.html",
        title=f"Compaction {shorten_name(compaction_id, 40)}",
        context=context,
        watched_session_id=compaction.session_id,
    )


_FORMAT_CACHE: LruCache[tuple[Format | None]] = LruCache(_MAX_CACHED_FORMATS)
"""Formats of conversations by the boundary of their first compaction.

Finding one means reading all compacted messages.
"""


async def _find_api_formats(
    store: CompactionStore, spans: Mapping[str, CompactedMessages]
) -> dict[str | None, Format]:
    """Return the formats of conversations by their first compaction, as far as they are known."""
    formats: dict[str | None, Format] = {}
    for first_id in {
        span.first_compaction_id for span in spans.values() if span.first_compaction_id and span.messages
    }:
        compaction = await store.get_compaction(first_id)
        if compaction is None:
            continue
        cached = _FORMAT_CACHE.get(compaction.boundary)
        if cached is None:
            messages = await store.load_messages(first_id)
            cached = ((await asyncio.to_thread(identify_contents, compaction, messages)).api_format,)
            _FORMAT_CACHE.put(compaction.boundary, cached)
        if cached[0] is not None:
            formats[first_id] = cached[0]
    return formats


def _describe_compaction(
    compaction: Compaction,
    span: CompactedMessages,
    api_format: Format | None,
    *,
    message_chars: int,
    summary_chars: int,
    max_facts: int,
    gains: Sequence[str],
) -> CompactionDetails:
    messages = [_show_message(message, api_format, message_chars) for message in span.messages]
    shown_facts = [shorten_name(fact, _FACT_CHARS) for fact in compaction.carried[:max_facts]]
    facts: dict[str, list[str]] = {}
    for line in group_facts(shown_facts):
        facts.setdefault(line.section, []).append(", ".join(line.items) or line.text)
    return CompactionDetails(
        compaction=compaction,
        gains=gains,
        message_count=span.total,
        is_superseded=span.is_superseded,
        messages=messages[:1]
        + [
            replace(message, left_out=message.number - previous.number - 1)
            for previous, message in pairwise(messages)
        ],
        summary=_truncate(compaction.summary, summary_chars),
        facts=facts,
        facts_left_out=len(compaction.carried) - len(shown_facts),
    )


def _show_message(message: CompactedMessage, api_format: Format | None, max_chars: int) -> ShownMessage:
    role, text, is_raw = "", "", True
    if api_format is not None and message.is_complete:
        try:
            role, text = read_message(api_format, message.message)
            is_raw = False
        except MalformedRequest:  # shown as received
            pass
    if is_raw:
        _, text = read_message(None, message.message)
    return ShownMessage(
        number=message.position + 1,
        role=role,
        content=_truncate(text, max_chars),
        is_raw=is_raw,
        size_bytes=message.size_bytes,
    )


def _truncate(text: str, max_chars: int) -> ShownText:
    """Truncate a text without splitting a grapheme."""
    if len(text) <= max_chars:
        return ShownText(text=text)
    end = graphemes.boundary_at_or_before(text[: 2 * max_chars], max_chars)
    return ShownText(text=text[:end], left_out_chars=len(text) - end)
