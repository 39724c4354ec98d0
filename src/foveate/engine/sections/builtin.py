"""Sections about the request itself: binding, channel, and what is left of the budget."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache

from foveate.budget.prompt import SectionReport, render_budget_section
from foveate.budget.sections import Priority, Section, Stability
from foveate.cost.money import format_dollars
from foveate.engine.options import BindingOptions, SectionInputs
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.tokens.text_meter import TextCounter

TURN_HEADING = "[Foveate: context for this turn, not written by the user.]"
"""Precedes the sections of a turn, since they are part of a user message."""

TURN_HEADING_TOKENS = 32
"""Upper bound of its tokens, with the blank line after it."""

_MAX_BINDINGS = 256
_MAX_LINE_CHARS = 500
# How often the numbers are rewritten until they include themselves.
_MAX_PASSES = 4


@lru_cache(_MAX_BINDINGS)
def binding_sections(binding: BindingOptions | None, channel: str) -> tuple[Section, ...]:
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
    """Render what is left of the window and of the caps, including this text, with its token count.

    `tokens` are those of everything else. `spending` has for each cap its name, its dollars, and those left.
    """
    reports = list(reports)
    lines = [
        f"Money: {format_dollars(left_dollars)} of {format_dollars(limit_dollars)} left ({cap_name})"
        for cap_name, limit_dollars, left_dollars in spending
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
    return " ".join(text.split())[:_MAX_LINE_CHARS]
