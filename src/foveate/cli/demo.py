"""`foveate demo`: a recorded session through the gateway with Foveate off and on, the numbers side by side."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import telling

if TYPE_CHECKING:
    from foveate.cli.demo_running import Tally
    from foveate.cli.demo_session import Played

_BUNDLED = Path(__file__).with_name("demo_session.json.gz")
_WINDOW_TOKENS = 32_000
_MOST_STEPS = 200


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
    """Replay a recorded session through the gateway, with Foveate off and on: no network, no key, a minute.

    Example: foveate demo
    """
    with telling(as_json=json):
        with screen.patience("loading"):
            from foveate.cli import demo_lines
            from foveate.cli.demo_session import played

            recorded = played(session or _BUNDLED, most_steps=_MOST_STEPS)
        is_bundled = session is None
        window_tokens = window or (_WINDOW_TOKENS if is_bundled else None)
        off, on = _both(recorded, window_tokens)
        if json:
            shown = demo_lines.as_object(recorded, off, on, window_tokens=window_tokens, is_bundled=is_bundled)
            screen.print_object(shown)
        else:
            look = screen.look(sys.stdout)
            screen.print_lines(
                demo_lines.lines(recorded, off, on, look, window_tokens=window_tokens, is_bundled=is_bundled)
            )


def _both(recorded: "Played", window_tokens: int | None) -> "tuple[Tally, Tally]":
    """What it comes to with Foveate off, and on; one after the other, so that neither waits for the other."""
    import asyncio

    from foveate.cli.demo_running import tallied

    count = len(recorded.steps)
    with _progress(2 * count) as told:
        off = asyncio.run(tallied(recorded, is_on=False, window_tokens=window_tokens, told=told))
        on = asyncio.run(
            tallied(recorded, is_on=True, window_tokens=window_tokens, told=lambda done: told(count + done))
        )
    return off, on


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A line on a terminal's standard error that says how far it is, and goes away."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _done: None
        return

    columns = screen.look(sys.stderr).columns

    def told(done: int) -> None:
        state = "off" if done <= total // 2 else "on"
        line = f"foveate: replaying with Foveate {state}, request {done} of {total}"
        # One that is longer than the terminal is wide would be written below itself each time.
        sys.stderr.write(f"\r\x1b[K{line if len(line) < columns else f'{done}/{total}'}")
        sys.stderr.flush()

    try:
        yield told
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
