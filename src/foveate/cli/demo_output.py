"""Output of `foveate demo`: the variants side by side, and what to try next."""

from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal

from rich.cells import cell_len

from foveate.cli.console import Display
from foveate.demo.recording import BREAK_EVERY, BREAK_SECONDS, QUESTION_SECONDS, STEP_SECONDS, DemoSession
from foveate.demo.run import VariantResult, VariantResults
from foveate.model import Format

_BOLD, _DIM, _GREEN = "1", "2", "32"
_GAP = "  "
_WIDE_COLUMNS = 64
_NEXT_COMMANDS = (
    ("foveate replay ~/.claude/projects", "what your own sessions would have cost"),
    ("foveate serve", "the gateway, for your agent's base URL"),
    ("foveate explain", "what it did to requests, and their windows"),
    ("foveate doctor", "whether all that it needs is there"),
)


def demo_object(
    session: DemoSession, results: VariantResults, *, window_tokens: int | None, is_bundled: bool
) -> dict[str, object]:
    """Return the results as JSON: money as strings."""
    return {
        "session": session.name,
        "is_bundled": is_bundled,
        "model": session.model,
        "requests": len(session.requests),
        "window_tokens": window_tokens,
        "off": _variant_object(results.off),
        "usual": _variant_object(results.usual),
        "on": _variant_object(results.on),
        "overflows_prevented": max(0, results.usual.refused - results.on.refused),
    }


def _variant_object(result: VariantResult) -> dict[str, object]:
    per_answer = result.dollars_per_answer
    fields = {
        name: f"{value:f}" if isinstance(value, Decimal) else value for name, value in asdict(result).items()
    }
    return fields | {
        "hit_ratio": round(result.hit_ratio, 4),
        "dollars_per_answer": None if per_answer is None else f"{per_answer:.8f}",
    }


def demo_lines(
    session: DemoSession,
    results: VariantResults,
    display: Display,
    *,
    window_tokens: int | None,
    is_bundled: bool,
) -> Iterator[str]:
    for paragraph in _introduction(session, window_tokens, is_bundled=is_bundled):
        yield from _wrap(paragraph, display)
    yield ""
    yield from _table(session, results, display)
    yield ""
    for paragraph in _conclusions(session, results):
        yield from (_paint(line, _BOLD, display) for line in _wrap(paragraph, display))
    yield ""
    yield _paint("where to look next", _BOLD, display)
    width = max(len(command) for command, _ in _NEXT_COMMANDS)
    for command, description in _NEXT_COMMANDS:
        line = f"  {command:<{width}}{_GAP}{description}"
        yield line if cell_len(line) <= display.columns else f"  {command}"


def _introduction(session: DemoSession, window_tokens: int | None, *, is_bundled: bool) -> Iterator[str]:
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
        f"{len(session.requests)} requests go through the gateway three times to the sandbox, a stand-in that"
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
    if session.missing_parts:
        yield (
            f"The recording does not hold: {', '.join(sorted(session.missing_parts))}. They are not in the"
            " numbers, which are lower than what was paid; `foveate replay` takes them from the bill."
        )
    if session.is_thinking_removed:
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


def _table(session: DemoSession, results: VariantResults, display: Display) -> Iterator[str]:
    columns = results.columns
    first = "no cache" if session.format is Format.ANTHROPIC else "as recorded"
    failed = [("not answered otherwise", *(f"{result.failed}" for result in columns))]
    rows = [
        ("", first, "usual breakpoints" if display.columns >= _WIDE_COLUMNS else "usual", "Foveate"),
        ("requests answered", *(f"{result.answered} of {result.requests}" for result in columns)),
        ("refused as too long", *(f"{result.refused}" for result in columns)),
        *(failed if any(result.failed for result in columns) else []),
        ("input tokens, uncached", *(f"{result.uncached:,}" for result in columns)),
        ("read from the cache", *(f"{result.read:,}" for result in columns)),
        ("written to the cache", *(f"{result.written:,}" for result in columns)),
        ("output tokens", *(f"{result.output:,}" for result in columns)),
        ("hit ratio", *(f"{result.hit_ratio:.2f}" for result in columns)),
        ("largest context", *(f"{result.largest_context:,}" for result in columns)),
        ("compactions", *(f"{result.folds}" for result in columns)),
        ("edits of requests", *(f"{result.edits}" for result in columns)),
        ("added to a request", *(f"{result.added_ms:.1f} ms" for result in columns)),
        ("dollars", *(_format_dollars(result.dollars) for result in columns)),
        ("dollars an answer", *(_format_dollars(result.dollars_per_answer) for result in columns)),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, (name, *cells) in enumerate(rows):
        line = _GAP.join(
            [
                f"{name:<{widths[0]}}",
                *(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)),
            ]
        )
        yield _paint(line, _DIM, display) if number == 0 else line


def _conclusions(session: DemoSession, results: VariantResults) -> Iterator[str]:
    off, usual, on = results.columns
    if on.failed:
        yield f"The sandbox takes {on.failed} of the requests for wrong; the first: {on.failure}"
    if usual.refused > on.refused:
        more = f"it and {usual.refused - 1} more are" if usual.refused > 1 else "it is"
        yield (
            f"Without Foveate the session ends at request {usual.refused_at}: {more} refused as too long. With"
            f" it {on.answered} of {on.requests} are answered."
        )
    summaries = (
        f", with the {_format_dollars(on.summary_dollars)} that summaries cost" if on.summary_dollars else ""
    )
    differences = [
        change
        for other, name in _baselines(session, off, usual)
        if (change := _describe_difference(other, on, name))
    ]
    if differences:
        yield f"With Foveate an answer costs {', and '.join(differences)}{summaries}."


def _baselines(
    session: DemoSession, off: VariantResult, usual: VariantResult
) -> list[tuple[VariantResult, str]]:
    if session.format is not Format.ANTHROPIC:
        return [(off, "without it")]
    return [(usual, "with the usual breakpoints"), (off, "without a cache")]


def _describe_difference(before: VariantResult, after: VariantResult, name: str) -> str:
    before_dollars, after_dollars = before.dollars_per_answer, after.dollars_per_answer
    if not before_dollars or after_dollars is None:
        return ""
    percent = round(100 * (before_dollars - after_dollars) / before_dollars)
    if not percent:
        return f"as much as {name}"
    return f"{abs(percent)}% {'less' if percent > 0 else 'more'} than {name}"


def _format_dollars(dollars: Decimal | None) -> str:
    return "unknown" if dollars is None else f"${dollars:.4f}"


def _wrap(text: str, display: Display) -> list[str]:
    wrapped = [""]
    for word in display.escape(text).split():
        if wrapped[-1] and cell_len(f"{wrapped[-1]} {word}") > display.columns:
            wrapped.append(word)
        else:
            wrapped[-1] = f"{wrapped[-1]} {word}".lstrip()
    return wrapped


def _paint(text: str, colour: str, display: Display) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if text and display.colours else text
