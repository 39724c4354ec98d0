"""Where recorded sessions would be folded, and into what."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fold_sessions import RecordedSession
from foveate.compaction.boundary import TurnStructure, compaction_threshold_tokens, find_boundary
from foveate.compaction.plan import max_summary_tokens
from foveate.compaction.summarize.extractive import summarize_by_rules, summary_limit_tokens
from foveate.model import Message
from foveate.tokens import counter_for

DATA = Path(__file__).parents[2] / "shared" / "data" / "sessions"
WINDOW_TOKENS = 40_000
# Sessions are counted with one vocabulary, whichever model they were recorded with.
COUNTER = counter_for("gpt-4o")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What is to be summarised, and what stays after it.

    `folded_tokens` is all that the summary stands for, `replaced_tokens` what this fold takes out of what was
    sent: the turns that go now, and the summary of those before. No summary is longer than `most_tokens`.
    """

    compacted: Sequence[Message]
    compacted_tokens: int
    tail: Sequence[Message]
    replaced_tokens: int
    max_tokens: int


Summarise = Callable[[Span], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPoint:
    """A session folded when `sent` of its messages were there, and the summary that stands for what went."""

    session: RecordedSession
    sent: int
    span: Span
    summary: str

    @property
    def later(self) -> Sequence[Message]:
        """What was said after the fold."""
        return self.session.messages[self.sent :]


def find_compaction_points(
    session: RecordedSession, summarise: Summarise, window_tokens: int = WINDOW_TOKENS
) -> Iterator[CompactionPoint]:
    """Where the session would be folded, each time after the one before has taken effect."""
    trigger = compaction_threshold_tokens(window_tokens, 0)
    tokens = [COUNTER.count_message(message).tokens for message in session.messages]
    cut = summary_tokens = 0
    compacted_count: set[int] = set()
    for sent in range(1, len(tokens)):
        if session.messages[sent].role != "assistant":
            continue  # nothing is asked for here
        held = sum(tokens[place] for place in range(sent) if place not in compacted_count)
        if held + summary_tokens < trigger:
            continue
        messages = session.messages[:sent]
        found = find_boundary(messages, tokens[:sent], threshold_tokens=trigger, compacted_messages=cut)
        if found is None:
            continue
        cut = found
        folded = set(TurnStructure(messages).replaced_messages(cut))
        replaced = sum(tokens[place] for place in folded - compacted_count) + summary_tokens
        compacted_count = folded
        head = [message for place, message in enumerate(messages) if place in folded]
        tail = [message for place, message in enumerate(messages) if place not in folded]
        span = Span(
            compacted=head,
            compacted_tokens=sum(tokens[place] for place in folded),
            tail=tail,
            replaced_tokens=replaced,
            max_tokens=max_summary_tokens(trigger),
        )
        summary = summarise(span)
        summary_tokens = COUNTER.text(summary).tokens
        yield CompactionPoint(session=session, sent=sent, span=span, summary=summary)


def extractive(weighed: Mapping[str, float] | None = None) -> Summarise:
    """Summaries by rules, as long as a gateway lets them be: a tenth of all that they stand for.

    Of a head that was folded before, at most half of what is sent of it, since else nothing would be won; and
    never more than a part of what triggers a fold.
    """
    return lambda span: _extract(
        span,
        min(summary_limit_tokens(span.compacted_tokens), span.replaced_tokens // 2, span.max_tokens),
        weighed,
    )


def extractive_tight(weighed: Mapping[str, float] | None = None) -> Summarise:
    """Summaries by rules of a tenth of what each fold takes out of what was sent, however much went before."""
    return lambda span: _extract(span, summary_limit_tokens(span.replaced_tokens), weighed)


def _extract(span: Span, limit_tokens: int, weighed: Mapping[str, float] | None) -> str:
    return summarize_by_rules(
        span.compacted,
        limit_tokens=limit_tokens,
        count=count_tokens_upper,
        tail=span.tail,
        fact_weights=weighed,
    ).text


def no_summary(_: Span) -> str:
    """No summary: only the tail is kept."""
    return ""


def count_tokens_upper(text: str) -> int:
    """As many tokens as a text may have."""
    return COUNTER.text(text).upper
