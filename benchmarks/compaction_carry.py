"""Share of the facts mentioned by later turns that is still sent after a compaction, on recorded sessions.

Each session is compacted whenever it fills a window of 40,000 tokens; from then on the summary replaces the
messages before that point. The candidates are the paths, identifiers and numbers in all compacted messages.
`any` counts those that anybody mentions later, including tool results; `needed` counts those that the user or
the model mentions before a tool result has shown them again. `odd_words` is `any` by another measure: words
that are not plain language. All of them look at what is sent, summary and tail; `…_by_summary` leaves out what
is in the tail anyway. Of the user's constraints, all compacted ones count.

A summary may have a tenth of the tokens that it replaces in total. `tight` allows a tenth of what each
compaction removes from the request, however long the earlier history is. `held out` compacts the sessions of
each source with weights fitted on those of the other sources.

The small local model reads a few dozen tokens a second, so compactions by it, and LangChain's with it, are
measured at a window of 8,000, at the smallest compactions, as far as time permits.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from benchmarks.compaction_mentions import (
    Kind,
    Mention,
    authored_text,
    constraints,
    is_mentioned,
    mentions,
    odd_words,
    result_text,
)
from benchmarks.compaction_peers import (
    ModelUnavailable,
    SummaryFailed,
    small_model,
    summarize_with_langchain,
    summarize_with_model,
)
from benchmarks.compaction_points import (
    COUNTER,
    DATA,
    WINDOW_TOKENS,
    CompactionPoint,
    Summarise,
    count_tokens_upper,
    extractive,
    extractive_tight,
    find_compaction_points,
    no_summary,
)
from benchmarks.compaction_sessions import RecordedSession, recorded_sessions
from benchmarks.fit_ranking import held_out_weights
from benchmarks.harness import Cell, Report
from foveate.model import Message

MODEL_WINDOW_TOKENS = 8_000
MODEL_COMPACTIONS = 1
MODEL_SECONDS = 560.0
COMPACTION_SECONDS = 280.0
MIN_SECONDS = 20.0
# LangChain retains the last 20 messages, so there must be more; and something must be needed later.
MIN_MESSAGES = 24
MIN_NEEDED = 5


@dataclass(slots=True)
class CarryTally:
    """Facts that were needed and facts that were still present, over compactions."""

    needed_counts: Counter[str] = field(default_factory=Counter)
    carried: Counter[str] = field(default_factory=Counter)
    compacted_tokens: int = 0
    replaced_tokens: int = 0
    summary_tokens: int = 0
    compactions: int = 0

    def add(self, point: CompactionPoint) -> dict[str, Cell]:
        """Count one compaction and return its row."""
        tokens = count_tokens_upper(point.summary)
        self.compactions += 1
        self.compacted_tokens += point.span.compacted_tokens
        self.replaced_tokens += point.span.replaced_tokens
        self.summary_tokens += tokens
        tail = _text(point.span.tail)
        row: dict[str, Cell] = {
            "session": point.session.name,
            "sent": point.sent,
            "folded_tokens": point.span.compacted_tokens,
            "replaced_tokens": point.span.replaced_tokens,
            "summary_tokens": tokens,
        }
        for name, group in _needed_mentions(point).items():
            in_tail = {mention for mention in group if is_mentioned(mention, tail)}
            in_summary = {mention for mention in group if is_mentioned(mention, point.summary)}
            self._add_count(name, group, in_tail | in_summary)
            self._add_count(f"{name}_by_summary", group - in_tail, in_summary - in_tail)
            if name != "constraints":
                for kind in (Kind.PATH, Kind.IDENTIFIER, Kind.NUMBER):
                    of_kind = {mention for mention in group if mention.kind is kind}
                    self._add_count(f"{name}_{kind}", of_kind, (in_tail | in_summary) & of_kind)
            row |= {name: len(group), f"{name}_sent": len(in_tail | in_summary)}
        odd = _odd_words(point)
        self.needed_counts["odd_words"] += len(odd)
        self.carried["odd_words"] += sum(word in tail or word in point.summary for word in odd)
        return row

    def _add_count(self, name: str, needed: set[Mention], carried: set[Mention]) -> None:
        self.needed_counts[name] += len(needed)
        self.carried[name] += len(carried)

    def figures(self) -> dict[str, float]:
        """Return all figures by name, without those that have no cases."""
        shares = {
            name: self.carried[name] / needed_counts
            for name, needed_counts in self.needed_counts.items()
            if needed_counts
        }
        return {
            "folds": self.compactions,
            "summary_share_of_tokens": self.summary_tokens / max(self.compacted_tokens, 1),
            "summary_share_of_replaced": self.summary_tokens / max(self.replaced_tokens, 1),
            **{f"carried_{name}": share for name, share in shares.items()},
        }


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(text for message in messages for text in (authored_text(message), result_text(message)))


def _needed_mentions(point: CompactionPoint) -> Mapping[str, set[Mention]]:
    """Return what must still be present: facts mentioned by anybody, facts needed later, and constraints."""
    compacted: set[Mention] = set()
    for message in point.span.compacted:
        compacted |= mentions(authored_text(message)) | mentions(result_text(message))
    needed: set[Mention] = set()
    later: set[Mention] = set()
    for message in point.later:
        mentioned = mentions(authored_text(message))
        needed |= mentioned - later
        later |= mentioned | mentions(result_text(message))
    stated = {constraint for message in point.span.compacted for constraint in constraints(message)}
    return {"any": later & compacted, "needed": needed & compacted, "constraints": stated}


def _odd_words(point: CompactionPoint) -> set[str]:
    return odd_words(_text(point.span.compacted)) & odd_words(_text(point.later))


def measure(
    sessions: Iterable[RecordedSession], summarise: Summarise, window_tokens: int = WINDOW_TOKENS
) -> tuple[CarryTally, list[dict[str, Cell]]]:
    """Count all compactions of all sessions."""
    tally = CarryTally()
    points = (
        point for session in sessions for point in find_compaction_points(session, summarise, window_tokens)
    )
    return tally, [tally.add(point) for point in points]


def _by_source(sessions: Sequence[RecordedSession]) -> Iterator[tuple[str, Sequence[RecordedSession]]]:
    for source in sorted({session.source for session in sessions}):
        yield source, [session for session in sessions if session.source == source]


def _sources(sessions: Sequence[RecordedSession]) -> dict[str, Mapping[str, object]]:
    """Return the figures of each source that has compactions."""
    tallies = {
        source: measure(source_sessions, extractive())[0] for source, source_sessions in _by_source(sessions)
    }
    return {f"only {source}": tally.figures() for source, tally in tallies.items() if tally.compactions}


def _held_out_figures(sessions: Sequence[RecordedSession]) -> dict[str, Mapping[str, object]]:
    """Return the figures with weights that were not fitted on the source."""
    figures: dict[str, Mapping[str, object]] = {}
    weights = held_out_weights(sessions)
    for name, summarise in (("held out", extractive), ("held out, tight", extractive_tight)):
        tally = CarryTally()
        for source, source_sessions in _by_source(sessions):
            for session in source_sessions:
                for point in find_compaction_points(session, summarise(weights[source])):
                    tally.add(point)
        figures[name] = tally.figures()
    return figures


def _model_figures(sessions: Sequence[RecordedSession]) -> dict[str, Mapping[str, object]]:
    """Compare the small model, LangChain with it, rules, and the tail alone, at the same points."""
    points = (
        point
        for session in sessions
        for point in islice(find_compaction_points(session, extractive(), MODEL_WINDOW_TOKENS), 1)
        if point.sent > MIN_MESSAGES and len(_needed_mentions(point)["any"]) >= MIN_NEEDED
    )
    smallest = sorted(points, key=lambda point: point.span.replaced_tokens)[:MODEL_COMPACTIONS]
    names = ("model", "langchain", "rules", "tail")
    tallies = {name: CarryTally() for name in names}
    failed: dict[str, list[str]] = {name: [] for name in names}
    deadline = time.monotonic() + MODEL_SECONDS
    try:
        with small_model() as base_url:
            for point in smallest:
                if deadline - time.monotonic() < MIN_SECONDS:
                    break  # `folds` of the rules is the number of attempts
                tallies["rules"].add(point)
                tallies["tail"].add(_with_summary(point, no_summary(point.span)))
                for name, compact in (
                    ("model", _summarize_with_model),
                    ("langchain", _summarize_with_langchain),
                ):
                    seconds = max(min(COMPACTION_SECONDS, deadline - time.monotonic()), MIN_SECONDS)
                    try:
                        tallies[name].add(compact(base_url, point, seconds))
                    except SummaryFailed as error:
                        failed[name].append(str(error))
    except (ModelUnavailable, ImportError) as error:
        return {"the small model": {"not run": str(error)}}
    return {
        f"window of {MODEL_WINDOW_TOKENS:,}: {name}": {**tally.figures(), "folds_without_summary": failed[name]}
        for name, tally in tallies.items()
    }


def _with_summary(point: CompactionPoint, summary: str) -> CompactionPoint:
    return CompactionPoint(session=point.session, sent=point.sent, span=point.span, summary=summary)


def _summarize_with_model(base_url: str, point: CompactionPoint, seconds: float) -> CompactionPoint:
    return _with_summary(point, summarize_with_model(base_url, point.span, seconds))


def _summarize_with_langchain(base_url: str, point: CompactionPoint, seconds: float) -> CompactionPoint:
    messages = point.session.messages[: point.sent]
    summary, retained = summarize_with_langchain(base_url, messages, seconds)
    head, tail = messages[: len(messages) - retained], messages[len(messages) - retained :]
    tokens = sum(COUNTER.count_message(message).tokens for message in head)
    span = replace(point.span, compacted=head, compacted_tokens=tokens, tail=tail, replaced_tokens=tokens)
    return CompactionPoint(session=point.session, sent=point.sent, span=span, summary=summary)


NAME = "fold-carry"
FIGURES = (
    "folds",
    "summary_share_of_tokens",
    "summary_share_of_replaced",
    "carried_<what>",
    "carried_<what>_by_summary",
    "carried_<what>_paths",
    "carried_<what>_identifiers",
    "carried_<what>_numbers",
    "carried_odd_words",
)


def run(data: Path | None) -> Report:
    """Return the report; `data` is a folder of sessions."""
    sessions = recorded_sessions(data or DATA)
    ours, rows = measure(sessions, extractive())
    peers: dict[str, Mapping[str, object]] = {
        "tail only": measure(sessions, no_summary)[0].figures(),
        "tight": measure(sessions, extractive_tight())[0].figures(),
        **_sources(sessions),
        **_held_out_figures(sessions),
        **_model_figures(sessions),
    }
    return Report(figures=ours.figures(), peers=peers, rows=rows)
