"""The line for status bars: what it shows, and that it gives up soon."""

import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.status_line import DEFAULT_URL, LINE_MEDIA_TYPE, NoGateway, fetch, find_url, format_line

NOW = 1_794_000_000.0
STATUS: dict[str, Any] = {
    "today": {"calls": 9, "unpriced": 0, "dollars": "5.6"},
    "caps": [
        {"cap": "day", "dollars": "20", "used": 0.28, "left": "14.4"},
        {"cap": "all", "dollars": "500", "used": 0.01, "left": "490"},
    ],
    "limits": [
        {"agent": "ana", "provider": "anthropic", "limit": "5h", "used": 0.37, "resets_at": NOW + 60},
        {"agent": "bob", "provider": "anthropic", "limit": "5h", "used": 0.9, "resets_at": NOW + 60},
        {"agent": "ana", "provider": "anthropic", "limit": "7d", "used": None, "resets_at": None},
    ],
    "session": {
        "agent": "ana",
        "dollars": "1.2345",
        "unpriced": 0,
        "tokens": 90_000,
        "window_tokens": 200_000,
        "cache_expires_at": NOW + 252.9,
    },
}
AGENT_INPUT = {
    "session_id": "s",
    "cost": {"total_cost_usd": 0.4},
    "context_window": {"used_percentage": 12.4},
    "rate_limits": {"five_hour": {"used_percentage": 37}, "seven_day": {"used_percentage": 4.6}},
}


def test_all_that_the_gateway_knows_is_in_the_line() -> None:
    line = format_line(STATUS, {}, NOW)
    assert line == "$1.23 | context 45% | cache 4:12 | 5h 37% | today $5.60 | cap 28% of $20.00"


def test_without_a_gateway_the_line_is_what_the_agent_says() -> None:
    assert format_line({}, AGENT_INPUT, NOW) == "$0.40 | context 12% | 5h 37% | 7d 5% | no gateway"
    assert format_line({}, {}, NOW) == "no gateway"


def test_unknown_prices_are_never_zero() -> None:
    unknown = {"unpriced": 2, "dollars": None}
    status = STATUS | {"session": STATUS["session"] | unknown, "today": unknown, "caps": [], "limits": []}
    assert format_line(status, {}, NOW) == "$? | context 45% | cache 4:12 | today $?"
    partly = {"unpriced": 1, "dollars": "1"}
    status |= {"session": STATUS["session"] | partly, "today": partly}
    assert format_line(status, {}, NOW + 300) == "$1.00 + ? | context 45% | cache expired | today $1.00 + ?"


def test_a_new_gateway_has_no_session() -> None:
    status: dict[str, Any] = {"today": {"unpriced": 0, "dollars": "0"}, "caps": [], "limits": []}
    assert format_line(status, {}, NOW) == "today $0.00"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.dictionaries(
            st.sampled_from(
                ["cost", "total_cost_usd", "context_window", "used_percentage", "rate_limits", "five_hour"]
            ),
            inner,
        ),
    )
)
def test_any_input_of_an_agent_gives_one_line(agent_input: object) -> None:
    line = format_line({}, agent_input if isinstance(agent_input, dict) else {}, NOW)
    assert line.endswith("no gateway")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("", DEFAULT_URL),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("http://localhost:9000/v1", "http://localhost:9000/v1"),
        ("https://api.anthropic.com", DEFAULT_URL),
    ],
)
def test_the_gateway_of_claude_code_is_asked_if_it_is_local(base_url: str, expected: str) -> None:
    assert find_url({"ANTHROPIC_BASE_URL": base_url}) == expected


@contextmanager
def serve(body: str, media_type: str = LINE_MEDIA_TYPE, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", f"{media_type}; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{body} {self.path}{self.headers.get('authorization', '')}".encode())

        def log_message(self, *_: object, **__: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_document_is_fetched() -> None:
    with serve("$1") as url:
        assert fetch(f"{url}/ignored", "/-/status?session=%C3%A4", LINE_MEDIA_TYPE, timeout_seconds=10) == (
            "$1 /-/status?session=%C3%A4"
        )


def test_a_key_in_the_address_is_sent_as_a_password() -> None:
    with serve("$1") as url:
        document = fetch(url.replace("//", "//:fov-key@"), "/", LINE_MEDIA_TYPE, timeout_seconds=10)
    assert document == f"$1 /Basic {b64encode(b':fov-key').decode()}"


def test_another_program_at_the_address_is_not_a_gateway() -> None:
    for server in (serve("<html>", "text/html"), serve("{}", status=404)):
        with server as url, pytest.raises(NoGateway, match="not as a gateway"):
            fetch(url, "/", LINE_MEDIA_TYPE, timeout_seconds=10)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:80", "http://", "", "ftp://x"])
def test_an_address_that_is_not_http_is_rejected(url: str) -> None:
    with pytest.raises(NoGateway, match="is not an address"):
        fetch(url, "/", LINE_MEDIA_TYPE)


@pytest.mark.slow
def test_a_gateway_that_does_not_answer_is_given_up_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            fetch(f"http://127.0.0.1:{silent.getsockname()[1]}", "/", LINE_MEDIA_TYPE)
        assert time.monotonic() - started >= 0.2
