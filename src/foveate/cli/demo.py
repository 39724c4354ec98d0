"""`foveate demo`: replay a recorded session without a cache, with client breakpoints and with Foveate."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from foveate import demo
from foveate.cli.shared import console
from foveate.cli.shared.console import Display
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.tables import Column, Fit, format_dollar_column, format_table, style_text, wrap_text

if TYPE_CHECKING:
    from foveate.demo.recording import DemoSession
    from foveate.demo.run import VariantResult, VariantResults

_BUNDLED_RECORDING = Path(demo.__file__).with_name("demo_session.json.gz")
_WINDOW_TOKENS = 32_000
_MAX_STEPS = 200
_VARIANTS = ("without a cache", "with usual breakpoints", "with Foveate")
_WIDE_COLUMNS = 64
_NEXT_COMMANDS = (
    ("foveate replay ~/.claude/projects", "compare costs for your own sessions"),
    ("foveate serve", "run the gateway for your agents"),
    ("foveate explain", "see edits and context windows of requests"),
    ("foveate doctor", "check the setup"),
)
# Names of missing parts that are not plain English.
_PART_LABELS = {"bill": "usage", "price of a tier": "price of the service tier"}


def command(
    session: Annotated[
        Path | None,
        typer.Option(
            "--session",
            metavar="FILE",
            help="Recording to replay, in any format that `foveate replay` reads. Default: the bundled session"
            " of a small documentation agent.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            metavar="TOKENS",
            help=f"Context window in tokens. Default: {_WINDOW_TOKENS}; with --session, the model's window.",
            min=4_000,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Show what Foveate saves in a recorded session. Needs no API key and no network.

    Example: foveate demo
    """
    with report_errors(as_json=json):
        with console.show_progress("loading"):
            from foveate.demo.recording import load_session

            recorded = load_session(session or _BUNDLED_RECORDING, max_steps=_MAX_STEPS)
        is_bundled = session is None
        window_tokens = window or (_WINDOW_TOKENS if is_bundled else None)
        results = _run_variants(recorded, window_tokens)
        if json:
            result = demo_object(recorded, results, window_tokens=window_tokens, is_bundled=is_bundled)
            console.print_object(result)
        else:
            display = console.display_for(sys.stdout)
            console.print_lines(
                demo_lines(recorded, results, display, window_tokens=window_tokens, is_bundled=is_bundled)
            )


def _run_variants(recorded: "DemoSession", window_tokens: int | None) -> "VariantResults":
    """Replay the session in three variants, one after the other, so that they do not compete for the CPU."""
    import asyncio

    from foveate.demo.recording import add_client_breakpoints
    from foveate.demo.run import VariantResults, run_session

    def run(session: "DemoSession", *, is_on: bool, column: int) -> "VariantResult":
        done_before = column * len(recorded.requests)
        return asyncio.run(
            run_session(
                session,
                is_on=is_on,
                window_tokens=window_tokens,
                report_progress=lambda done: report_progress(done_before + done),
            )
        )

    with _show_progress(len(recorded.requests)) as report_progress:
        return VariantResults(
            off=run(recorded, is_on=False, column=0),
            usual=run(add_client_breakpoints(recorded), is_on=False, column=1),
            on=run(recorded, is_on=True, column=2),
        )


@contextmanager
def _show_progress(requests: int) -> Iterator[Callable[[int], None]]:
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _done: None
        return

    columns, began = console.display_for(sys.stderr).columns, monotonic()

    def report_progress(done: int) -> None:
        variant, total = _VARIANTS[min((done - 1) // requests, len(_VARIANTS) - 1)], requests * len(_VARIANTS)
        line = f"foveate: replaying {variant}, request {done} of {total}, {monotonic() - began:.0f} s elapsed"
        # A line longer than the terminal would wrap, and could not be overwritten.
        sys.stderr.write(f"\r\x1b[K{line if len(line) < columns else f'{done}/{total}'}")
        sys.stderr.flush()

    try:
        yield report_progress
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def demo_object(
    session: "DemoSession", results: "VariantResults", *, window_tokens: int | None, is_bundled: bool
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


def _variant_object(result: "VariantResult") -> dict[str, object]:
    per_answer = result.dollars_per_answer
    fields: dict[str, object] = {
        name: f"{value:f}" if isinstance(value, Decimal) else value for name, value in asdict(result).items()
    }
    return fields | {
        "hit_ratio": round(result.hit_ratio, 4),
        "dollars_per_answer": None if per_answer is None else f"{per_answer:.8f}",
    }


def demo_lines(
    session: "DemoSession",
    results: "VariantResults",
    display: Display,
    *,
    window_tokens: int | None,
    is_bundled: bool,
) -> Iterator[str]:
    for paragraph in _introduction(session, window_tokens, is_bundled=is_bundled):
        yield from wrap_text(paragraph, display)
    yield ""
    yield from _table(session, results, display)
    yield ""
    for paragraph in _conclusions(session, results):
        yield from wrap_text(paragraph, display, style="bold")
    yield ""
    yield style_text("Next steps", "bold", display)
    yield from format_table((Column(), Column(drop_order=1)), _NEXT_COMMANDS, display, indent=2)


def _introduction(session: "DemoSession", window_tokens: int | None, *, is_bundled: bool) -> Iterator[str]:
    from foveate.demo.recording import BREAK_EVERY, BREAK_SECONDS, QUESTION_SECONDS, STEP_SECONDS
    from foveate.model import Format

    if is_bundled:
        yield (
            "This recorded session is a small agent that answers questions about Foveate by searching and"
            " reading its documentation. The tools and their results are real; a small local model (SmolLM2,"
            " 135M) chose what to read and wrote the answers. The replay uses the prices and the cache of"
            f" {session.model}."
        )
    else:
        yield f"Session {session.name}, model {session.model or 'unknown'}."
    window = "" if window_tokens is None else f" The context window is {window_tokens:,} tokens."
    yield (
        f"Each of its {len(session.requests)} requests is sent three times through the gateway to the sandbox,"
        f" which simulates the provider's cache, prices and limits.{window} The responses are placeholders."
    )
    if session.format is Format.ANTHROPIC:
        yield "- no cache: the requests have no breakpoints."
        yield (
            "- usual breakpoints: breakpoints on the system prompt and the last two user messages, as coding"
            " agents place them."
        )
        yield "- Foveate: the gateway places breakpoints and compacts the history."
    else:
        yield (
            "This provider caches automatically, so there are no usual breakpoints. With Foveate, the gateway"
            " sets cache keys and compacts the history."
        )
    if session.missing_parts:
        parts = ", ".join(_PART_LABELS.get(part, part) for part in sorted(session.missing_parts))
        yield (
            f"The recording does not contain: {parts}. These are missing in all numbers, so the real cost was"
            " higher. `foveate replay` takes them from the recorded usage."
        )
    if session.is_thinking_removed:
        yield "Thinking is left out, because only the provider that wrote it can read it."
    if session.left_out:
        yield f"Only the first requests of the session are replayed; {session.left_out:,} more are left out."
    if session.broken_lines:
        lines = f"{session.broken_lines:,} line{'s' * (session.broken_lines != 1)}"
        yield f"{lines} of the recording could not be read: `foveate replay` lists them."
    if not session.has_times:
        yield (
            f"Simulated time: {STEP_SECONDS:.0f} s between the steps of an answer, {QUESTION_SECONDS / 60:.0f}"
            f" minutes before each question, and {BREAK_SECONDS / 60:.0f} minutes before every"
            f" {_ordinal(BREAK_EVERY)} question."
        )


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third", 4: "fourth", 5: "fifth"}.get(number, f"{number}th")


def _table(session: "DemoSession", results: "VariantResults", display: Display) -> Iterator[str]:
    from foveate.model import Format

    variants = results.columns
    first = "no cache" if session.format is Format.ANTHROPIC else "as recorded"
    usual = "usual breakpoints" if display.columns >= _WIDE_COLUMNS else "usual"
    columns = (
        Column(fit=Fit.SHORTEN),
        *(Column(heading=heading, align="right") for heading in (first, usual, "Foveate")),
    )
    costs = format_dollar_column([result.dollars for result in variants])
    costs_per_response = [
        "unknown" if result.dollars_per_answer is None else f"${result.dollars_per_answer:.4f}"
        for result in variants
    ]
    rows = [
        ("requests answered", *(f"{result.answered} of {result.requests}" for result in variants)),
        ("rejected as too long", *(f"{result.refused}" for result in variants)),
        ("other failures", *(f"{result.failed}" for result in variants)),
        ("cost", *costs),
        ("cost per response", *costs_per_response),
        ("cache hit ratio", *(f"{result.hit_ratio:.2f}" for result in variants)),
        ("input tokens, uncached", *(f"{result.uncached:,}" for result in variants)),
        ("read from the cache", *(f"{result.read:,}" for result in variants)),
        ("written to the cache", *(f"{result.written:,}" for result in variants)),
        ("output tokens", *(f"{result.output:,}" for result in variants)),
        ("largest context", *(f"{result.largest_context:,}" for result in variants)),
        ("compactions", *(f"{result.folds}" for result in variants)),
        ("edits of requests", *(f"{result.edits}" for result in variants)),
        ("time added per request", *(f"{result.added_ms:.1f} ms" for result in variants)),
    ]
    yield from format_table(columns, [row for row in rows if set(row[1:]) != {"0"}], display)


def _conclusions(session: "DemoSession", results: "VariantResults") -> Iterator[str]:
    off, usual, on = results.columns
    if on.failed:
        yield f"The sandbox rejects {on.failed} of the requests as invalid; the first error: {on.failure}"
    if usual.refused > on.refused:
        more = f"it and {usual.refused - 1} more are" if usual.refused > 1 else "it is"
        yield (
            f"Without Foveate, the session ends at request {usual.refused_at}: {more} rejected as too long."
            f" With Foveate, {on.answered} of {on.requests} requests are answered."
        )
    summaries = (
        f" This includes {_format_dollars(on.summary_dollars)} for summaries." if on.summary_dollars else ""
    )
    differences = [
        change
        for other, name in _baselines(session, off, usual)
        if (change := _describe_difference(other, on, name))
    ]
    if differences:
        yield f"With Foveate, a response costs {' and '.join(differences)}.{summaries}"


def _baselines(
    session: "DemoSession", off: "VariantResult", usual: "VariantResult"
) -> "list[tuple[VariantResult, str]]":
    from foveate.model import Format

    if session.format is not Format.ANTHROPIC:
        return [(off, "without Foveate")]
    return [(usual, "with the usual breakpoints"), (off, "without a cache")]


def _describe_difference(before: "VariantResult", after: "VariantResult", name: str) -> str:
    before_dollars, after_dollars = before.dollars_per_answer, after.dollars_per_answer
    if not before_dollars or after_dollars is None:
        return ""
    percent = round(100 * (before_dollars - after_dollars) / before_dollars)
    if not percent:
        return f"the same as {name}"
    return f"{abs(percent)}% {'less' if percent > 0 else 'more'} than {name}"


def _format_dollars(dollars: Decimal | None) -> str:
    return "unknown" if dollars is None else f"${dollars:.4f}"
