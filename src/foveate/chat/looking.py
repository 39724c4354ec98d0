"""What would be sent next, part by part, and how much of the window it takes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from foveate.budget.limits import DEFAULT_TOKENS
from foveate.chat.turns import Role, Turn
from foveate.engine.exchange import Exchange
from foveate.engine.injecting.gathering import NAME as SECTIONS
from foveate.engine.work import Work
from foveate.values import Insert, Message, Text, TokenCount

_SECTION = re.compile(r"section ([^,]+),")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that goes with the next question: an injected section with its text, or what was said."""

    name: str
    tokens: int
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The next request as it would go out.

    `window_tokens` is None where the model's window is not known, `count` where nothing counts. `summary` is
    what stands for turns that were folded, and `sections_limit` what all injected sections may have together.
    """

    model: str
    count: TokenCount | None
    window_tokens: int | None
    output_reserve: int
    sections: tuple[Part, ...] = ()
    said: tuple[Part, ...] = ()
    sections_limit: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens it is."""
        return self.count.tokens if self.count is not None else 0

    @property
    def token_budget(self) -> int:
        """How many it may be: the window less what the answer may take."""
        return max(1, (self.window_tokens or DEFAULT_TOKENS) - self.output_reserve)

    @property
    def share(self) -> float:
        """Which share of that is used."""
        return self.tokens / self.token_budget

    @property
    def parts(self) -> tuple[Part, ...]:
        """All that fills it; what goes around the messages is the last, where it is anything."""
        known = (*self.sections, *self.said)
        around = self.tokens - sum(part.tokens for part in known)
        return (*known, Part(name="around it", tokens=around)) if around > 0 else known


def look_of(exchange: Exchange, turns: Sequence[Turn], *, max_tokens: int) -> Look:
    """What a request that is looked at would be, of a conversation of so many turns."""
    work = exchange.work
    if work is None:
        problems = tuple(problem.reason for problem in exchange.outgoing.problems)
        return Look(model="", count=None, window_tokens=None, output_reserve=max_tokens, problems=problems)
    sections = work.options.sections
    return Look(
        model=work.model,
        count=work.count,
        window_tokens=work.window_tokens,
        output_reserve=work.output_reserve,
        sections=tuple(_sections(work)),
        said=tuple(_said(work, turns)),
        sections_limit=None if sections is None else sections.total_tokens,
        problems=tuple(f"{problem.step}: {problem.reason}" for problem in work.problems),
    )


def _sections(work: Work) -> list[Part]:
    """The sections that were put in, by the reason that each was given."""
    found = []
    for done in work.done:
        edit = done.edit
        if done.step != SECTIONS or not isinstance(edit, Insert):
            continue
        name = _SECTION.match(edit.reason)
        text = "\n".join(part.text for part in edit.parts if isinstance(part, Text))
        found.append(Part(name=name[1] if name else "said before", tokens=-edit.saved_tokens, text=text))
    return found


def _said(work: Work, turns: Sequence[Turn]) -> list[Part]:
    """What was said, by whom; what was folded is one part, which its summary stands for."""
    found = []
    folded = 0
    if work.fold is not None:
        folded = work.fold.messages
        found.append(
            Part(name=f"summary of {folded} messages", tokens=work.fold.tokens_after, text=work.fold.summary)
        )
    for role, name in ((Role.USER, "you"), (Role.ASSISTANT, "answers")):
        tokens = [_tokens(work, turn) for turn in turns[folded:] if turn.role is role]
        if tokens:
            found.append(Part(name=name, tokens=sum(tokens)))
    return found


def _tokens(work: Work, turn: Turn) -> int:
    message = Message(role=turn.role.value, parts=(Text(turn.sent),))
    return round(work.counter.message(message).tokens * work.rate)
