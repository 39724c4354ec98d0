"""Who writes a summary, and what it is shown: a model over HTTP (`model.py`), or rules (`Extractive`)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate.fold.extractive import Count, extract
from foveate.values import Message, Request, Usage

Usages = tuple[Usage | None, ...]
"""What each call was billed; None for one that may have been billed, and nobody knows how much."""

EXTRACTIVE = "extractive"
"""What stands for the name of a model where there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What is to be summarised.

    `sent` is the request as it went out: with the summary of an earlier fold in it, and with cache marks.
    `head` is all that the new summary will stand for, `new` what of it no earlier summary stands for, and
    `tail` what stays after it. `earlier` is the text of that earlier summary, `tokens` what is replaced now:
    `new` and `earlier`. `facts` were found in the head by rules, and should be named.
    """

    sent: Request
    sent_tokens: int
    head: tuple[Message, ...]
    new: tuple[Message, ...]
    tail: tuple[Message, ...]
    tokens: int
    earlier: str = ""
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A text that can stand for a span, and who wrote it."""

    text: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSummary:
    """Why there is none."""

    reason: str


class Bills:
    """What the calls for a summary were billed, failed ones too, one after the other.

    Whoever asks for the summary holds them, so that none is lost where the asking is broken off.
    """

    def __init__(self) -> None:
        self._usages: list[Usage | None] = []

    @property
    def usages(self) -> Usages:
        """All of them; None for a call that has no answer, or not yet."""
        return tuple(self._usages)

    def begin(self) -> None:
        """A call goes out; from now on it may be billed."""
        self._usages.append(None)

    def settle(self, usage: Usage | None) -> None:
        """The last call was answered, and this is what it was billed."""
        self._usages[-1] = usage

    def waive(self) -> None:
        """The last call was refused, and is not billed."""
        self._usages.pop()


class Summariser(Protocol):
    """Writes summaries. `model` is who does, for the journal."""

    @property
    def model(self) -> str:
        """The name of the model; empty where it is the agent's own."""

    async def summarise(self, span: Span, bills: Bills, *, limit_tokens: int) -> Summary | NoSummary:
        """A summary of about `limit_tokens` at most; each call for it goes into `bills` before it is made."""

    async def redraft(
        self, span: Span, draft: str, missing: Sequence[str], bills: Bills, *, limit_tokens: int
    ) -> Summary | NoSummary:
        """`draft` written once more, with what it left out."""


class Extractive:
    """Summaries by rules, without any model: what was said, word for word."""

    model = EXTRACTIVE

    def __init__(self, count: Count) -> None:
        self._count = count

    async def summarise(self, span: Span, bills: Bills, *, limit_tokens: int) -> Summary | NoSummary:
        """All of the head once more, not a summary of a summary; empty where nothing fits."""
        made = await asyncio.to_thread(
            extract, span.head, limit_tokens=limit_tokens, count=self._count, tail=span.tail
        )
        return Summary(text=made.text, model=EXTRACTIVE)

    async def redraft(
        self, span: Span, draft: str, missing: Sequence[str], bills: Bills, *, limit_tokens: int
    ) -> Summary | NoSummary:
        """None: what there is room for has been chosen already."""
        return NoSummary(reason="rules give the same summary each time")
