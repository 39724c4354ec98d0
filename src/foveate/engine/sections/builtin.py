"""Sections made of what is known of a request: its binding, its channel, what is left of its budget."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache

from foveate.budget.prompt import SectionReport, render_budget_section
from foveate.budget.sections import Priority, Section, Stability
from foveate.cost.money import format_dollars
from foveate.engine.options import BindingOptions, SectionInputs
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.tokens.text_meter import TextCounter

TURN_HEADING = "[Foveate: context for this turn, which the user has not said.]"
"""What stands before the sections of a turn, since they stand among the user's words."""

TURN_HEADING_TOKENS = 32
"""As many as that takes at most, with the blank line behind it."""

_MAX_BINDINGS = 256
_MAX_LINE_CHARS = 500
# How often the numbers of a budget are written anew until they count themselves.
_MAX_PASSES = 4


@lru_cache(_MAX_BINDINGS)
def binding_sections(binding: BindingOptions | None, channel: str) -> tuple[Section, ...]:
    """Whom the agent is bound to: its peers, what holds in this channel, its language."""
    if binding is None:
        return ()
    peers = [f"Peer: {peer}" for peer in binding.peers]
    channel_prompt = dict(binding.channels).get(channel, "")
    language = f"Answer in {binding.language}." if binding.language else ""
    texts = {"peers": "\n".join(peers), "channel_prompt": channel_prompt, "language": language}
    return tuple(
        Section(name, text, priority=Priority.HIGH, stability=Stability.SESSION)
        for name, text in texts.items()
        if text.strip()
    )


def channel_sections(inputs: SectionInputs) -> tuple[Section, ...]:
    """Where the request comes from, and whom from."""
    lines = [f"Channel: {_one_line(inputs.channel)}"] if inputs.channel.strip() else []
    lines += [f"Channel {_one_line(name)}: {_one_line(text)}" for name, text in inputs.metadata if text.strip()]
    sender = [f"Sender: {_one_line(inputs.sender)}"] if inputs.sender.strip() else []
    return tuple(
        Section(name, items=entries, priority=Priority.MEDIUM, keep="head", stability=Stability.TURN)
        for name, entries in (("channel", lines), ("sender", sender))
        if entries
    )


def render_budget(
    reports: Iterable[SectionReport],
    *,
    tokens: int,
    limit_tokens: int | None,
    spending: Sequence[tuple[str, Decimal, Decimal]],
    counter: TextCounter,
) -> tuple[str, TokenCount]:
    """What is left of the window and of money, with itself in it, and how many tokens that is.

    `tokens` are those of all else. `money` has for each cap what it is on, its dollars, and those left.
    """
    reports = list(reports)
    lines = [
        f"Money: {format_dollars(left_dollars)} of {format_dollars(limit_dollars)} left ({what})"
        for what, limit_dollars, left_dollars in spending
    ]
    if limit_tokens is None:
        text = "\n".join(["## Context Budget", f"Using about {tokens} tokens", *lines])
        return text, counter.text(text)
    own_count, text = ZERO_TOKENS, ""
    for _ in range(_MAX_PASSES):
        window_text = render_budget_section(reports, tokens=tokens + own_count.upper, limit_tokens=limit_tokens)
        text = "\n".join([window_text, *lines])
        previous_count, own_count = own_count, counter.text(text)
        if own_count.upper == previous_count.upper:
            break
    return text, own_count


def _one_line(text: str) -> str:
    """On one line, and no longer than what somebody is called."""
    return " ".join(text.split())[:_MAX_LINE_CHARS]
