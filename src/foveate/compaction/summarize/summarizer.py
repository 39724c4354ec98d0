"""Who writes a summary, and what it is shown: a model over HTTP (`model.py`), or rules (`Extractive`)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate.compaction.summarize.extractive import CountTokens, summarize_by_rules
from foveate.model import Message, Request, Usage

Usages = tuple[Usage | None, ...]
"""What each call was billed; None for one that may have been billed, and nobody knows how much."""

EXTRACTIVE_MODEL = "extractive"
"""What stands for the name of a model where there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryInput:
    """What is to be summarised.

    `sent` is the request as it went out: with the summary of an earlier fold in it, and with cache marks.
    `head` is all that the new summary will stand for, `new` what of it no earlier summary stands for, and
    `tail` what stays after it. `earlier` is the text of that earlier summary, `tokens` what is replaced now:
    `new` and `earlier`. `facts` were found in the head by rules, and should be named.
    """

    request: Request
    request_tokens: int
    head: tuple[Message, ...]
    new_messages: tuple[Message, ...]
    tail: tuple[Message, ...]
    replaced_tokens: int
    earlier_summary: str = ""
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A text that can stand for a span, and who wrote it."""

    text: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryFailure:
    """Why there is none."""

    reason: str


class UsageLog:
    """What the calls for a summary were billed, failed ones too, one after the other.

    Whoever asks for the summary holds them, so that none is lost where the asking is broken off.
    """

    def __init__(self) -> None:
        self._usages: list[Usage | None] = []

    @property
    def usages(self) -> Usages:
        """All of them; None for a call that has no answer, or not yet."""
        return tuple(self._usages)

    def start_call(self) -> None:
        """A call goes out; from now on it may be billed."""
        self._usages.append(None)

    def finish_call(self, usage: Usage | None) -> None:
        """The last call was answered, and this is what it was billed."""
        self._usages[-1] = usage

    def drop_call(self) -> None:
        """The last call was refused, and is not billed."""
        self._usages.pop()


class Summarizer(Protocol):
    """Writes summaries. `model` is who does, for the journal."""

    @property
    def model(self) -> str:
        """The name of the model; empty where it is the agent's own."""

    async def summarize(
        self, summary_input: SummaryInput, usage_log: UsageLog, *, limit_tokens: int
    ) -> Summary | SummaryFailure:
        """A summary of about `limit_tokens` at most; each call for it goes into `bills` before it is made."""

    async def redraft(
        self,
        summary_input: SummaryInput,
        draft: str,
        missing: Sequence[str],
        usage_log: UsageLog,
        *,
        limit_tokens: int,
    ) -> Summary | SummaryFailure:
        """`draft` written once more, with what it left out."""


class ExtractiveSummarizer:
    """Summaries by rules, without any model: what was said, word for word."""

    model = EXTRACTIVE_MODEL

    def __init__(self, count: CountTokens) -> None:
        self._count = count

    async def summarize(
        self, summary_input: SummaryInput, usage_log: UsageLog, *, limit_tokens: int
    ) -> Summary | SummaryFailure:
        """All of the head once more, not a summary of a summary; empty where nothing fits."""
        summary = await asyncio.to_thread(
            summarize_by_rules,
            summary_input.head,
            limit_tokens=limit_tokens,
            count=self._count,
            tail=summary_input.tail,
        )
        return Summary(text=summary.text, model=EXTRACTIVE_MODEL)

    async def redraft(
        self,
        summary_input: SummaryInput,
        draft: str,
        missing: Sequence[str],
        usage_log: UsageLog,
        *,
        limit_tokens: int,
    ) -> Summary | SummaryFailure:
        """None: what there is room for has been chosen already."""
        return SummaryFailure(reason="rules give the same summary each time")
