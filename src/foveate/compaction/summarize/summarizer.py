"""The summarizer protocol with its input and results, and the extractive implementation."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate.compaction.summarize.extractive import TokenCounter, summarize_by_rules
from foveate.model import Message, Request, Usage

Usages = tuple[Usage | None, ...]
"""The usage of each call; None for a call whose usage is not known."""

EXTRACTIVE_MODEL = "extractive"
"""Model name of summaries that no model wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryInput:
    """The messages to summarize, and the request that sent them last.

    `request` is what was sent last, with the summary of an earlier compaction and cache breakpoints. If not
    `is_cached`, the provider's cache no longer has it. `head` is
    everything that the new summary will replace, `new_messages` the part that no earlier summary covers, `tail`
    what follows. `replaced_tokens` counts `new_messages` and `earlier_summary`. `facts` were extracted from the
    head and should be mentioned.
    """

    request: Request
    request_tokens: int
    head: tuple[Message, ...]
    new_messages: tuple[Message, ...]
    tail: tuple[Message, ...]
    replaced_tokens: int
    earlier_summary: str = ""
    facts: tuple[str, ...] = ()
    is_cached: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    text: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryFailure:
    reason: str


class UsageLog:
    """Usage of the calls for one summary, including failed ones.

    The caller owns the log, so that no usage is lost if the summarizer is cancelled.
    """

    def __init__(self) -> None:
        self._usages: list[Usage | None] = []

    @property
    def usages(self) -> Usages:
        """The usage of each call; None for one without a response."""
        return tuple(self._usages)

    def start_call(self) -> None:
        """Log a call before it is sent; from then on it may be charged."""
        self._usages.append(None)

    def finish_call(self, usage: Usage | None) -> None:
        self._usages[-1] = usage

    def drop_call(self) -> None:
        """Remove the last call, which was rejected and is not charged."""
        self._usages.pop()


class Summarizer(Protocol):
    @property
    def model(self) -> str:
        """The name of the model, for the record; empty if it is the agent's own."""

    async def summarize(
        self, summary_input: SummaryInput, usage_log: UsageLog, *, limit_tokens: int
    ) -> Summary | SummaryFailure:
        """Write a summary of about `limit_tokens` at most, logging each call before it is sent."""

    async def redraft(
        self,
        summary_input: SummaryInput,
        draft: str,
        missing: Sequence[str],
        usage_log: UsageLog,
        *,
        limit_tokens: int,
    ) -> Summary | SummaryFailure:
        """Write `draft` again, with the facts that it omitted."""


class ExtractiveSummarizer:
    model = EXTRACTIVE_MODEL

    def __init__(self, count: TokenCounter) -> None:
        self._count = count

    async def summarize(
        self, summary_input: SummaryInput, usage_log: UsageLog, *, limit_tokens: int
    ) -> Summary | SummaryFailure:
        """Summarize the whole head again, not the earlier summary; empty if nothing fits."""
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
        """Always fails: the summary contains everything that fits already."""
        return SummaryFailure(reason="a summary by rules would be the same again")
