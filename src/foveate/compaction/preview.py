"""Preview a compaction: which messages it would replace, and what the rules would carry from where."""

from collections.abc import Sequence
from dataclasses import dataclass

from foveate import formats
from foveate.compaction.boundary import TurnStructure, find_boundary
from foveate.compaction.facts.extract import ConversationFacts
from foveate.compaction.facts.updates import is_repeated
from foveate.compaction.summarize.extractive import CarriedLine, summarize_by_rules, summary_limit_tokens
from foveate.model import Request
from foveate.tokens.counter import RequestCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedStatement:
    """A sentence that is no longer true, and the one that replaces it. Messages are numbered from 1."""

    text: str
    message: int
    replaced_by: str
    replaced_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPreview:
    """What a compaction of a request would do now.

    `replaced` are the numbers, from 1, of the messages that would be replaced, if there is a place to cut.
    """

    roles: Sequence[str]
    replaced: Sequence[int]
    replaced_tokens: int
    request_tokens: int
    limit_tokens: int
    summary: str
    carried: Sequence[CarriedLine]
    outdated: Sequence[OutdatedStatement]


def preview_compaction(
    request: Request, counter: RequestCounter, *, tail_keep_tokens: int, threshold_tokens: int
) -> CompactionPreview:
    """Cut a request as a compaction would, and summarize its head by rules.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    messages = [formats.parse_message(request.format, raw) for raw in request.messages]
    tokens = [counter.count_message(message).tokens for message in messages]
    cut = find_boundary(messages, tokens, tail_keep_tokens=tail_keep_tokens, threshold_tokens=threshold_tokens)
    positions = list(TurnStructure(messages).replaced_messages(cut)) if cut is not None else []
    head = [messages[position] for position in positions]
    replaced_tokens = sum(tokens[position] for position in positions)
    limit_tokens = summary_limit_tokens(replaced_tokens)
    summary = summarize_by_rules(
        head, limit_tokens=limit_tokens, count=lambda text: counter.text(text).tokens, tail=messages[cut or 0 :]
    )
    roles = [message.role for message in messages]
    return CompactionPreview(
        roles=roles,
        replaced=[position + 1 for position in positions],
        replaced_tokens=replaced_tokens,
        request_tokens=sum(tokens),
        limit_tokens=limit_tokens,
        summary=summary.text,
        carried=[line.moved_to(positions, roles) for line in summary.carried],
        outdated=_find_outdated(
            summary.conversation, [*positions, *range(cut or 0, len(messages))], len(positions)
        ),
    )


def _find_outdated(
    conversation: ConversationFacts | None, positions: Sequence[int], head_count: int
) -> list[OutdatedStatement]:
    """What is no longer true of the first `head_count` messages: first what people said."""
    if conversation is None:
        return []
    pairs = [
        (conversation.statements[old], conversation.statements[new])
        for old, new in conversation.replaced.items()
    ]
    pairs.sort(key=lambda pair: (pair[0].speaker, pair[0].message_index, pair[0].start))
    return [
        OutdatedStatement(
            text=old.text,
            message=positions[old.message_index] + 1,
            replaced_by=new.text,
            replaced_in=positions[new.message_index] + 1,
        )
        for old, new in pairs
        if old.message_index < head_count and not is_repeated(old, new)
    ]
