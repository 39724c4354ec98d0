"""One line for a status bar: cost and context of a session, expiry of its cache, limits, spending today.

A status bar starts this every few seconds. So the gateway formats the line, and this module imports little,
gives up after 200 ms and never fails. Claude Code passes a JSON object about the session on standard input;
without a gateway, the line is made of that.
"""

import os
import select
import socket
import sys
import time

TYPE_CHECKING = False  # as in the package: importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_URL = "http://127.0.0.1:8090"
STATUS_PATH = "/-/status"
LINE_MEDIA_TYPE = "text/vnd.foveate.status"
TIMEOUT_SECONDS = 0.2
_INPUT_SECONDS = 0.05
_MAX_BYTES = 1_000_000
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class NoGateway(Exception):
    """No gateway answers at an address; the message says why."""


def run(options: list[str]) -> bool:
    """Print the line; return False if there are other options than `--line`, `--session` and `--url`."""
    values = {"--session": "", "--url": ""}
    rest = [option for option in options if option != "--line"]
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in values or not (equals or rest):
            return False
        values[name] = value if equals else rest.pop(0)
    try:
        line = build_line(values["--session"], values["--url"])
    except Exception:  # noqa: BLE001 - a status bar must never show a traceback
        line = "foveate: no status"
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:  # nobody reads it
        return True
    return True


def build_line(session: str, url: str) -> str:
    agent_input = read_input()
    url = url or find_url(os.environ)
    try:
        path = f"{STATUS_PATH}?format=line&session={_quote(session or _find_session_id(agent_input))}"
        return fetch(url, path, LINE_MEDIA_TYPE)
    except (NoGateway, OSError, ValueError):
        pass
    return format_line({}, _decode_object(agent_input), time.time())


def _decode_object(text: str) -> "Mapping[str, Any]":
    if not text:
        return {}
    import json  # takes as long as all the rest

    try:
        return _object(json.loads(text))
    except ValueError:
        return {}


def find_url(environ: "Mapping[str, str]") -> str:
    """The gateway that Claude Code uses, if it is on this machine; otherwise the default address."""
    url = environ.get("ANTHROPIC_BASE_URL", "")
    return url if url.startswith(_LOOPBACK) else DEFAULT_URL


def read_input() -> str:
    """Read what Claude Code passes on standard input. Other programs leave it open, and pass nothing."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    data, deadline = b"", time.monotonic() + _INPUT_SECONDS
    while len(data) < _MAX_BYTES:
        ready, _, _ = select.select([0], [], [], max(deadline - time.monotonic(), 0))
        chunk = os.read(0, 65_536) if ready else b""
        if not chunk:
            break
        data += chunk
    return data.decode("utf-8", "replace")


def _find_session_id(agent_input: str) -> str:
    """The id in a JSON object, which is not decoded: an id contains no escapes."""
    return agent_input.partition('"session_id"')[2].partition('"')[2].partition('"')[0]


def _quote(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "replace"))


def fetch(url: str, path: str, media_type: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """Get a document of a gateway. Another program at its address would send one of another media type.

    A gateway key can be the password in the address: `http://:KEY@127.0.0.1:8090`.

    Raises:
        NoGateway: the address is not one of HTTP, or the response is an error.
        OSError: nothing answers there in time.
        ValueError: the port is not a number.
    """
    scheme, _, rest = url.partition("://")
    credentials, _, address = rest.partition("/")[0].rpartition("@")
    host, colon, port = address.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address, "80"
    host = host.strip("[]")
    if scheme != "http" or not host:
        raise NoGateway(f"is not an address such as {DEFAULT_URL}")
    request = f"GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n"
    if credentials:
        from binascii import b2a_base64

        request += f"authorization: Basic {b2a_base64(credentials.encode(), newline=False).decode()}\r\n"
    deadline = time.monotonic() + timeout_seconds
    response = b""
    # Without getaddrinfo, which loads tables of Unicode to encode names.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as connection:
        connection.settimeout(timeout_seconds)
        connection.connect((host, int(port)))
        connection.sendall(f"{request}\r\n".encode())
        while len(response) < _MAX_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = connection.recv(65_536)
            if not chunk:
                break
            response += chunk
    head, _, body = response.partition(b"\r\n\r\n")
    status_line, _, headers = head.decode("latin-1").partition("\r\n")
    if "www-authenticate: basic" in headers.lower():
        raise NoGateway("needs a gateway key; pass it as the password: --url http://:KEY@HOST:PORT")
    if status_line.split()[1:2] != ["200"] or f"content-type: {media_type}" not in headers.lower():
        raise NoGateway(
            f"answers {status_line[:80] or 'nothing'}, not as a gateway with a dashboard; "
            "--url takes another address"
        )
    return body.decode("utf-8", "replace")


def format_line(status: "Mapping[str, Any]", agent_input: "Mapping[str, Any]", now: float) -> str:
    """Format what is known, separated by bars: by the gateway, or else by the agent."""
    session = _object(status.get("session"))
    parts = (
        _format_cost(session, _object(agent_input.get("cost"))),
        _format_context(session, _object(agent_input.get("context_window"))),
        _format_cache(session, now),
        *_format_limits(status, session, _object(agent_input.get("rate_limits"))),
        _format_today(status) if status else "no gateway",
    )
    return " | ".join(part for part in parts if part)


def _format_cost(session: "Mapping[str, Any]", agent_cost: "Mapping[str, Any]") -> str:
    if session:
        dollars, unpriced = session["dollars"], session["unpriced"]
        return "$?" if dollars is None else f"${float(dollars):,.2f}{' + ?' * bool(unpriced)}"
    dollars = agent_cost.get("total_cost_usd")
    return f"${dollars:,.2f}" if isinstance(dollars, int | float) else ""


def _format_context(session: "Mapping[str, Any]", agent_context: "Mapping[str, Any]") -> str:
    tokens, window = session.get("tokens"), session.get("window_tokens")
    if tokens is not None and window:
        return f"context {tokens / window:.0%}"
    used = agent_context.get("used_percentage")
    return f"context {used:.0f}%" if isinstance(used, int | float) else ""


def _format_cache(session: "Mapping[str, Any]", now: float) -> str:
    """The time until the prompt cache of the session expires."""
    expires_at = session.get("cache_expires_at")
    if expires_at is None:
        return ""
    seconds = int(expires_at - now)
    return f"cache {seconds // 60}:{seconds % 60:02}" if seconds > 0 else "cache expired"


def _format_limits(
    status: "Mapping[str, Any]", session: "Mapping[str, Any]", agent_limits: "Mapping[str, Any]"
) -> list[str]:
    """Used shares of the limits of a subscription, such as `5h 37%`."""
    used = {
        limit["limit"]: limit["used"]
        for limit in status.get("limits", ())
        if not session or limit["agent"] == session["agent"]
    }
    for name, key in (("5h", "five_hour"), ("7d", "seven_day")):
        share = _object(agent_limits.get(key)).get("used_percentage")
        if isinstance(share, int | float):
            used.setdefault(name, share / 100)
    return [f"{name} {share:.0%}" for name, share in used.items() if share is not None]


def _format_today(status: "Mapping[str, Any]") -> str:
    """Spending today, and the cap that is nearest to its limit."""
    today = status["today"]
    unpriced = " + ?" * bool(today["unpriced"])
    text = "today $?" if today["dollars"] is None else f"today ${float(today['dollars']):,.2f}{unpriced}"
    if not status["caps"]:
        return text
    fullest = max(status["caps"], key=lambda cap: cap["used"])
    return f"{text} | cap {fullest['used']:.0%} of ${float(fullest['dollars']):,.2f}"


def _object(value: object) -> "Mapping[str, Any]":
    return value if isinstance(value, dict) else {}
