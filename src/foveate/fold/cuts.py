"""Where a request is cut for a fold: the head that goes, and what a summary of it must not leave out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from foveate import wire
from foveate.budget.eviction import Kind, kind_of
from foveate.fold.boundary import (
    COMPACT_AT_PCT,
    MIN_TURNS_BETWEEN,
    TAIL_KEEP_TOKENS,
    History,
    boundary,
    compacted_text,
    continues_stored,
    trigger_tokens,
)
from foveate.fold.extractive import FLOOR_TOKENS, Count, carry, summary_limit
from foveate.fold.facts import facts_of
from foveate.fold.journal import Fold
from foveate.fold.ranking import ALWAYS, Ranked, rank
from foveate.fold.replacing import summary_text
from foveate.fold.summariser import Span
from foveate.fold.thoughts import unbound_thoughts
from foveate.fold.verifying import Missing, missing_in
from foveate.session.chain import Chain
from foveate.tokens import RequestCounter
from foveate.values import Message, Request, Text

LOCK_TTL_SECONDS = 300.0
LIMIT_SECONDS = 600.0
"""How long a summary may take, with all its retries."""

# However long a session becomes, its summary takes no more than this of what triggers a fold.
_SUMMARY_SHARE = 0.125
# Of the tokens of a summary, so many go to the facts that the model is told to name.
_FACTS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOptions:
    """What the user decides. `extractive`: where no model gives a summary, rules may."""

    compact_at_pct: float = COMPACT_AT_PCT
    tail_keep_tokens: int = TAIL_KEEP_TOKENS
    min_turns_between: int = MIN_TURNS_BETWEEN
    lock_ttl_seconds: float = LOCK_TTL_SECONDS
    limit_seconds: float = LIMIT_SECONDS
    extractive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A request whose head may be folded.

    `request` is what the client sent and `chain` its hashes; `sent` is what goes out: `earlier`, the fold in
    force, put in, and cache marks. `sent_tokens` are those of that. `must_fit`: without a fold it would not.
    """

    agent: str
    session_id: str
    request: Request
    chain: Chain
    sent: Request
    sent_tokens: int
    window_tokens: int
    output_reserve: int
    earlier: Fold | None = None
    must_fit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A head of the first `messages` of a conversation, of `tokens`, for a summary of about `limit_tokens`.

    `ranked` are the facts in it that the tail does not tell.
    """

    messages: int
    tokens: int
    limit_tokens: int
    span: Span
    ranked: Sequence[Ranked]

    def missing(self, summary: str, count: Count) -> Missing:
        """What a summary leaves out."""
        return missing_in(
            summary,
            self.ranked,
            limit_tokens=self.limit_tokens,
            count=count,
            most_tokens=self.span.tokens // 2,
        )


def trigger_of(subject: Subject, options: FoldOptions) -> int:
    """From how many tokens on such a request is folded."""
    return trigger_tokens(subject.window_tokens, subject.output_reserve, options.compact_at_pct)


def answers_since(subject: Subject, seen_messages: int) -> int:
    """How often the model has spoken since the conversation had so many messages."""
    raws = subject.request.messages[subject.chain.head + max(seen_messages - 1, 0) :]
    spoken = [kind_of(wire.message(subject.request.format, raw)) is Kind.MODEL for raw in raws]
    return sum(is_model and not before for before, is_model in pairwise(spoken))


def most_summary_tokens(trigger_tokens: int) -> int:
    """How long a summary may be, whatever it stands for."""
    return max(int(trigger_tokens * _SUMMARY_SHARE), FLOOR_TOKENS)


def limit_of(head_tokens: int, sent_tokens: int, *, most_tokens: int, was_folded: bool) -> int:
    """How long the summary of a head may be, of which so many tokens were sent last."""
    limit = min(summary_limit(head_tokens), most_tokens)
    # Of a head that was folded before, only what is sent of it can become less.
    return min(limit, sent_tokens // 2) if was_folded else limit


def cut_of(subject: Subject, counter: RequestCounter, options: FoldOptions) -> Cut | None:
    """What is to be folded now; None where there is no place to cut, or the provider stores earlier turns.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    if continues_stored(subject.request):
        return None
    raws = subject.request.messages
    messages = [wire.message(subject.request.format, wire.unmarked(raw)) for raw in raws]
    tokens = [counter.message(message).tokens for message in messages]
    start = subject.chain.head
    beyond = start + subject.earlier.messages if subject.earlier is not None else 0
    place = boundary(
        messages,
        tokens,
        tail_keep_tokens=options.tail_keep_tokens,
        trigger_tokens=trigger_of(subject, options),
        beyond=beyond,
    )
    if place is None or place <= start:
        return None
    # A summary that could not be sent is not made.
    if unbound_thoughts(subject.request, subject.request.model, changed_from=place) is None:
        return None
    most_tokens = most_summary_tokens(trigger_of(subject, options))
    return _cut(subject, messages, tokens, place, beyond, most_tokens, lambda text: counter.text(text).tokens)


def _cut(
    subject: Subject,
    messages: Sequence[Message],
    tokens: Sequence[int],
    place: int,
    beyond: int,
    most_tokens: int,
    count: Count,
) -> Cut:
    history = History(messages)
    replaced, new = history.folded(place), history.folded(place, beyond=beyond)
    head, tail = _readable(messages[at] for at in replaced), _readable(messages[place:])
    earlier = summary_text(subject.earlier) if subject.earlier is not None else ""
    before = sum(tokens[at] for at in replaced)
    replaced_tokens = sum(tokens[at] for at in new) + count(earlier)
    limit = limit_of(before, replaced_tokens, most_tokens=most_tokens, was_folded=subject.earlier is not None)
    there = {fact.text for fact in facts_of(tail)}
    ranked = [
        one for one in rank(facts_of(head), len(head)) if one.fact.kind in ALWAYS or one.fact.text not in there
    ]
    wanted = carry("", ranked, limit_tokens=int(limit * _FACTS_SHARE), count=count)
    return Cut(
        messages=place - subject.chain.head,
        tokens=before,
        limit_tokens=limit,
        ranked=ranked,
        span=Span(
            sent=subject.sent,
            sent_tokens=subject.sent_tokens,
            head=head,
            new=_readable(messages[at] for at in new),
            tail=tail,
            tokens=replaced_tokens,
            earlier=earlier,
            facts=tuple(fact.text for fact in wanted),
        ),
    )


def _readable(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages with each summary that Anthropic itself has made as the user's words.

    It stands in what the model said next, and for all before it: clients may have dropped what the user said.
    """
    found: list[Message] = []
    for message in messages:
        summaries = [text for part in message.parts if (text := compacted_text(part))]
        found += [Message(role="user", parts=(Text(text),)) for text in summaries]
        rest = tuple(part for part in message.parts if not compacted_text(part))
        if rest or not summaries:
            found.append(Message(role=message.role, parts=rest, name=message.name))
    return tuple(found)
