"""`foveate demo`: a recorded session without a cache, with usual breakpoints and with Foveate, side by side."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import report_errors

if TYPE_CHECKING:
    from foveate.cli.demo_running import Tallies, Tally
    from foveate.cli.demo_session import DemoSession

_BUNDLED_RECORDING = Path(__file__).with_name("demo_session.json.gz")
_WINDOW_TOKENS = 32_000
_MAX_STEPS = 200
_VARIANTS = ("without a cache", "with usual breakpoints", "with Foveate")


def command(
    session: Annotated[
        Path | None,
        typer.Option(
            "--session", metavar="FILE", help="Replay one of your own recordings; default: the bundled one."
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            metavar="TOKENS",
            help=f"The window that the model is given; default: {_WINDOW_TOKENS:,}, of your own its model's.",
            min=4_000,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay a recorded session without a cache, with usual breakpoints and with Foveate: no network, no key.

    Example: foveate demo
    """
    with report_errors(as_json=json):
        with screen.show_progress("loading"):
            from foveate.cli import demo_lines
            from foveate.cli.demo_session import load_session

            recorded = load_session(session or _BUNDLED_RECORDING, max_steps=_MAX_STEPS)
        is_bundled = session is None
        window_tokens = window or (_WINDOW_TOKENS if is_bundled else None)
        tallies = _run_variants(recorded, window_tokens)
        if json:
            result = demo_lines.demo_object(
                recorded, tallies, window_tokens=window_tokens, is_bundled=is_bundled
            )
            screen.print_object(result)
        else:
            display = screen.display_for(sys.stdout)
            screen.print_lines(
                demo_lines.demo_lines(
                    recorded, tallies, display, window_tokens=window_tokens, is_bundled=is_bundled
                )
            )


def _run_variants(recorded: "DemoSession", window_tokens: int | None) -> "Tallies":
    """Replay the session in each of the three ways, one after the other, so that none waits for another."""
    import asyncio

    from foveate.cli.demo_running import Tallies, run_session
    from foveate.cli.demo_session import add_client_breakpoints

    def run(session: "DemoSession", *, is_on: bool, column: int) -> "Tally":
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
        return Tallies(
            off=run(recorded, is_on=False, column=0),
            usual=run(add_client_breakpoints(recorded), is_on=False, column=1),
            on=run(recorded, is_on=True, column=2),
        )


@contextmanager
def _show_progress(requests: int) -> Iterator[Callable[[int], None]]:
    """A line on a terminal's standard error that says how far it is, and goes away."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _done: None
        return

    columns = screen.display_for(sys.stderr).columns

    def told(done: int) -> None:
        variant, total = _VARIANTS[min((done - 1) // requests, len(_VARIANTS) - 1)], requests * len(_VARIANTS)
        line = f"foveate: replaying {variant}, request {done} of {total}"
        # One that is longer than the terminal is wide would be written below itself each time.
        sys.stderr.write(f"\r\x1b[K{line if len(line) < columns else f'{done}/{total}'}")
        sys.stderr.flush()

    try:
        yield told
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
