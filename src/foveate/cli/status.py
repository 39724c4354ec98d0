"""`foveate status`: what a running gateway says about itself, today's cost and a session."""

import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from foveate import status_line
from foveate.cli.shared import console
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.tables import Column, Fit, Styled, format_table
from foveate.cli.store import AsJson
from foveate.errors import UpstreamUnreachable

_TIMEOUT_SECONDS = 5.0


def command(
    line: Annotated[
        bool,
        typer.Option(
            "--line",
            help="Print one short line for a status bar. Never fails, and takes at most 0.2 seconds. Reads the "
            "session from standard input, as Claude Code passes it.",
        ),
    ] = False,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="ID",
            help="A session: its id, or the id that its agent gives it. Default: the newest session.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Address of the gateway, with a gateway key if it needs one: http://:KEY@HOST:PORT. Default: "
            f"ANTHROPIC_BASE_URL if it is on this machine, else {status_line.DEFAULT_URL}.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show a running gateway: health, cost today and caps, and a session's cost, context and cache.

    Example: foveate status --line
    """
    if line:
        status_line.run([*_option("--session", session), *_option("--url", url)])
        return
    with report_errors(as_json=json):
        from json import loads
        from time import time
        from urllib.parse import quote

        address = url or status_line.find_url(os.environ)
        try:
            path = f"{status_line.STATUS_PATH}?session={quote(session or '', safe='')}"
            document = status_line.fetch(address, path, "application/json", timeout_seconds=_TIMEOUT_SECONDS)
            status = loads(document)
        except status_line.NoGateway as error:
            raise UpstreamUnreachable(_hide_key(address), str(error)) from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            advice = (
                "start it with: foveate serve"
                if isinstance(error, ConnectionRefusedError)
                else "is it the address of a gateway? --url takes another one"
            )
            raise UpstreamUnreachable(_hide_key(address), f"{reason or error}; {advice}") from None
        if json:
            console.print_object({"url": _hide_key(address), **status})
            return
        rows = list(_status_rows(_hide_key(address), status, time()))
        columns = (Column(), Column(fit=Fit.WRAP))
        console.print_lines(format_table(columns, rows, console.display_for(sys.stdout)))
        if session and status["session"] is None:
            console.print_note(f"the gateway has no session {session!r:.80}")


def _hide_key(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [f"{name}={value}"]


def _status_rows(address: str, status: dict[str, Any], now: float) -> Iterator[tuple[str, str | Styled]]:
    health = status["health"]
    yield "gateway", Styled(f"{address}, {health}", "green" if health == "ok" else "yellow")
    today = status["today"]
    yield "today (UTC)", f"{_format_dollars(today)} for {_count(today['calls'], 'call')}"
    for cap in status["caps"]:
        style = "red" if cap["used"] >= 1 else ""
        left = f"${float(cap['left']):,.2f} of ${float(cap['dollars']):,.2f} left"
        yield "cap", Styled(f"{cap['cap']}: {cap['used']:.0%} used, {left}", style)
    for limit in status["limits"]:
        used = "usage unknown" if limit["used"] is None else f"{limit['used']:.0%} used"
        reset = limit["resets_at"]
        when = f", resets in {_format_duration(reset - now)}" if reset is not None and reset > now else ""
        yield "limit", f"{limit['limit']} of {limit['agent']} at {limit['provider']}: {used}{when}"
    if session := status["session"]:
        yield "session", f"{session['session_id']} of {session['agent']}, {session['model']}"
        yield "cost", f"{_format_dollars(session)} for {_count(session['calls'], 'call')}"
        if session["tokens"] is not None:
            window = session["window_tokens"]
            share = f" of {window:,} ({session['tokens'] / window:.0%})" if window else ""
            yield "context", f"{session['tokens']:,} tokens{share}"
        if session["cache_expires_at"] is not None:
            seconds = session["cache_expires_at"] - now
            yield "cache", f"expires in {_format_duration(seconds)}" if seconds > 0 else "expired"


def _format_dollars(totals: dict[str, Any]) -> str:
    if totals["dollars"] is None:
        return "unknown cost"
    return f"${float(totals['dollars']):,.2f}{' + ?' * bool(totals['unpriced'])}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2 * 24 * 60 else f"{minutes // 1440} days"


def _count(number: int, singular: str) -> str:
    return f"{number:,} {singular}{'s' * (number != 1)}"
