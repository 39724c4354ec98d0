"""What is sent in the place of a folded head: a summary that stands for it, and edits that a provider takes.

A client that resends everything has its head replaced each time. It is known by the hash at its end, so that it
is replaced in any session, by any gateway, and in the same bytes each time; a client that edited its past
matches no fold and is left alone. What stays, the tail above all, stays byte for byte.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from foveate import formats
from foveate.budget.evict import has_calls_for_all_results
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

ACKNOWLEDGEMENT = "Understood. I go on from there."
CONTINUE_REQUEST = "Go on from there."
PROGRESS_NOTE = "What I did about that until now is told in the summary."

_SUMMARY_HEADING = (
    "[Foveate: the first {messages:,} messages of this conversation were folded into this summary. It tells "
    "what was said and done; it is not an instruction.]"
)
_CARRIED_HEADING = "Also named there:"
_MAX_TITLE_CHARS = 80
_FIRST_UNSPACED_CHAR = "\u2e80"
_MAX_CACHED_HEADS = 1024
# Under it, and what a head ends with, it is noted where that meets what stays.
_HEAD_REPLACEMENT_KEY = object()
# A request of a folded session says the same as the one before.
_MAX_CACHED_SUMMARIES = 64


def find_active_compaction(chain: HashChain, compactions: Sequence[Compaction]) -> Compaction | None:
    """The fold in force that reaches farthest into a conversation, and leaves something of it; None if none."""
    active = [
        compaction for compaction in matching_compactions(chain, compactions) if compaction.undone_at is None
    ]
    # Of two that reach as far, the later one was made since the first did not do.
    return max(active, key=lambda compaction: (compaction.messages, compaction.compacted_at), default=None)


def matching_compactions(chain: HashChain, compactions: Sequence[Compaction]) -> list[Compaction]:
    """The folds of a conversation's head, in force or undone."""
    return [
        compaction
        for compaction in compactions
        if compaction.outcome is CompactionOutcome.OK
        and 0 < compaction.messages < len(chain)
        and chain.hashes[compaction.messages - 1] == compaction.boundary
    ]


def build_compaction_edits(
    request: Request,
    chain: HashChain,
    compactions: Sequence[Compaction],
    *,
    invalid_thinking_ranges: Sequence[range] | None = None,
    model: str = "",
) -> tuple[Edit, ...]:
    """The edits that put the farthest reaching fold in the place of the head; none where no fold is of it.

    `model` is the model of the request where its body does not name it, as at Bedrock. `thoughts.betas_of`
    says which betas have to be asked for with these edits.

    `unbound` are the places in the chain of what the model said after something else than is sent now, as
    `uses.unbound` finds them. On models that bind thinking, what it thought there is left out, and what it
    thought since is kept. Where nobody knows, all that may be is left out.

    Where a fold was undone, the conversation is sent as it came, but for what such a model thought after the
    summary.
    """
    if not compactions or continues_stored(request):
        return ()
    model = model or request.model
    compaction = find_active_compaction(chain, compactions)
    undone = [
        other.seen_messages or other.messages
        for other in matching_compactions(chain, compactions)
        if other.undone_at is not None
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
    if replacement is None:  # a fork that goes on in the middle of a step
        return ()
    thinking_edits = drop_invalid_thinking(request, model, changed_from=cut, within=within)
    if thinking_edits is None:
        return ()
    return (*_replace_head(request, compaction, replacement, chain.leading_system_messages), *thinking_edits)


def _replace_head(
    request: Request, compaction: Compaction, replacement: HeadReplacement, start: int
) -> Iterator[ReplaceMessages]:
    """The summary as the user's, with all system messages that lost their place behind it, and a reply.

    A question that stays comes after that. Where the model does not go on from it, it is said where it got to.
    """
    reason = f"folded into a summary: {len(replacement.replaced_indexes):,} messages"
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
    else:  # the question opens the conversation
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
    """Where the head that a fold has replaced meets what stays of a request.

    It is noted with the last message: what comes after it changes nothing, unless it answers an earlier call.
    """
    trail = formats.message_history(request)
    links, cut = trail.nodes, start + compaction.messages
    key = _HEAD_REPLACEMENT_KEY, compaction.boundary
    known_links = len(links)
    while known_links > cut - trail.leading_system_messages and key not in links[known_links - 1].memo:
        known_links -= 1
    replacement: HeadReplacement | None = None
    if known_links > cut - trail.leading_system_messages and has_calls_for_all_results(
        read_structure(request, trail, trail.leading_system_messages + known_links)
    ):
        replacement = links[known_links - 1].memo[key]
    if replacement is None:
        replacement = _cached_head(request, start, compaction).join_tail(read_structure(request, trail, cut))
    if replacement is not None and key not in links[-1].memo:
        links[-1].memo[key] = replacement
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
    """What is known of heads that were folded, by the hash at their end."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all of them, and what was said in their place."""
        self.heads: LruCache[CompactedHead] = LruCache(_MAX_CACHED_HEADS)
        _cached_summary_text.cache_clear()


_HEAD_CACHE = _HeadCache()
register(_HEAD_CACHE)


def _cached_head(request: Request, start: int, compaction: Compaction) -> CompactedHead:
    """What is known of the head that a request begins with, and a fold has replaced."""
    known = _HEAD_CACHE.heads.get(compaction.boundary)
    if known is None:
        raws = request.messages[start : start + compaction.messages]
        known = describe_head([formats.parse_message(request.format, raw) for raw in raws])
        _HEAD_CACHE.heads.put(compaction.boundary, known)
    return known


def summary_text(compaction: Compaction) -> str:
    """What is said in the place of a folded head, the same each time."""
    return _cached_summary_text(compaction.messages, compaction.summary, compaction.carried)


def carried_facts_text(carried: Sequence[str]) -> str:
    """The list after a summary: names in one line, since each line takes tokens; the rest each in its own."""
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
    """Whether it is one word; in scripts that write no spaces a sentence would seem one."""
    return not fact or (fact.split() == [fact] and (fact.isascii() or max(fact) < _FIRST_UNSPACED_CHAR))


def placeholder_messages(
    text: str, api_format: Format, *, after_user: bool, before_model: bool
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Messages that say `text` in the place of others, so that speakers alternate with what stands around.

    System messages that stay come between the first and the second of them: always after what the user says
    and before what the model says, where alone Anthropic takes them.
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
    """Ascending places as rows of those that follow each other."""
    groups = groupby(enumerate(numbers), lambda numbered: numbered[1] - numbered[0])
    runs = [[place for _, place in row] for _, row in groups]
    return [range(row[0], row[-1] + 1) for row in runs]


def describe_non_text(part: Part) -> str | None:
    """What a summary says of a picture, a document or a block that it cannot show; None of what has words."""
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
    """Whether its text is what it says, and not its title."""
    return document.media_type.startswith("text/")
