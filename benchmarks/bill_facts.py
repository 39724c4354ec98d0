"""Facts that later turns need after edits: how many are still sent, and what fetching the others costs.

A fact is needed if the user or the model mentions it after an edit removed it, before a message shows it again.
The model fetches again what it needs and no longer has: one more request, and the tokens of the shortest
removed result that contains it, until the next compaction removes that again.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.compaction_mentions import Mention, authored_text, is_mentioned, mentions, result_text
from benchmarks.compaction_points import count_tokens_upper
from foveate.compaction.edit_timing import Moment
from foveate.compaction.staleness import describe_call, placeholder_text
from foveate.compaction.summarize.extractive import summarize_by_rules
from foveate.cost.pricing.rates import Rates, TokenKind
from foveate.model import CacheUsage, Message, ToolCall, ToolResult
from foveate.replay.simulator.editing_run import HistoryEdits
from foveate.replay.simulator.history_edits import MessageReader, SimulatedCompaction
from foveate.replay.simulator.prompts import HistoryNode
from foveate.replay.simulator.reconstruct import ReconstructedCall

# The tool call that fetches something again.
_FETCH_OUTPUT_TOKENS = 120
_ASSISTANT = "assistant"


class EditEvent(NamedTuple):
    """Edits at a moment of a call: before it was sent, or after its response."""

    moment: Moment
    edits: HistoryEdits


class _PartFacts(NamedTuple):
    mentions: frozenset[Mention]
    text: str


@dataclass(frozen=True, slots=True)
class _MessageFacts:
    message: Message
    authored: _PartFacts
    results: Mapping[int, _PartFacts]  # by id of the part


class SessionFacts:
    """The facts of a session's messages, found once for all policies."""

    def __init__(self, reader: MessageReader) -> None:
        self.reader = reader
        self._facts: dict[int, _MessageFacts] = {}

    def of(self, node: HistoryNode) -> _MessageFacts:
        facts = self._facts.get(id(node.message))
        if facts is None:
            message = self.reader.read(node)
            texts = {
                id(part): result_text(Message(role="tool", parts=(part,)))
                for part in message.parts
                if isinstance(part, ToolResult)
            }
            authored = authored_text(message)
            facts = self._facts[id(node.message)] = _MessageFacts(
                message,
                _PartFacts(frozenset(mentions(authored)), authored),
                {key: _PartFacts(frozenset(mentions(text)), text) for key, text in texts.items()},
            )
        return facts


@dataclass(slots=True)
class Needs:
    """Facts needed after edits, those of them still sent, and the price of fetching the others."""

    needed: int = 0
    carried: int = 0
    fetches: int = 0
    fetch_dollars: float = 0.0


def measure_needs(
    calls: Sequence[ReconstructedCall],
    usages: Sequence[CacheUsage],
    events: Mapping[int, Sequence[EditEvent]],
    facts: SessionFacts,
    rates: Callable[[ReconstructedCall], Rates | None],
    *,
    placeholder: Callable[[], str] | None = None,
) -> Needs:
    """Measure a policy's needs; `events` are its edits by id of the call."""
    needs = Needs()
    by_conversation: dict[str, list[tuple[ReconstructedCall, CacheUsage]]] = defaultdict(list)
    for call, usage in zip(calls, usages, strict=True):
        by_conversation[call.call.conversation].append((call, usage))
    for conversation in by_conversation.values():
        if any(id(call) in events for call, _ in conversation):
            tracker = _Tracker(needs, facts, rates, placeholder)
            tracker.follow(conversation, events)
    return needs


@dataclass(slots=True)
class _Tracker:
    needs: Needs
    facts: SessionFacts
    rates: Callable[[ReconstructedCall], Rates | None]
    placeholder: Callable[[], str] | None
    compaction: SimulatedCompaction | None = None
    cleared: set[int] = field(default_factory=set)
    # Facts in what was removed, with the shortest removed text of each; facts in what is sent; shown since.
    removed: dict[Mention, tuple[int, _PartFacts]] = field(default_factory=dict)
    sent: set[Mention] = field(default_factory=set)
    sent_texts: list[str] = field(default_factory=list)
    shown: set[Mention] = field(default_factory=set)
    fetched_tokens: int = 0

    def follow(
        self,
        conversation: Sequence[tuple[ReconstructedCall, CacheUsage]],
        events: Mapping[int, Sequence[EditEvent]],
    ) -> None:
        seen: set[int] = set()
        previous: tuple[ReconstructedCall, CacheUsage] | None = None
        for call, usage in conversation:
            new = []
            node: HistoryNode | None = call.last_node
            while node is not None and id(node.message) not in seen:
                seen.add(id(node.message))
                new.append(node)
                node = node.previous
            new.reverse()
            if previous is not None:
                # What the model says was written before edits after its response.
                for node in new:
                    if node.role == _ASSISTANT:
                        self._mention(node, *previous)
                for event in events.get(id(previous[0]), ()):
                    if event.moment is not Moment.ARRIVAL:
                        self._edit(event.edits, previous[0].last_node)
                for node in new:
                    if node.role != _ASSISTANT:
                        self._mention(node, None, None)
            for event in events.get(id(call), ()):
                if event.moment is Moment.ARRIVAL:
                    self._edit(event.edits, call.last_node)
            self._carry_fetched(call, usage)
            previous = call, usage

    def _edit(self, edits: HistoryEdits, last: HistoryNode) -> None:
        if edits.compaction is not None:
            self.compaction = edits.compaction
            self.fetched_tokens = 0
        self.cleared |= {id(result.part) for result, _ in edits.cleared}
        self.removed, self.sent, self.sent_texts, self.shown = {}, set(), [], set()
        compacted: set[int] = set()
        if self.compaction is not None:
            kept = {id(node.message) for node in (*self.compaction.kept_nodes, *self.compaction.question_nodes)}
            compacted = {
                id(node.message)
                for node in last.path()
                if node.depth <= self.compaction.last_compacted.depth and id(node.message) not in kept
            }
        calls: dict[str, ToolCall] = {}
        for node in last.path():
            facts = self.facts.of(node)
            calls |= {part.id: part for part in facts.message.parts if isinstance(part, ToolCall)}
            is_compacted = id(node.message) in compacted
            (self._remove if is_compacted else self._send)(facts.authored)
            for part in facts.message.parts:
                if not isinstance(part, ToolResult):
                    continue
                result = facts.results[id(part)]
                if is_compacted or id(part) in self.cleared:
                    self._remove(result)
                else:
                    self._send(result)
                if id(part) in self.cleared and not is_compacted:
                    use = describe_call(calls[part.id]) if part.id in calls else None
                    text = self.placeholder() if self.placeholder else placeholder_text(use, result.text)
                    self.sent_texts.append(text)
        if self.compaction is not None:
            self.sent_texts.append(self._summarize(self.compaction, last, compacted))

    def _summarize(self, compaction: SimulatedCompaction, last: HistoryNode, compacted: set[int]) -> str:
        path = last.path()
        return summarize_by_rules(
            [self.facts.of(node).message for node in path if id(node.message) in compacted],
            limit_tokens=compaction.summary_tokens,
            count=count_tokens_upper,
            tail=[self.facts.of(node).message for node in path if id(node.message) not in compacted],
        ).text

    def _remove(self, part: _PartFacts) -> None:
        tokens = len(part.text) // 4
        for mention in part.mentions:
            known = self.removed.get(mention)
            if known is None or tokens < known[0]:
                self.removed[mention] = tokens, part

    def _send(self, part: _PartFacts) -> None:
        self.sent |= part.mentions
        self.sent_texts.append(part.text)

    def _mention(self, node: HistoryNode, call: ReconstructedCall | None, usage: CacheUsage | None) -> None:
        """Count what a message needs; `call` is the one that it answers, if the model wrote it."""
        facts = self.facts.of(node)
        needed = {mention for mention in facts.authored.mentions if mention in self.removed} - self.shown
        self.needs.needed += len(needed)
        missing = {
            mention
            for mention in needed - self.sent
            if not any(is_mentioned(mention, text) for text in self.sent_texts if mention.text in text)
        }
        self.needs.carried += len(needed) - len(missing)
        if missing and call is not None and usage is not None:
            self._fetch(missing, call, usage)
        self.shown |= facts.authored.mentions
        for result in facts.results.values():
            self.shown |= result.mentions

    def _fetch(self, missing: set[Mention], call: ReconstructedCall, usage: CacheUsage) -> None:
        """Charge one more request that fetches everything that is missing."""
        tokens = 0
        for mention in sorted(missing, key=lambda mention: self.removed[mention][0]):
            if mention not in self.shown:
                size, part = self.removed[mention]
                tokens += size
                self.shown |= part.mentions
        self.needs.fetches += 1
        rates = self.rates(call)
        if rates is not None:
            size = usage.input_tokens
            self.needs.fetch_dollars += (
                size * _rate(rates, TokenKind.READ, size)
                + tokens * _rate(rates, TokenKind.WRITTEN_5M, size)
                + _FETCH_OUTPUT_TOKENS * _rate(rates, TokenKind.OUTPUT, size)
            )
        self.fetched_tokens += tokens

    def _carry_fetched(self, call: ReconstructedCall, usage: CacheUsage) -> None:
        rates = self.rates(call)
        if self.fetched_tokens and rates is not None:
            kind = TokenKind.READ if 2 * usage.read >= usage.input_tokens else TokenKind.WRITTEN_5M
            self.needs.fetch_dollars += self.fetched_tokens * _rate(rates, kind, usage.input_tokens)


def _rate(rates: Rates, kind: TokenKind, size: int) -> float:
    rate = rates.by_kind.get(kind) or rates.by_kind[TokenKind.UNCACHED]
    return float(rate.at(size))
