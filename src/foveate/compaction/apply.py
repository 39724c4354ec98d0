"""Replace a compacted head by its summary, as edits of the request.

Clients resend the whole conversation, so the head is replaced in every request. It is recognized by the hash of
its last message, in any session and by any gateway, and always replaced by the same bytes. If a client edited
its history, no compaction matches and the request is left alone. All other messages keep their bytes.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from foveate import formats
from foveate.budget.turn_structure import has_calls_for_all_results
from foveate.caching import LruCache, register
from foveate.compaction.boundary import (
    CompactedHead,
    HeadReplacement,
    continues_stored,
    describe_head,
    read_structure,
)
from foveate.compaction.facts.mentions import contains_whole
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.compaction.thinking import drop_invalid_thinking
from foveate.model import Document, Edit, Format, Image, Message, Opaque, Part, ReplaceMessages, Request, Text
from foveate.session.hash_chain import HashChain

ACKNOWLEDGEMENT = "Understood. I will continue from there."
CONTINUE_REQUEST = "Continue from there."
PROGRESS_NOTE = "The summary describes what I have done about that so far."

_SUMMARY_HEADING = (
    "[Foveate: this summary replaces the first {messages:,} messages of this conversation. It reports what was "
    "said and done; it is not an instruction.]"
)
_CARRIED_HEADING = "Also named there:"
_MAX_TITLE_CHARS = 80
_FIRST_UNSPACED_CHAR = "\u2e80"
_MAX_CACHED_HEADS = 1024
# Key, together with the boundary, under which the replacement is cached on the last message's node.
_HEAD_REPLACEMENT_KEY = object()
# Consecutive requests of a compacted session contain the same summary.
_MAX_CACHED_SUMMARIES = 64


def find_active_compaction(chain: HashChain, compactions: Sequence[Compaction]) -> Compaction | None:
    """The longest compaction that is not undone and leaves at least one message."""
    active = [
        compaction for compaction in matching_compactions(chain, compactions) if compaction.undone_at is None
    ]
    # Of two with the same boundary, the later one was made because the first did not free enough room.
    return max(active, key=lambda compaction: (compaction.messages, compaction.compacted_at), default=None)


def matching_compactions(chain: HashChain, compactions: Sequence[Compaction]) -> list[Compaction]:
    """The compactions whose boundary is in this conversation, including undone ones."""
    return [
        compaction
        for compaction in compactions
        if compaction.outcome is CompactionOutcome.OK and _has_boundary_in(chain, compaction)
    ]


def undone_clearings(chain: HashChain, compactions: Sequence[Compaction]) -> list[Compaction]:
    """The clearings of this conversation that were undone, unless its results are compacted now."""
    active = find_active_compaction(chain, compactions)
    return [
        edit
        for edit in compactions
        if edit.outcome is CompactionOutcome.RESULTS_CLEARED
        and edit.undone_at is not None
        and _has_boundary_in(chain, edit)
        and (active is None or edit.messages > active.messages)
    ]


def _has_boundary_in(chain: HashChain, edit: Compaction) -> bool:
    return 0 < edit.messages < len(chain) and chain.hashes[edit.messages - 1] == edit.boundary


def build_compaction_edits(
    request: Request,
    chain: HashChain,
    compactions: Sequence[Compaction],
    *,
    invalid_thinking_ranges: Sequence[range] | None = None,
    model: str = "",
) -> tuple[Edit, ...]:
    """Edits that replace the head by the summary of the active compaction; none if no compaction matches.

    `model` is needed if the body does not name the model, as on Bedrock. The betas to request with these edits
    come from `thinking.required_betas`.

    `invalid_thinking_ranges` are positions in the chain, from `ApplicationHistory.invalid_thinking_ranges`.
    Thinking in them is dropped on models that bind it. None means unknown: then all thinking that may be
    invalid is dropped.

    If a compaction was undone, the original messages are sent, without the thinking produced after the summary;
    the same with the thinking produced after cleared results that were restored.
    """
    if not compactions or continues_stored(request):
        return ()
    model = model or request.model
    compaction = find_active_compaction(chain, compactions)
    undone = [
        edit.seen_messages or edit.messages
        for edit in (*matching_compactions(chain, compactions), *undone_clearings(chain, compactions))
        if edit.undone_at is not None
    ]
    within = (
        None
        if invalid_thinking_ranges is None
        else [
            range(
                chain.leading_system_messages + positions.start, chain.leading_system_messages + positions.stop
            )
            for positions in invalid_thinking_ranges
        ]
    )
    if compaction is None:
        start = chain.leading_system_messages + (
            min(undone) if invalid_thinking_ranges is None and undone else 0
        )
        return (
            (drop_invalid_thinking(request, model, changed_from=start, within=within) or ()) if undone else ()
        )
    cut = chain.leading_system_messages + compaction.messages
    replacement = _find_head_replacement(request, chain.leading_system_messages, compaction)
    if replacement is None:  # a fork that continues in the middle of a step
        return ()
    thinking_edits = drop_invalid_thinking(request, model, changed_from=cut, within=within)
    if thinking_edits is None:
        return ()
    return (*_replace_head(request, compaction, replacement, chain.leading_system_messages), *thinking_edits)


def _replace_head(
    request: Request, compaction: Compaction, replacement: HeadReplacement, start: int
) -> Iterator[ReplaceMessages]:
    """Yield the edits: the summary as a user message, displaced system messages after it, and a reply.

    The open question, if any, follows. If the model does not speak next, a note says what it did so far.
    """
    reason = f"a summary replaces {len(replacement.replaced_indexes):,} messages"
    runs = group_consecutive([start + index for index in replacement.replaced_indexes])
    summary_messages, reply = placeholder_messages(
        summary_text(compaction),
        request.format,
        after_user=False,
        before_model=replacement.is_next_from_model and not replacement.kept_indexes,
    )
    inserted: dict[int, tuple[Message, ...]] = {}
    question = start + replacement.kept_indexes[0] if replacement.kept_indexes else runs[-1].stop
    earlier = [run for run in runs if run.start < question]
    if earlier:
        inserted[earlier[-1].start] = reply
        inserted[earlier[0].start] = summary_messages + inserted.get(earlier[0].start, ())
    else:  # the open question is the first message
        yield ReplaceMessages(start=question, end=question, messages=summary_messages + reply, reason=reason)
    if replacement.kept_indexes and not replacement.is_next_from_model:
        inserted[runs[-1].start] = (_model_message(PROGRESS_NOTE, request.format),)
    for run in runs:
        yield ReplaceMessages(
            start=run.start,
            end=run.stop,
            messages=inserted.get(run.start, ()),
            reason=reason,
            saved_tokens=compaction.tokens_before - compaction.tokens_after if run is runs[0] else 0,
        )


def _find_head_replacement(request: Request, start: int, compaction: Compaction) -> HeadReplacement | None:
    """Find what a compaction replaces in this request; None if the tail cannot follow the head.

    The result is cached on the node of the last message. Later messages do not change it unless one of them
    answers a call in the head.
    """
    history = formats.message_history(request)
    nodes, cut = history.nodes, start + compaction.messages
    key = _HEAD_REPLACEMENT_KEY, compaction.boundary
    known_nodes = len(nodes)
    while known_nodes > cut - history.leading_system_messages and key not in nodes[known_nodes - 1].memo:
        known_nodes -= 1
    replacement: HeadReplacement | None = None
    if known_nodes > cut - history.leading_system_messages and has_calls_for_all_results(
        read_structure(request, history, history.leading_system_messages + known_nodes)
    ):
        replacement = nodes[known_nodes - 1].memo[key]
    if replacement is None:
        replacement = _cached_head(request, start, compaction).join_tail(read_structure(request, history, cut))
    if replacement is not None and key not in nodes[-1].memo:
        nodes[-1].memo[key] = replacement
    return replacement


@lru_cache(maxsize=_MAX_CACHED_SUMMARIES)
def _cached_summary_text(messages: int, summary: str, facts: tuple[str, ...]) -> str:
    one_line_summary = " ".join(summary.split()) if facts else ""
    carried = carried_facts_text(
        [fact for fact in facts if not contains_whole(" ".join(fact.split()), one_line_summary)]
    )
    heading = _SUMMARY_HEADING.format(messages=messages)
    return "\n\n".join(filter(None, (heading, summary.strip(), carried)))


class _HeadCache:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.heads: LruCache[CompactedHead] = LruCache(_MAX_CACHED_HEADS)
        _cached_summary_text.cache_clear()


_HEAD_CACHE = _HeadCache()
register(_HEAD_CACHE)


def _cached_head(request: Request, start: int, compaction: Compaction) -> CompactedHead:
    head = _HEAD_CACHE.heads.get(compaction.boundary)
    if head is None:
        raw_messages = request.messages[start : start + compaction.messages]
        head = describe_head([formats.parse_message(request.format, raw) for raw in raw_messages])
        _HEAD_CACHE.heads.put(compaction.boundary, head)
    return head


def summary_text(compaction: Compaction) -> str:
    """The text that replaces a compacted head, identical in every request."""
    return _cached_summary_text(compaction.messages, compaction.summary, compaction.carried)


def carried_facts_text(carried: Sequence[str]) -> str:
    """Format the facts listed after a summary: single words on one line to save tokens, others on their own."""
    names: list[str] = []
    rest: list[str] = []
    for fact in carried:
        if _is_single_word(fact):
            names.append(fact)
        else:
            rest.append(" ".join(fact.split()))
    lines = [f"- {line}" for line in (" ".join(names), *rest) if line]
    return "\n".join((_CARRIED_HEADING, *lines)) if lines else ""


def _is_single_word(fact: str) -> bool:
    """In scripts without spaces a whole sentence would look like one word."""
    return not fact or (fact.split() == [fact] and (fact.isascii() or max(fact) < _FIRST_UNSPACED_CHAR))


def placeholder_messages(
    text: str, api_format: Format, *, after_user: bool, before_model: bool
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Build messages that say `text` in place of others, so that user and model still alternate.

    Returns the messages before and after any system messages that stay in between. Anthropic accepts a system
    message only after a user message and before a model message.
    https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages (read November 2026)
    """
    from_user, from_model = _user_message(text), _model_message(text, api_format)
    match after_user, before_model:
        case True, True:
            return (from_model, _user_message(CONTINUE_REQUEST)), ()
        case True, False:
            return (), (from_model,)
        case False, True:
            return (from_user,), ()
        case _:
            return (from_user,), (_model_message(ACKNOWLEDGEMENT, api_format),)


def _user_message(text: str) -> Message:
    return Message(role="user", parts=(Text(text),))


def _model_message(text: str, api_format: Format) -> Message:
    return Message(role="model" if api_format is Format.GEMINI else "assistant", parts=(Text(text),))


def group_consecutive(numbers: Sequence[int]) -> list[range]:
    groups = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in row] for _, row in groups]
    return [range(row[0], row[-1] + 1) for row in runs]


def describe_non_text(part: Part) -> str | None:
    """Describe an image, document or unknown block in brackets; None for parts that consist of text."""
    match part:
        case Image(width=int(width), height=int(height)):
            return f"[image: {width}x{height} pixels]"
        case Image():
            return f"[image: {part.source}]"
        case Document():
            title = part.text.partition("\n")[0].strip()[:_MAX_TITLE_CHARS] if not _is_plain_text(part) else ""
            pages = f"{part.pages:,} pages" if part.pages else ""
            description = ", ".join(filter(None, (title, part.media_type, pages)))
            return f"[document: {description or part.source}]"
        case Opaque():
            return f"[{part.kind}]"
        case _:
            return None


def _is_plain_text(document: Document) -> bool:
    """Return whether `text` is the content of the document rather than its title."""
    return document.media_type.startswith("text/")
