"""Points at which recorded sessions are compacted, and the summaries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compaction_sessions import RecordedSession
from foveate.compaction.boundary import TurnStructure, compaction_threshold_tokens, find_boundary
from foveate.compaction.plan import max_summary_tokens
from foveate.compaction.summarize.extractive import summarize_by_rules, summary_limit_tokens
from foveate.model import Message
from foveate.tokens import counter_for

DATA = Path(__file__).parents[2] / "shared" / "data" / "sessions"
WINDOW_TOKENS = 40_000
# All sessions are counted with one vocabulary, whichever model recorded them.
COUNTER = counter_for("gpt-4o")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The part to summarize, and the tail after it.

    `compacted_tokens` is everything that the summary stands for, `replaced_tokens` what this compaction removes
    from the request: the turns that it replaces, and the summary of earlier ones. `max_tokens` limits the
    summary.
    """

    compacted: Sequence[Message]
    compacted_tokens: int
    tail: Sequence[Message]
    replaced_tokens: int
    max_tokens: int


Summarise = Callable[[Span], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPoint:
    """A session compacted after `sent` of its messages, and the summary that replaces the head."""

    session: RecordedSession
    sent: int
    span: Span
    summary: str

    @property
    def later(self) -> Sequence[Message]:
        """Messages after the compaction."""
        return self.session.messages[self.sent :]


def find_compaction_points(
    session: RecordedSession, summarise: Summarise, window_tokens: int = WINDOW_TOKENS
) -> Iterator[CompactionPoint]:
    """Yield the points at which the session is compacted, each after the previous one has taken effect."""
    trigger = compaction_threshold_tokens(window_tokens, 0)
    tokens = [COUNTER.count_message(message).tokens for message in session.messages]
    cut = summary_tokens = 0
    compacted: set[int] = set()
    for message_count in range(1, len(tokens)):
        if session.messages[message_count].role != "assistant":
            continue  # nothing is asked for here
        uncompacted_tokens = sum(tokens[place] for place in range(message_count) if place not in compacted)
        if uncompacted_tokens + summary_tokens < trigger:
            continue
        messages = session.messages[:message_count]
        boundary = find_boundary(
            messages, tokens[:message_count], threshold_tokens=trigger, compacted_messages=cut
        )
        if boundary is None:
            continue
        cut = boundary
        compacted_places = set(TurnStructure(messages).replaced_messages(cut))
        replaced_tokens = sum(tokens[place] for place in compacted_places - compacted) + summary_tokens
        compacted = compacted_places
        head = [message for place, message in enumerate(messages) if place in compacted_places]
        tail = [message for place, message in enumerate(messages) if place not in compacted_places]
        span = Span(
            compacted=head,
            compacted_tokens=sum(tokens[place] for place in compacted_places),
            tail=tail,
            replaced_tokens=replaced_tokens,
            max_tokens=max_summary_tokens(trigger),
        )
        summary = summarise(span)
        summary_tokens = COUNTER.text(summary).tokens
        yield CompactionPoint(session=session, sent=message_count, span=span, summary=summary)


def extractive(weights: Mapping[str, float] | None = None) -> Summarise:
    """Summarize by rules with the gateway's limit: a tenth of all replaced tokens.

    If the head was compacted before, at most half of its current size, since otherwise nothing would be saved;
    and never more than a part of the trigger size.
    """
    return lambda span: _extract(
        span,
        min(summary_limit_tokens(span.compacted_tokens), span.replaced_tokens // 2, span.max_tokens),
        weights,
    )


def extractive_tight(weights: Mapping[str, float] | None = None) -> Summarise:
    """Summarize by rules, with a tenth of what each compaction removes from the request."""
    return lambda span: _extract(span, summary_limit_tokens(span.replaced_tokens), weights)


def _extract(span: Span, limit_tokens: int, weights: Mapping[str, float] | None) -> str:
    return summarize_by_rules(
        span.compacted,
        limit_tokens=limit_tokens,
        count=count_tokens_upper,
        tail=span.tail,
        fact_weights=weights,
    ).text


def no_summary(_: Span) -> str:
    """Return no summary, so that only the tail is sent."""
    return ""


def count_tokens_upper(text: str) -> int:
    """Return an upper bound of a text's tokens."""
    return COUNTER.text(text).upper
