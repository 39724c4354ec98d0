"""Sections made of what is known of a request: its binding, its channel, what is left of its budget."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache

from foveate.budget.prompt import SectionReport, context_budget
from foveate.budget.sections import Priority, Section, Stability
from foveate.cost.money import in_words
from foveate.engine.injecting.options import BindingOptions, Told
from foveate.tokens.gauge import TextCounter
from foveate.values import NOTHING, TokenCount

HEADING = "[Foveate: context for this turn, which the user has not said.]"
"""What stands before the sections of a turn, since they stand among the user's words."""

HEADING_TOKENS = 32
"""As many as that takes at most, with the blank line behind it."""

_KEPT_BINDINGS = 256
_LONGEST_CHARS = 500
# How often the numbers of a budget are written anew until they count themselves.
_TRIES = 4


@lru_cache(_KEPT_BINDINGS)
def binding_sections(binding: BindingOptions | None, channel: str) -> tuple[Section, ...]:
    """Whom the agent is bound to: its peers, what holds in this channel, its language."""
    if binding is None:
        return ()
    peers = [f"Peer: {peer}" for peer in binding.peers]
    said = dict(binding.channels).get(channel, "")
    language = f"Answer in {binding.language}." if binding.language else ""
    found = {"peers": "\n".join(peers), "channel_prompt": said, "language": language}
    return tuple(
        Section(name, text, priority=Priority.HIGH, stability=Stability.SESSION)
        for name, text in found.items()
        if text.strip()
    )


def channel_sections(told: Told) -> tuple[Section, ...]:
    """Where the request comes from, and whom from."""
    lines = [f"Channel: {_line(told.channel)}"] if told.channel.strip() else []
    lines += [f"Channel {_line(name)}: {_line(said)}" for name, said in told.metadata if said.strip()]
    sender = [f"Sender: {_line(told.sender)}"] if told.sender.strip() else []
    return tuple(
        Section(name, items=entries, priority=Priority.MEDIUM, keep="head", stability=Stability.TURN)
        for name, entries in (("channel", lines), ("sender", sender))
        if entries
    )


def budget_text(
    reports: Iterable[SectionReport],
    *,
    tokens: int,
    limit_tokens: int | None,
    money: Sequence[tuple[str, Decimal, Decimal]],
    counter: TextCounter,
) -> tuple[str, TokenCount]:
    """What is left of the window and of money, with itself in it, and how many tokens that is.

    `tokens` are those of all else. `money` has for each cap what it is on, its dollars, and those left.
    """
    reports = list(reports)
    lines = [f"Money: {in_words(left)} of {in_words(most)} left ({what})" for what, most, left in money]
    if limit_tokens is None:
        text = "\n".join(["## Context Budget", f"Using about {tokens} tokens", *lines])
        return text, counter.text(text)
    own, text = NOTHING, ""
    for _ in range(_TRIES):
        said = context_budget(reports, tokens=tokens + own.upper, limit_tokens=limit_tokens)
        text = "\n".join([said, *lines])
        before, own = own, counter.text(text)
        if own.upper == before.upper:
            break
    return text, own


def _line(text: str) -> str:
    """On one line, and no longer than what somebody is called."""
    return " ".join(text.split())[:_LONGEST_CHARS]
