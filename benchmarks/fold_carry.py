"""How much of what later turns mention again is still sent after a fold, on recorded sessions.

Each session is folded wherever a window of 40,000 tokens would have it folded, with what stood before the fold
replaced by the fold's summary from then on. Of the paths, identifiers and numbers that stood in what was ever
folded, those count that anybody mentions later, results of tools included (`any`), and apart from them those
that the user or the model mentions before any tool's result has shown them again (`needed`). `odd_words` is
`any` by another yardstick: words that are no plain language. All look at what is sent, summary and tail;
`…_by_summary` leaves out of the question what stands in the tail anyway. Of the user's constraints, all that
were folded count.

A summary may have a tenth of all that it stands for. `tight` is the same with a tenth of what each fold takes
out of what was sent, however much the summary has to tell of what went before. `held out` folds the sessions of
each source with weights that were fitted on those of the others.

The small local model reads some dozen tokens a second, so folds by it, and LangChain's with it, are measured at
a window of 8,000, at the smallest folds, as far as the time goes.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from benchmarks.fit_ranking import held_out_weights
from benchmarks.fold_mentions import Kind, Mention, constraints, mentions, odd_words, returned, spoken, stands
from benchmarks.fold_peers import NoFold, NoModel, langchain_fold, model_fold, small_model
from benchmarks.fold_points import (
    COUNTER,
    DATA,
    WINDOW_TOKENS,
    FoldPoint,
    Summarise,
    extractive,
    fold_points,
    nothing,
    tight,
    tokens_of,
)
from benchmarks.fold_sessions import Recorded, recorded_sessions
from benchmarks.harness import Cell, Report
from foveate.values import Message

MODEL_WINDOW_TOKENS = 8_000
MODEL_FOLDS = 1
MODEL_SECONDS = 560.0
FOLD_SECONDS = 280.0
LEAST_SECONDS = 20.0
# LangChain keeps the last 20 messages, so there must be more; and something has to be wanted later.
LEAST_MESSAGES = 24
LEAST_WANTED = 5


@dataclass(slots=True)
class Tally:
    """What was wanted and what was still there, over folds."""

    wanted: Counter[str] = field(default_factory=Counter)
    carried: Counter[str] = field(default_factory=Counter)
    folded_tokens: int = 0
    replaced_tokens: int = 0
    summary_tokens: int = 0
    folds: int = 0

    def add(self, point: FoldPoint) -> dict[str, Cell]:
        """Count one fold; a row of it."""
        tokens = tokens_of(point.summary)
        self.folds += 1
        self.folded_tokens += point.span.folded_tokens
        self.replaced_tokens += point.span.replaced_tokens
        self.summary_tokens += tokens
        tail = _text(point.span.tail)
        row: dict[str, Cell] = {
            "session": point.session.name,
            "sent": point.sent,
            "folded_tokens": point.span.folded_tokens,
            "replaced_tokens": point.span.replaced_tokens,
            "summary_tokens": tokens,
        }
        for name, group in _wanted(point).items():
            in_tail = {mention for mention in group if stands(mention, tail)}
            in_summary = {mention for mention in group if stands(mention, point.summary)}
            self._count(name, group, in_tail | in_summary)
            self._count(f"{name}_by_summary", group - in_tail, in_summary - in_tail)
            if name != "constraints":
                for kind in (Kind.PATH, Kind.IDENTIFIER, Kind.NUMBER):
                    of_kind = {mention for mention in group if mention.kind is kind}
                    self._count(f"{name}_{kind}", of_kind, (in_tail | in_summary) & of_kind)
            row |= {name: len(group), f"{name}_sent": len(in_tail | in_summary)}
        odd = _odd(point)
        self.wanted["odd_words"] += len(odd)
        self.carried["odd_words"] += sum(word in tail or word in point.summary for word in odd)
        return row

    def _count(self, name: str, wanted: set[Mention], carried: set[Mention]) -> None:
        self.wanted[name] += len(wanted)
        self.carried[name] += len(carried)

    def figures(self) -> dict[str, float]:
        """All of it, by name; without what nothing was wanted of."""
        shares = {name: self.carried[name] / wanted for name, wanted in self.wanted.items() if wanted}
        return {
            "folds": self.folds,
            "summary_share_of_tokens": self.summary_tokens / max(self.folded_tokens, 1),
            "summary_share_of_replaced": self.summary_tokens / max(self.replaced_tokens, 1),
            **{f"carried_{name}": share for name, share in shares.items()},
        }


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(text for message in messages for text in (spoken(message), returned(message)))


def _wanted(point: FoldPoint) -> Mapping[str, set[Mention]]:
    """What should still be there: mentioned by anybody, needed by who goes on, and the user's constraints."""
    stood: set[Mention] = set()
    for message in point.span.folded:
        stood |= mentions(spoken(message)) | mentions(returned(message))
    needed: set[Mention] = set()
    shown: set[Mention] = set()
    for message in point.later:
        said = mentions(spoken(message))
        needed |= said - shown
        shown |= said | mentions(returned(message))
    said_so = {constraint for message in point.span.folded for constraint in constraints(message)}
    return {"any": shown & stood, "needed": needed & stood, "constraints": said_so}


def _odd(point: FoldPoint) -> set[str]:
    return odd_words(_text(point.span.folded)) & odd_words(_text(point.later))


def measure(
    sessions: Iterable[Recorded], summarise: Summarise, window_tokens: int = WINDOW_TOKENS
) -> tuple[Tally, list[dict[str, Cell]]]:
    """All folds of all sessions, counted."""
    tally = Tally()
    points = (point for session in sessions for point in fold_points(session, summarise, window_tokens))
    return tally, [tally.add(point) for point in points]


def _by_source(sessions: Sequence[Recorded]) -> Iterator[tuple[str, Sequence[Recorded]]]:
    for source in sorted({session.source for session in sessions}):
        yield source, [session for session in sessions if session.source == source]


def _sources(sessions: Sequence[Recorded]) -> dict[str, Mapping[str, object]]:
    """The figures of each source that has folds."""
    tallies = {source: measure(own, extractive())[0] for source, own in _by_source(sessions)}
    return {f"only {source}": tally.figures() for source, tally in tallies.items() if tally.folds}


def _held_out(sessions: Sequence[Recorded]) -> dict[str, Mapping[str, object]]:
    """The figures with weights that know nothing of the source they are used on."""
    found: dict[str, Mapping[str, object]] = {}
    weights = held_out_weights(sessions)
    for name, summarise in (("held out", extractive), ("held out, tight", tight)):
        tally = Tally()
        for source, own in _by_source(sessions):
            for session in own:
                for point in fold_points(session, summarise(weights[source])):
                    tally.add(point)
        found[name] = tally.figures()
    return found


def _with_model(sessions: Sequence[Recorded]) -> dict[str, Mapping[str, object]]:
    """Folds by the small model, by LangChain with it, by rules, and the tail alone, at the same places."""
    every = (
        point
        for session in sessions
        for point in islice(fold_points(session, extractive(), MODEL_WINDOW_TOKENS), 1)
        if point.sent > LEAST_MESSAGES and len(_wanted(point)["any"]) >= LEAST_WANTED
    )
    smallest = sorted(every, key=lambda point: point.span.replaced_tokens)[:MODEL_FOLDS]
    names = ("model", "langchain", "rules", "tail")
    tallies = {name: Tally() for name in names}
    failed: dict[str, list[str]] = {name: [] for name in names}
    ends = time.monotonic() + MODEL_SECONDS
    try:
        with small_model() as base_url:
            for point in smallest:
                if ends - time.monotonic() < LEAST_SECONDS:
                    break  # `folds` of the rules says how many were tried
                tallies["rules"].add(point)
                tallies["tail"].add(_told(point, nothing(point.span)))
                for name, fold in (("model", _by_model), ("langchain", _by_langchain)):
                    seconds = max(min(FOLD_SECONDS, ends - time.monotonic()), LEAST_SECONDS)
                    try:
                        tallies[name].add(fold(base_url, point, seconds))
                    except NoFold as error:
                        failed[name].append(str(error))
    except (NoModel, ImportError) as error:
        return {"the small model": {"not run": str(error)}}
    return {
        f"window of {MODEL_WINDOW_TOKENS:,}: {name}": {**tally.figures(), "folds_without_summary": failed[name]}
        for name, tally in tallies.items()
    }


def _told(point: FoldPoint, summary: str) -> FoldPoint:
    return FoldPoint(session=point.session, sent=point.sent, span=point.span, summary=summary)


def _by_model(base_url: str, point: FoldPoint, seconds: float) -> FoldPoint:
    return _told(point, model_fold(base_url, point.span, seconds))


def _by_langchain(base_url: str, point: FoldPoint, seconds: float) -> FoldPoint:
    messages = point.session.messages[: point.sent]
    summary, kept = langchain_fold(base_url, messages, seconds)
    head, tail = messages[: len(messages) - kept], messages[len(messages) - kept :]
    tokens = sum(COUNTER.message(message).tokens for message in head)
    span = replace(point.span, folded=head, folded_tokens=tokens, tail=tail, replaced_tokens=tokens)
    return FoldPoint(session=point.session, sent=point.sent, span=span, summary=summary)


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
    """The report of one run; `data` is a folder of sessions."""
    sessions = recorded_sessions(data or DATA)
    ours, rows = measure(sessions, extractive())
    peers: dict[str, Mapping[str, object]] = {
        "tail only": measure(sessions, nothing)[0].figures(),
        "tight": measure(sessions, tight())[0].figures(),
        **_sources(sessions),
        **_held_out(sessions),
        **_with_model(sessions),
    }
    return Report(figures=ours.figures(), peers=peers, rows=rows)
