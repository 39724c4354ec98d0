"""How much of what later turns mention again is still sent after a fold, on recorded sessions.

Each session is folded wherever a window of 40,000 tokens would have it folded, with what stood before the fold
replaced by the fold's summary from then on. Of the paths, identifiers and numbers that stood in what was folded
so far, those count that the user or the model mentions after the fold before any tool's result has shown them
again: those have to be known (`carried`). Those that anybody mentions later, results of tools included, are
`carried_any`. Both look at all that is sent, summary and tail; `…_by_summary` leaves out of the question what
stands in the tail anyway. Of the user's constraints, all that were folded count, mentioned later or not.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from benchmarks.fold_mentions import Kind, Mention, constraints, mentions, returned, spoken, stands
from benchmarks.fold_peers import NoModel, langchain_fold, small_model
from benchmarks.fold_sessions import Recorded, recorded_sessions
from benchmarks.harness import Cell, Report
from foveate.fold.boundary import History, boundary, trigger_tokens
from foveate.fold.extractive import extract, summary_limit
from foveate.tokens import counter_for
from foveate.values import Message

DATA = Path(__file__).parents[2] / "shared" / "data" / "sessions"
WINDOW_TOKENS = 40_000
# The small model reads slowly: a few folds are enough to compare.
LANGCHAIN_FOLDS = 4
# Sessions are counted with one vocabulary, whichever model they were recorded with.
COUNTER = counter_for("gpt-4o")

# A summary of the messages that go, given those that stay, and how many tokens it stands for.
Summarise = Callable[[Sequence[Message], Sequence[Message], int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPoint:
    """A session folded when `sent` of its messages were there: `folded` went and `tail` stayed.

    `replaced_tokens` is what the fold takes out of what was sent: the turns that go, and the summary before.
    """

    session: Recorded
    sent: int
    folded: Sequence[Message]
    tail: Sequence[Message]
    replaced_tokens: int
    summary: str

    @property
    def later(self) -> Sequence[Message]:
        """What was said after the fold."""
        return self.session.messages[self.sent :]


def fold_points(
    session: Recorded, summarise: Summarise, window_tokens: int = WINDOW_TOKENS
) -> Iterator[FoldPoint]:
    """Where the session would be folded, each time after the one before has taken effect."""
    trigger = trigger_tokens(window_tokens, 0)
    tokens = [COUNTER.message(message).tokens for message in session.messages]
    cut = summary_tokens = 0
    gone: set[int] = set()
    for sent in range(1, len(tokens)):
        if session.messages[sent].role != "assistant":
            continue  # nothing is asked for here
        held = sum(tokens[place] for place in range(sent) if place not in gone)
        if held + summary_tokens < trigger:
            continue
        messages = session.messages[:sent]
        found = boundary(messages, tokens[:sent], trigger_tokens=trigger, beyond=cut)
        if found is None:
            continue
        cut = found
        folded = set(History(messages).folded(cut))
        replaced = sum(tokens[place] for place in folded - gone) + summary_tokens
        gone = folded
        head = [message for place, message in enumerate(messages) if place in folded]
        tail = [message for place, message in enumerate(messages) if place not in folded]
        summary = summarise(head, tail, replaced)
        summary_tokens = COUNTER.text(summary).tokens
        yield FoldPoint(
            session=session, sent=sent, folded=head, tail=tail, replaced_tokens=replaced, summary=summary
        )


@dataclass(slots=True)
class Tally:
    """What was wanted and what was still there, over folds."""

    wanted: Counter[str] = field(default_factory=Counter)
    carried: Counter[str] = field(default_factory=Counter)
    replaced_tokens: int = 0
    summary_tokens: int = 0
    folds: int = 0

    def add(self, point: FoldPoint) -> dict[str, Cell]:
        """Count one fold; a row of it."""
        self.folds += 1
        self.replaced_tokens += point.replaced_tokens
        tokens = COUNTER.text(point.summary).tokens
        self.summary_tokens += tokens
        tail = "\n".join(text for message in point.tail for text in (spoken(message), returned(message)))
        wanted = _wanted(point)
        row: dict[str, Cell] = {
            "session": point.session.name,
            "sent": point.sent,
            "replaced_tokens": point.replaced_tokens,
            "summary_tokens": tokens,
        }
        for name, group in wanted.items():
            in_tail = {mention for mention in group if stands(mention, tail)}
            in_summary = {mention for mention in group if stands(mention, point.summary)}
            self._count(name, group, in_tail | in_summary)
            self._count(f"{name}_by_summary", group - in_tail, in_summary - in_tail)
            if name == "needed":
                for kind in Kind:
                    of_kind = {mention for mention in group if mention.kind is kind}
                    self._count(kind.value, of_kind, (in_tail | in_summary) & of_kind)
            row |= {
                name: len(group),
                f"{name}_sent": len(in_tail | in_summary),
                f"{name}_in_tail": len(in_tail),
            }
        return row

    def _count(self, name: str, wanted: set[Mention], carried: set[Mention]) -> None:
        self.wanted[name] += len(wanted)
        self.carried[name] += len(carried)

    def share(self, name: str) -> float | None:
        """How much of it was still there; None where none was wanted."""
        return self.carried[name] / self.wanted[name] if self.wanted[name] else None

    def figures(self) -> dict[str, float]:
        """All of it, by name."""
        shares = {name: share for name in self.wanted if (share := self.share(name)) is not None}
        size = self.summary_tokens / self.replaced_tokens if self.replaced_tokens else 0.0
        return {
            "folds": self.folds,
            "summary_share_of_tokens": size,
            **{f"carried_{name}": share for name, share in shares.items()},
        }


def _wanted(point: FoldPoint) -> Mapping[str, set[Mention]]:
    """What should still be there: needed by who goes on, mentioned by anybody, and the user's constraints."""
    stood: set[Mention] = set()
    for message in point.folded:
        stood |= mentions(spoken(message)) | mentions(returned(message))
    needed: set[Mention] = set()
    shown: set[Mention] = set()
    for message in point.later:
        said = mentions(spoken(message))
        needed |= said - shown
        shown |= said | mentions(returned(message))
    said_so = {constraint for message in point.folded for constraint in constraints(message)}
    return {"needed": needed & stood, "any": shown & stood, "all_constraints": said_so}


def _extractive(head: Sequence[Message], tail: Sequence[Message], replaced_tokens: int) -> str:
    return extract(head, limit_tokens=summary_limit(replaced_tokens), count=_tokens, tail=tail).text


def _nothing(*_: object) -> str:
    return ""


def _tokens(text: str) -> int:
    return COUNTER.text(text).upper


def measure(sessions: Sequence[Recorded], summarise: Summarise) -> tuple[Tally, list[dict[str, Cell]]]:
    """All folds of all sessions, counted."""
    tally = Tally()
    rows = [tally.add(point) for session in sessions for point in fold_points(session, summarise)]
    return tally, rows


def _beside_langchain(sessions: Sequence[Recorded]) -> dict[str, dict[str, object]]:
    """LangChain's fold at the first fold of some sessions, and ours at the same; slow, so only there."""
    every = (point for session in sessions for point in islice(fold_points(session, _extractive), 1))
    first = list(islice(every, LANGCHAIN_FOLDS))
    ours, theirs = Tally(), Tally()
    try:
        with small_model() as base_url:
            for point in first:
                messages = point.session.messages[: point.sent]
                summary, kept = langchain_fold(base_url, messages)
                head, tail = messages[: len(messages) - kept], messages[len(messages) - kept :]
                tokens = sum(COUNTER.message(message).tokens for message in head)
                theirs.add(replace(point, folded=head, tail=tail, replaced_tokens=tokens, summary=summary))
                ours.add(point)
    except (NoModel, ImportError) as error:
        return {"langchain": {"not run": str(error)}}
    return {"langchain, first folds": {**theirs.figures()}, "foveate, first folds": {**ours.figures()}}


def run(data: Path | None) -> Report:
    """The report of one run; `data` is a folder of sessions."""
    sessions = recorded_sessions(data or DATA)
    ours, rows = measure(sessions, _extractive)
    tail_only, _ = measure(sessions, _nothing)
    peers: dict[str, Mapping[str, object]] = {"tail only": tail_only.figures(), **_beside_langchain(sessions)}
    return Report(figures=ours.figures(), peers=peers, rows=rows)
