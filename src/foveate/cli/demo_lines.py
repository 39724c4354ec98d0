"""What `foveate demo` shows: the numbers side by side, and where to look next."""

from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal

from rich.cells import cell_len

from foveate.cli.demo_running import Tallies, Tally
from foveate.cli.demo_session import BREAK_EVERY, BREAK_SECONDS, QUESTION_SECONDS, STEP_SECONDS, Played
from foveate.cli.screen import Look
from foveate.values import Format

_BOLD, _DIM, _GREEN = "1", "2", "32"
_GAP = "  "
_WIDE_COLUMNS = 64
_NEXT = (
    ("foveate replay ~/.claude/projects", "what your own sessions would have cost"),
    ("foveate serve", "the gateway, for your agent's base URL"),
    ("foveate explain", "what it did to requests, and their windows"),
    ("foveate doctor", "whether all that it needs is there"),
)


def as_object(
    session: Played, tallies: Tallies, *, window_tokens: int | None, is_bundled: bool
) -> dict[str, object]:
    """All of it as JSON can say it; money is a string, so that nothing of it is lost."""
    return {
        "session": session.name,
        "is_bundled": is_bundled,
        "model": session.model,
        "requests": len(session.steps),
        "window_tokens": window_tokens,
        "off": _tally_object(tallies.off),
        "usual": _tally_object(tallies.usual),
        "on": _tally_object(tallies.on),
        "overflows_prevented": max(0, tallies.usual.refused - tallies.on.refused),
    }


def _tally_object(tally: Tally) -> dict[str, object]:
    per_answer = tally.dollars_per_answer
    said = {
        name: f"{value:f}" if isinstance(value, Decimal) else value for name, value in asdict(tally).items()
    }
    return said | {
        "hit_ratio": round(tally.hit_ratio, 4),
        "dollars_per_answer": None if per_answer is None else f"{per_answer:.8f}",
    }


def lines(
    session: Played, tallies: Tallies, look: Look, *, window_tokens: int | None, is_bundled: bool
) -> Iterator[str]:
    """What was replayed, a table, what it says, and what to type next."""
    for said in _about(session, window_tokens, is_bundled=is_bundled):
        yield from _wrapped(said, look)
    yield ""
    yield from _table(session, tallies, look)
    yield ""
    for said in _meaning(session, tallies):
        yield from (_painted(line, _BOLD, look) for line in _wrapped(said, look))
    yield ""
    yield _painted("where to look next", _BOLD, look)
    width = max(len(command) for command, _ in _NEXT)
    for command, about in _NEXT:
        line = f"  {command:<{width}}{_GAP}{about}"
        yield line if cell_len(line) <= look.columns else f"  {command}"


def _about(session: Played, window_tokens: int | None, *, is_bundled: bool) -> Iterator[str]:
    if is_bundled:
        yield (
            "A recorded session: a small agent answers questions about Foveate by searching and reading its"
            " pages. The tools and what they found are real; a small local model (SmolLM2, 135M) chose what to"
            f" read, and wrote the answers. It is replayed as if {session.model} were asked."
        )
    else:
        yield f"The session {session.name}, with {session.model or 'its model'}."
    window = "" if window_tokens is None else f", which is given a window of {window_tokens:,} tokens"
    yield (
        f"{len(session.steps)} requests go through the gateway three times to the sandbox, a stand-in that"
        f" caches, bills and refuses as the provider does{window}. Its answers are made up."
    )
    if session.format is Format.ANTHROPIC:
        yield (
            "no cache: no breakpoints. usual breakpoints: on the system prompt and the last two messages of the"
            " user, as coding agents place them. Foveate: the gateway places breakpoints, and compacts."
        )
    else:
        yield (
            "This provider caches unasked, so that there are no usual breakpoints. Foveate: the gateway says"
            " what belongs together, and compacts."
        )
    if session.lacks:
        yield (
            f"The recording does not hold: {', '.join(sorted(session.lacks))}. They are not in the numbers,"
            " which are lower than what was paid; `foveate replay` takes them from the bill."
        )
    if session.is_unsealed:
        yield "Thinking is left out: only the provider that wrote it can read it."
    if session.left_out:
        yield f"These are the first requests of the session; {session.left_out:,} more are left out."
    if session.broken_lines:
        lines = f"{session.broken_lines:,} line{'s' * (session.broken_lines != 1)}"
        yield f"{lines} of the recording could not be read: `foveate replay` says which."
    if not session.has_times:
        yield (
            f"The clock is moved: {STEP_SECONDS:.0f} s between the steps of an answer,"
            f" {QUESTION_SECONDS / 60:.0f} minutes before a question, and {BREAK_SECONDS / 60:.0f} before each"
            f" {_ordinal(BREAK_EVERY)}."
        )


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third", 4: "fourth", 5: "fifth"}.get(number, f"{number}th")


def _table(session: Played, tallies: Tallies, look: Look) -> Iterator[str]:
    columns = tallies.columns
    first = "no cache" if session.format is Format.ANTHROPIC else "as recorded"
    failed = [("not answered otherwise", *(f"{one.failed}" for one in columns))]
    rows = [
        ("", first, "usual breakpoints" if look.columns >= _WIDE_COLUMNS else "usual", "Foveate"),
        ("requests answered", *(f"{one.answered} of {one.requests}" for one in columns)),
        ("refused as too long", *(f"{one.refused}" for one in columns)),
        *(failed if any(one.failed for one in columns) else []),
        ("input tokens, uncached", *(f"{one.uncached:,}" for one in columns)),
        ("read from the cache", *(f"{one.read:,}" for one in columns)),
        ("written to the cache", *(f"{one.written:,}" for one in columns)),
        ("output tokens", *(f"{one.output:,}" for one in columns)),
        ("hit ratio", *(f"{one.hit_ratio:.2f}" for one in columns)),
        ("largest context", *(f"{one.largest_context:,}" for one in columns)),
        ("compactions", *(f"{one.folds}" for one in columns)),
        ("edits of requests", *(f"{one.edits}" for one in columns)),
        ("added to a request", *(f"{one.added_ms:.1f} ms" for one in columns)),
        ("dollars", *(_dollars(one.dollars) for one in columns)),
        ("dollars an answer", *(_dollars(one.dollars_per_answer) for one in columns)),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, (name, *cells) in enumerate(rows):
        line = _GAP.join(
            [
                f"{name:<{widths[0]}}",
                *(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)),
            ]
        )
        yield _painted(line, _DIM, look) if number == 0 else line


def _meaning(session: Played, tallies: Tallies) -> Iterator[str]:
    off, usual, on = tallies.columns
    if on.failed:
        yield f"The sandbox takes {on.failed} of the requests for wrong; the first: {on.failure}"
    if usual.refused > on.refused:
        more = f"it and {usual.refused - 1} more are" if usual.refused > 1 else "it is"
        yield (
            f"Without Foveate the session ends at request {usual.refused_at}: {more} refused as too long. With"
            f" it {on.answered} of {on.requests} are answered."
        )
    summaries = f", with the {_dollars(on.summary_dollars)} that summaries cost" if on.summary_dollars else ""
    compared = [change for other, name in _others(session, off, usual) if (change := _change(other, on, name))]
    if compared:
        yield f"With Foveate an answer costs {', and '.join(compared)}{summaries}."


def _others(session: Played, off: Tally, usual: Tally) -> list[tuple[Tally, str]]:
    if session.format is not Format.ANTHROPIC:
        return [(off, "without it")]
    return [(usual, "with the usual breakpoints"), (off, "without a cache")]


def _change(before: Tally, after: Tally, name: str) -> str:
    """Say how much less or more an answer costs than in another way; empty if a price is unknown."""
    one, other = before.dollars_per_answer, after.dollars_per_answer
    if not one or other is None:
        return ""
    percent = round(100 * (one - other) / one)
    if not percent:
        return f"as much as {name}"
    return f"{abs(percent)}% {'less' if percent > 0 else 'more'} than {name}"


def _dollars(dollars: Decimal | None) -> str:
    return "unknown" if dollars is None else f"${dollars:.4f}"


def _wrapped(text: str, look: Look) -> list[str]:
    found = [""]
    for word in look.plain(text).split():
        if found[-1] and cell_len(f"{found[-1]} {word}") > look.columns:
            found.append(word)
        else:
            found[-1] = f"{found[-1]} {word}".lstrip()
    return found


def _painted(text: str, colour: str, look: Look) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if text and look.colours else text
