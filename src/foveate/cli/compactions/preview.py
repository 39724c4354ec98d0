"""`foveate compactions preview`: load a stored request and show what a compaction of it would do."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from foveate import formats
from foveate.budget.model_limits import find_context_window
from foveate.cli.compactions.output import carried_lines, describe_origin, list_lines
from foveate.cli.shared.console import Display
from foveate.cli.shared.options import MAX_LISTED_IDS, resolve_prefix
from foveate.cli.shared.tables import style_text, wrap_text
from foveate.compaction.boundary import compaction_threshold_tokens
from foveate.compaction.preview import CompactionPreview, preview_compaction
from foveate.engine.spending.cost_ceiling import read_cost_parameters
from foveate.errors import BadOption
from foveate.session.store import ArchivedRequest
from foveate.tokens.offline_counters import counter_for

if TYPE_CHECKING:
    from foveate.store import Store

# For models whose context window is not known.
_DEFAULT_WINDOW_TOKENS = 200_000
_MAX_RESERVE_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPreview:
    stored: ArchivedRequest
    threshold_tokens: int
    keep_tokens: int
    preview: CompactionPreview


async def load_preview(store: "Store", prefix: str, keep_tokens: int) -> SessionPreview:
    """Preview the compaction of the newest stored request of a session.

    Raises:
        BadOption: no stored request or several sessions match.
    """
    stored = await _find_request(store, prefix)
    request = formats.parse_request(stored.original_body or stored.request_body, stored.format)
    traced = await store.traces.get(stored.id)
    if traced is not None and traced.trace.window_tokens is not None:
        # The agent's own window, if `window_tokens` sets one.
        window_tokens, reserved_tokens = traced.trace.window_tokens, traced.trace.reserved_tokens
    else:
        window = find_context_window(stored.model)
        window_tokens = window.tokens if window is not None else _DEFAULT_WINDOW_TOKENS
        requested_tokens = read_cost_parameters(request).output_tokens or 0
        reserved_tokens = min(requested_tokens, window_tokens // _MAX_RESERVE_SHARE)
    threshold_tokens = compaction_threshold_tokens(window_tokens, reserved_tokens)
    return SessionPreview(
        stored=stored,
        threshold_tokens=threshold_tokens,
        keep_tokens=keep_tokens,
        preview=preview_compaction(
            request,
            counter_for(stored.model),
            tail_keep_tokens=keep_tokens,
            threshold_tokens=threshold_tokens,
        ),
    )


async def _find_request(store: "Store", prefix: str) -> ArchivedRequest:
    if not prefix:
        raise BadOption("the id of a session or request is missing: give it or its first characters")
    sessions, ids = await store.find_archived_ids(prefix, limit=MAX_LISTED_IDS + 1)
    session_id = resolve_prefix(sessions, prefix, "session") if sessions and prefix not in ids else None
    if session_id is not None:
        newest = await store.request_archive.find_by_session(session_id, limit=1)
        if newest:
            return newest[0]
    request_id = resolve_prefix(ids, prefix, "request")
    found = await store.request_archive.get(request_id) if request_id is not None else None
    if found is None:
        raise BadOption(
            f"no stored session or request has an id that starts with {prefix!r:.80}: "
            "the gateway stores requests only if `keep_requests` is on"
        )
    return found


def preview_object(found: SessionPreview) -> dict[str, object]:
    preview = found.preview
    return {
        "session_id": found.stored.session_id,
        "request_id": found.stored.id,
        "agent": found.stored.agent,
        "model": found.stored.model,
        "messages": len(preview.roles),
        "replaced_messages": list(preview.replaced),
        "replaced_tokens": preview.replaced_tokens,
        "request_tokens": preview.request_tokens,
        "threshold_tokens": found.threshold_tokens,
        "limit_tokens": preview.limit_tokens,
        "summary": preview.summary,
        "carried": [asdict(line) for line in preview.carried],
        "outdated": [asdict(statement) for statement in preview.outdated],
    }


def preview_lines(found: SessionPreview, display: Display, *, full: bool = False) -> Iterator[str]:
    preview, stored = found.preview, found.stored
    yield style_text(f"session {stored.session_id} of agent {stored.agent}, {stored.model}", "bold", display)
    yield from wrap_text(
        f"Its last stored request has {len(preview.roles):,} messages with {preview.request_tokens:,} tokens. "
        f"A compaction starts at {found.threshold_tokens:,} tokens, if it is enabled.",
        display,
    )
    if not preview.replaced:
        yield from wrap_text(
            f"Nothing would be replaced now: the newest {found.keep_tokens:,} tokens stay. "
            "Use --keep-tokens to preview a shorter rest.",
            display,
        )
        return
    stay = len(preview.roles) - len(preview.replaced)
    yield from wrap_text(
        f"Messages {preview.replaced[0]:,} to {preview.replaced[-1]:,} would be replaced: "
        f"{preview.replaced_tokens:,} tokens by a summary of at most {preview.limit_tokens:,}. "
        f"The other {stay:,} message{'s stay' if stay != 1 else ' stays'}.",
        display,
    )
    yield from carried_lines(preview.carried, display, full=full)
    if preview.outdated:
        texts = [
            f"{statement.text}{_origin(preview, statement.message)} Now: {statement.replaced_by}"
            f"{_origin(preview, statement.replaced_in)}"
            for statement in preview.outdated
        ]
        yield from list_lines("No longer true, not carried", texts, display, full=full)


def _origin(preview: CompactionPreview, message: int) -> str:
    return describe_origin(message, preview.roles[message - 1])
