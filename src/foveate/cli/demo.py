"""`foveate demo`: replay a recorded session without a cache, with client breakpoints and with Foveate."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from foveate import demo
from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import report_errors

if TYPE_CHECKING:
    from foveate.demo.recording import DemoSession
    from foveate.demo.run import VariantResult, VariantResults


_BUNDLED_RECORDING = Path(demo.__file__).with_name("demo_session.json.gz")
_WINDOW_TOKENS = 32_000
_MAX_STEPS = 200
_VARIANTS = ("without a cache", "with usual breakpoints", "with Foveate")


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
            from foveate.cli.demo_output import demo_lines, demo_object
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
