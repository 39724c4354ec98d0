"""Plan a compaction: the boundary, the summary's limit, and the facts that the summary must not omit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from foveate import formats
from foveate.budget.turn_structure import MessageKind, classify_message
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
from foveate.compaction.edit_timing import CompactionOption
from foveate.compaction.facts.extract import (
    ALWAYS_CARRIED,
    ConversationFacts,
    RankedFact,
    extract_facts,
    rank_facts,
    read_conversation,
)
from foveate.compaction.store import Compaction, EditDecision
from foveate.compaction.summarize.extractive import (
    MIN_SUMMARY_TOKENS,
    TokenCounter,
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
"""Time limit for a summary, retries included."""

# However long a session becomes, its summary takes at most this share of the threshold.
_SUMMARY_SHARE = 0.125
# Share of the summary's tokens for facts that the model is told to mention.
_FACTS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """User settings. `extractive` allows an extractive summary if no model gives one."""

    compact_at_pct: float = COMPACT_AT_PCT
    tail_keep_tokens: int = TAIL_KEEP_TOKENS
    min_turns_between: int = MIN_TURNS_BETWEEN
    lock_ttl_seconds: float = LOCK_TTL_SECONDS
    limit_seconds: float = LIMIT_SECONDS
    extractive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCandidate:
    """A request whose head may be compacted.

    `original` is the client's request and `chain` its hashes. `sent_request` is what goes out: with
    `earlier_compaction` and cache breakpoints, of `sent_tokens`. `must_fit` means that it exceeds the window
    without a compaction. If not `is_cached`, the provider's cache has expired. With `decide`, it is compacted
    if that pays: once it is known what can be replaced, `decide` returns the numbers, or None if it does not
    pay.
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
    is_cached: bool = True
    decide: "Callable[[CompactionPlan], EditDecision | None] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The first `message_count` messages as a head of `head_tokens`, for a summary of about `limit_tokens`.

    `conversation` is what the head says, `ranked_facts` are its facts that the tail does not contain.
    """

    message_count: int
    head_tokens: int
    limit_tokens: int
    summary_input: SummaryInput
    ranked_facts: Sequence[RankedFact]
    conversation: ConversationFacts

    def find_missing_facts(self, summary: str, count: TokenCounter) -> MissingFacts:
        return find_missing_facts(
            summary,
            self.ranked_facts,
            limit_tokens=self.limit_tokens,
            count=count,
            max_tokens=self.summary_input.replaced_tokens // 2,
            conversation=self.conversation,
        )


def candidate_threshold_tokens(candidate: CompactionCandidate, options: CompactionOptions) -> int:
    """The size from which on a request is compacted; it also limits tail and summary."""
    if candidate.decide is not None:
        return paying_threshold_tokens(candidate.sent_tokens, options)
    return compaction_threshold_tokens(
        candidate.window_tokens, candidate.output_reserve, options.compact_at_pct
    )


def paying_threshold_tokens(request_tokens: int, options: CompactionOptions) -> int:
    """The threshold of a compaction that has to pay: the smallest that still keeps the configured tail.

    A longer summary would cost more than it saves.
    """
    return min(request_tokens, 2 * options.tail_keep_tokens)


def estimate_compaction(
    request_tokens: int, preamble_tokens: int, options: CompactionOptions
) -> CompactionOption:
    """What a compaction that has to pay would leave, without looking for its boundary."""
    threshold = paying_threshold_tokens(request_tokens, options)
    tail = min(options.tail_keep_tokens, threshold // 2)
    head = max(request_tokens - preamble_tokens - tail, 0)
    summary = min(summary_limit_tokens(head), max_summary_tokens(threshold))
    return CompactionOption(tokens_after=preamble_tokens + summary + tail, summary_tokens=summary)


def count_model_turns_since(candidate: CompactionCandidate, seen_messages: int) -> int:
    raw_messages = candidate.original.messages[
        candidate.chain.leading_system_messages + max(seen_messages - 1, 0) :
    ]
    is_model_message = [
        classify_message(formats.parse_message(candidate.original.format, raw)) is MessageKind.MODEL
        for raw in raw_messages
    ]
    return sum(is_model and not before for before, is_model in pairwise(is_model_message))


def max_summary_tokens(threshold_tokens: int) -> int:
    return max(int(threshold_tokens * _SUMMARY_SHARE), MIN_SUMMARY_TOKENS)


def compute_summary_limit(head_tokens: int, sent_tokens: int, *, max_tokens: int, was_compacted: bool) -> int:
    """The limit of a summary of a head with `head_tokens`, of which `sent_tokens` were sent last."""
    limit = min(summary_limit_tokens(head_tokens), max_tokens)
    # If the head was compacted before, only what is sent of it can shrink.
    return min(limit, sent_tokens // 2) if was_compacted else limit


def plan_compaction(
    candidate: CompactionCandidate, counter: RequestCounter, options: CompactionOptions
) -> CompactionPlan | None:
    """Plan the compaction of a request; None if it has no boundary or continues a stored conversation.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    if continues_stored(candidate.original):
        return None
    raw_messages = candidate.original.messages
    messages = [
        formats.parse_message(candidate.original.format, formats.strip_breakpoints(raw)) for raw in raw_messages
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
    # Do not write a summary that could not be sent.
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
    count: TokenCounter,
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
    conversation = read_conversation(head, tail)
    tail_facts = {fact.text for fact in extract_facts(tail)}
    ranked = [
        ranked_fact
        for ranked_fact in rank_facts(conversation.facts, len(head))
        if ranked_fact.fact.kind in ALWAYS_CARRIED or ranked_fact.fact.text not in tail_facts
    ]
    named_facts = select_missing_facts("", ranked, limit_tokens=int(limit * _FACTS_SHARE), count=count)
    return CompactionPlan(
        message_count=cut - candidate.chain.leading_system_messages,
        head_tokens=head_tokens,
        limit_tokens=limit,
        ranked_facts=ranked,
        conversation=conversation,
        summary_input=SummaryInput(
            request=candidate.sent_request,
            request_tokens=candidate.sent_tokens,
            is_cached=candidate.is_cached,
            head=head,
            new_messages=_expose_provider_summaries(messages[index] for index in new),
            tail=tail,
            replaced_tokens=replaced_tokens,
            earlier_summary=earlier,
            facts=tuple(fact.text for fact in named_facts),
        ),
    )


def _expose_provider_summaries(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Turn each summary by Anthropic's own compaction into a user message.

    It is part of the next model message and replaces everything before it; clients may have dropped the user's
    messages.
    """
    readable: list[Message] = []
    for message in messages:
        summaries = [text for part in message.parts if (text := provider_summary_text(part))]
        readable += [Message(role="user", parts=(Text(text),)) for text in summaries]
        other_parts = tuple(part for part in message.parts if not provider_summary_text(part))
        if other_parts or not summaries:
            readable.append(Message(role=message.role, parts=other_parts, name=message.name))
    return tuple(readable)
