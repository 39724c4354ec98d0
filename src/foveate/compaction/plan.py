"""Where a request is cut for a fold: the head that goes, and what a summary of it must not leave out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from foveate import formats
from foveate.budget.evict import MessageKind, classify_message
from foveate.compaction.apply import summary_text
from foveate.compaction.boundary import (
    COMPACT_AT_PCT,
    MIN_TURNS_BETWEEN,
    TAIL_KEEP_TOKENS,
    TurnStructure,
    compaction_threshold_tokens,
    continues_stored,
    find_boundary,
    provider_summary_text,
)
from foveate.compaction.facts.extract import extract_facts
from foveate.compaction.facts.ranking import ALWAYS_CARRIED, RankedFact, rank_facts
from foveate.compaction.store import Compaction
from foveate.compaction.summarize.extractive import (
    MIN_SUMMARY_TOKENS,
    CountTokens,
    select_missing_facts,
    summary_limit_tokens,
)
from foveate.compaction.summarize.summarizer import SummaryInput
from foveate.compaction.summarize.verify import MissingFacts, find_missing_facts
from foveate.compaction.thinking import drop_invalid_thinking
from foveate.model import Message, Request, Text
from foveate.session.hash_chain import HashChain
from foveate.tokens import RequestCounter

LOCK_TTL_SECONDS = 300.0
LIMIT_SECONDS = 600.0
"""How long a summary may take, with all its retries."""

# However long a session becomes, its summary takes no more than this of what triggers a fold.
_SUMMARY_SHARE = 0.125
# Of the tokens of a summary, so many go to the facts that the model is told to name.
_FACTS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """What the user decides. `extractive`: where no model gives a summary, rules may."""

    compact_at_pct: float = COMPACT_AT_PCT
    tail_keep_tokens: int = TAIL_KEEP_TOKENS
    min_turns_between: int = MIN_TURNS_BETWEEN
    lock_ttl_seconds: float = LOCK_TTL_SECONDS
    limit_seconds: float = LIMIT_SECONDS
    extractive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCandidate:
    """A request whose head may be folded.

    `request` is what the client sent and `chain` its hashes; `sent` is what goes out: `earlier`, the fold in
    force, put in, and cache marks. `sent_tokens` are those of that. `must_fit`: without a fold it would not.
    """

    agent: str
    session_id: str
    original: Request
    chain: HashChain
    sent_request: Request
    sent_tokens: int
    window_tokens: int
    output_reserve: int
    earlier_compaction: Compaction | None = None
    must_fit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """A head of the first `messages` of a conversation, of `tokens`, for a summary of about `limit_tokens`.

    `ranked` are the facts in it that the tail does not tell.
    """

    message_count: int
    head_tokens: int
    limit_tokens: int
    summary_input: SummaryInput
    ranked_facts: Sequence[RankedFact]

    def find_missing_facts(self, summary: str, count: CountTokens) -> MissingFacts:
        """What a summary leaves out."""
        return find_missing_facts(
            summary,
            self.ranked_facts,
            limit_tokens=self.limit_tokens,
            count=count,
            max_tokens=self.summary_input.replaced_tokens // 2,
        )


def candidate_threshold_tokens(candidate: CompactionCandidate, options: CompactionOptions) -> int:
    """From how many tokens on such a request is folded."""
    return compaction_threshold_tokens(
        candidate.window_tokens, candidate.output_reserve, options.compact_at_pct
    )


def count_model_turns_since(candidate: CompactionCandidate, seen_messages: int) -> int:
    """How often the model has spoken since the conversation had so many messages."""
    raws = candidate.original.messages[candidate.chain.leading_system_messages + max(seen_messages - 1, 0) :]
    is_model_message = [
        classify_message(formats.parse_message(candidate.original.format, raw)) is MessageKind.MODEL
        for raw in raws
    ]
    return sum(is_model and not before for before, is_model in pairwise(is_model_message))


def max_summary_tokens(threshold_tokens: int) -> int:
    """How long a summary may be, whatever it stands for."""
    return max(int(threshold_tokens * _SUMMARY_SHARE), MIN_SUMMARY_TOKENS)


def compute_summary_limit(head_tokens: int, sent_tokens: int, *, max_tokens: int, was_compacted: bool) -> int:
    """How long the summary of a head may be, of which so many tokens were sent last."""
    limit = min(summary_limit_tokens(head_tokens), max_tokens)
    # Of a head that was folded before, only what is sent of it can become less.
    return min(limit, sent_tokens // 2) if was_compacted else limit


def plan_compaction(
    candidate: CompactionCandidate, counter: RequestCounter, options: CompactionOptions
) -> CompactionPlan | None:
    """What is to be folded now; None where there is no place to cut, or the provider stores earlier turns.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    if continues_stored(candidate.original):
        return None
    raws = candidate.original.messages
    messages = [
        formats.parse_message(candidate.original.format, formats.strip_breakpoints(raw)) for raw in raws
    ]
    tokens = [counter.count_message(message).tokens for message in messages]
    start = candidate.chain.leading_system_messages
    compacted_messages = (
        start + candidate.earlier_compaction.messages if candidate.earlier_compaction is not None else 0
    )
    cut = find_boundary(
        messages,
        tokens,
        tail_keep_tokens=options.tail_keep_tokens,
        threshold_tokens=candidate_threshold_tokens(candidate, options),
        compacted_messages=compacted_messages,
    )
    if cut is None or cut <= start:
        return None
    # A summary that could not be sent is not made.
    if drop_invalid_thinking(candidate.original, candidate.original.model, changed_from=cut) is None:
        return None
    max_tokens = max_summary_tokens(candidate_threshold_tokens(candidate, options))
    return _build_plan(
        candidate, messages, tokens, cut, compacted_messages, max_tokens, lambda text: counter.text(text).tokens
    )


def _build_plan(
    candidate: CompactionCandidate,
    messages: Sequence[Message],
    tokens: Sequence[int],
    cut: int,
    compacted_messages: int,
    max_tokens: int,
    count: CountTokens,
) -> CompactionPlan:
    structure = TurnStructure(messages)
    replaced, new = (
        structure.replaced_messages(cut),
        structure.replaced_messages(cut, compacted_messages=compacted_messages),
    )
    head, tail = (
        _expose_provider_summaries(messages[index] for index in replaced),
        _expose_provider_summaries(messages[cut:]),
    )
    earlier = summary_text(candidate.earlier_compaction) if candidate.earlier_compaction is not None else ""
    head_tokens = sum(tokens[index] for index in replaced)
    replaced_tokens = sum(tokens[index] for index in new) + count(earlier)
    limit = compute_summary_limit(
        head_tokens,
        replaced_tokens,
        max_tokens=max_tokens,
        was_compacted=candidate.earlier_compaction is not None,
    )
    tail_facts = {fact.text for fact in extract_facts(tail)}
    ranked = [
        ranked_fact
        for ranked_fact in rank_facts(extract_facts(head), len(head))
        if ranked_fact.fact.kind in ALWAYS_CARRIED or ranked_fact.fact.text not in tail_facts
    ]
    named_facts = select_missing_facts("", ranked, limit_tokens=int(limit * _FACTS_SHARE), count=count)
    return CompactionPlan(
        message_count=cut - candidate.chain.leading_system_messages,
        head_tokens=head_tokens,
        limit_tokens=limit,
        ranked_facts=ranked,
        summary_input=SummaryInput(
            request=candidate.sent_request,
            request_tokens=candidate.sent_tokens,
            head=head,
            new_messages=_expose_provider_summaries(messages[index] for index in new),
            tail=tail,
            replaced_tokens=replaced_tokens,
            earlier_summary=earlier,
            facts=tuple(fact.text for fact in named_facts),
        ),
    )


def _expose_provider_summaries(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages with each summary that Anthropic itself has made as the user's words.

    It stands in what the model said next, and for all before it: clients may have dropped what the user said.
    """
    readable: list[Message] = []
    for message in messages:
        summaries = [text for part in message.parts if (text := provider_summary_text(part))]
        readable += [Message(role="user", parts=(Text(text),)) for text in summaries]
        rest = tuple(part for part in message.parts if not provider_summary_text(part))
        if rest or not summaries:
            readable.append(Message(role=message.role, parts=rest, name=message.name))
    return tuple(readable)
