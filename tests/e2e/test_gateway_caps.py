"""No request bypasses a cap: each is counted, or rejected in the error format of the provider."""

import asyncio
import gzip
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import brotli
import pytest
import zstandard

from foveate.cost.caps import Cap, CapScope, UnknownPricePolicy
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.sandbox.script import ScriptStep
from foveate.store import open_store
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

CHAT = {"model": "gpt-4.1", "max_tokens": 32_000, "messages": [{"role": "user", "content": "Hi"}]}
PLAIN = json.dumps(CHAT).encode()
FILE = {"type": "file", "file": {"file_id": "file-1"}}
FILE_BY_ID = {"model": "gpt-4.1", "max_tokens": 9, "messages": [{"role": "user", "content": [FILE]}]}
WEB_SEARCH = {"model": "gpt-5", "max_output_tokens": 16, "input": "Hi", "tools": [{"type": "web_search"}]}
CAP = Cap(scope=CapScope.TOTAL, dollars=Decimal("0.01"))
LENIENT_CAP = Cap(scope=CapScope.TOTAL, dollars=Decimal("0.01"), unknown=UnknownPricePolicy.ALLOW)


@contextmanager
def provider() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A provider that answers every request, and the requests it receives."""
    requests: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            requests.append((self.headers.get("content-encoding", ""), body))
            content = b'{"object": "list", "usage": {"prompt_tokens": 7, "total_tokens": 7}}'
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def post(url: str, body: bytes, encoding: str = "") -> tuple[int, bytes]:
    headers = {"content-type": "application/json", "authorization": "Bearer sk-x"}
    if encoding:
        headers["content-encoding"] = encoding
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def sum_charges(folder: Path) -> Sequence[ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges([GroupBy.MODEL])

    return asyncio.run(read())


BYPASSES = [
    ("/v1/chat/completions", PLAIN, "identity"),
    ("/v1/chat/completions", gzip.compress(PLAIN, mtime=0), "gzip"),
    ("/v1/chat/completions", PLAIN, "br"),
    ("/v1/chat/completions", PLAIN, "gzip"),
    ("/v1/chat/completions", b"\xef\xbb\xbf" + PLAIN, ""),
    ("/v1/chat/completions", json.dumps({**CHAT, "messages": "Hi"}).encode(), ""),
    ("/v1/chat/completions/", PLAIN, ""),
    ("/v1//chat/completions", PLAIN, ""),
    ("/v1/completions", PLAIN, ""),
    ("/v1/images/generations", PLAIN, ""),
    ("/v1/chat/completions", json.dumps({**CHAT, "max_tokens": 9, "web_search_options": {}}).encode(), ""),
    ("/v1/chat/completions", json.dumps(FILE_BY_ID).encode(), ""),
    ("/v1/responses", json.dumps(WEB_SEARCH).encode(), ""),
    ("/v1/embeddings", PLAIN, ""),
    ("/v1/embeddings", json.dumps({"model": "nobody-knows-it", "input": "x"}).encode(), ""),
]


def test_no_request_bypasses_a_cap(tmp_path: Path) -> None:
    """Regression: all of these were sent to the provider and not charged.

    Requests whose input the provider fetches were estimated by the few tokens of the body.
    """
    with provider() as (url, requests), running_gateway(url, tmp_path, caps=[CAP]) as gateway:
        responses = [post(f"{gateway.url}{path}", body, encoding) for path, body, encoding in BYPASSES]

    assert requests == []
    assert [status for status, _ in responses] == [402] * len(BYPASSES)
    assert all(json.loads(content)["error"]["code"] == "insufficient_quota" for _, content in responses)
    assert all(b"the cap on total spending" in content for _, content in responses)


@pytest.mark.parametrize("caps", [[], [LENIENT_CAP]])
def test_without_a_cap_an_unreadable_request_is_forwarded_unchanged(tmp_path: Path, caps: list[Cap]) -> None:
    unreadable = [
        ("/v1/chat/completions", b"packed", "br"),
        ("/v1/chat/completions", b"not JSON", ""),
        ("/v1/images/generations", b"{}", ""),
        ("/v1/embeddings", b"{}", ""),
    ]
    with provider() as (url, requests), running_gateway(url, tmp_path, caps=caps) as gateway:
        statuses = [post(f"{gateway.url}{path}", body, encoding)[0] for path, body, encoding in unreadable]

    assert statuses == [200] * len(unreadable)
    assert requests == [(encoding, body) for _, body, encoding in unreadable]


ONE_CALL_CAP = Cap(scope=CapScope.TOTAL, dollars=Decimal("0.30"))  # enough for one such call, not for two


def test_a_client_that_disconnects_before_the_response_is_charged(tmp_path: Path) -> None:
    """Regression: a cap did not count calls whose clients disconnected before the response."""
    with (
        running_sandbox(ScriptStep(delay_seconds=30), repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, caps=[ONE_CALL_CAP]) as gateway,
    ):
        connection = HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
        connection.request("POST", "/v1/chat/completions", PLAIN, {"authorization": f"Bearer {KEY}"})
        while not sandbox.requests:
            time.sleep(0.01)
        connection.close()
        sandbox.wait_for_abandoned_request(within_seconds=10)
        status, content = post(f"{gateway.openai_url}/chat/completions", PLAIN)

    (total,) = sum_charges(tmp_path)
    assert (status, total.calls, total.unknown_calls, total.partial_calls) == (402, 1, 1, 1)
    assert b"$0.256" in content


def test_a_provider_that_cannot_be_reached_costs_nothing(tmp_path: Path) -> None:
    with running_gateway("http://127.0.0.1:1", tmp_path, caps=[ONE_CALL_CAP]) as gateway:
        statuses = [post(f"{gateway.openai_url}/chat/completions", PLAIN)[0] for _ in range(3)]

    assert statuses == [502] * 3
    assert sum_charges(tmp_path) == []


def test_a_client_that_disconnects_before_there_is_a_connection_costs_nothing(tmp_path: Path) -> None:
    """Defect: each such call was charged its whole cost ceiling, although nothing was sent."""
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        silent_server.settimeout(10)
        url = f"https://127.0.0.1:{silent_server.getsockname()[1]}"
        with running_gateway(url, tmp_path, caps=[ONE_CALL_CAP]) as gateway:
            for _ in range(2):  # the cap has room for one
                client = HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
                client.request("POST", "/v1/chat/completions", PLAIN, {"authorization": f"Bearer {KEY}"})
                connection, _ = silent_server.accept()  # and no TLS handshake
                with connection:
                    connection.settimeout(30)
                    client.close()
                    while connection.recv(4096):
                        pass

    assert sum_charges(tmp_path) == []


@pytest.mark.parametrize(
    ("compress", "encoding_name"),
    [(gzip.compress, "gzip"), (brotli.compress, "br"), (zstandard.compress, "zstd")],
    ids=["gzip", "br", "zstd"],
)
def test_a_compressed_request_is_sent_uncompressed_and_counted(
    tmp_path: Path, compress: Callable[[bytes], bytes], encoding_name: str
) -> None:
    with provider() as (url, requests), running_gateway(url, tmp_path) as gateway:
        status, _ = post(f"{gateway.openai_url}/chat/completions", compress(PLAIN), encoding_name)

    ((encoding, body),) = requests
    assert (status, encoding) == (200, "")
    assert json.loads(body)["messages"] == CHAT["messages"]
    assert [total.group for total in sum_charges(tmp_path)] == [("gpt-4.1",)]


def test_embeddings_are_charged_at_their_price(tmp_path: Path) -> None:
    request_body = json.dumps({"model": "text-embedding-3-small", "input": "Hello"}).encode()
    with provider() as (url, requests), running_gateway(url, tmp_path, caps=[CAP]) as gateway:
        status, _ = post(f"{gateway.openai_url}/embeddings", request_body)

    (total,) = sum_charges(tmp_path)
    assert (status, requests) == (200, [("", request_body)])
    assert (total.group, total.uncached) == (("text-embedding-3-small",), 7)
    assert total.dollars == 7 * Decimal("0.02e-6")


def test_calls_in_quick_succession_are_limited_by_charges_and_not_by_old_reservations(
    tmp_path: Path,
) -> None:
    """Regression: a reservation blocked the next call until the charge was written."""
    cap = Cap(
        scope=CapScope.TOTAL, dollars=Decimal("0.30")
    )  # one call may cost 0.26, and costs next to nothing
    with provider() as (url, requests), running_gateway(url, tmp_path, caps=[cap]) as gateway:
        statuses = [post(f"{gateway.url}/v1/chat/completions", PLAIN)[0] for _ in range(6)]

    assert statuses == [200] * 6
    assert len(requests) == 6


@contextmanager
def wordy_provider() -> Iterator[tuple[str, list[int]]]:
    """A provider whose responses use the whole output limit, and the limits it receives."""
    limits: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request_body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            limits.append(request_body["max_output_tokens"])
            usage = {"input_tokens": 9, "output_tokens": limits[-1], "total_tokens": 9 + limits[-1]}
            content = json.dumps({"object": "response", "status": "incomplete", "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", limits
    finally:
        server.shutdown()
        server.server_close()


def test_parallel_calls_without_output_limits_use_up_a_cap_and_never_exceed_it(tmp_path: Path) -> None:
    """Regression: the ceiling of a Codex call was $6.58, so that a cap of $5 rejected every call."""
    dollars = Decimal(5)
    request_body = json.dumps(
        {"model": "gpt-6-astra", "input": "Hi"}
    ).encode()  # $50 for a million tokens of output
    with (
        wordy_provider() as (url, limits),
        running_gateway(url, tmp_path, caps=[Cap(scope=CapScope.DAY, dollars=dollars)]) as gateway,
    ):
        statuses: list[int] = []

        def call() -> None:
            statuses.extend(post(f"{gateway.openai_url}/responses", request_body)[0] for _ in range(4))

        threads = [threading.Thread(target=call) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    (total,) = sum_charges(tmp_path)
    assert set(statuses) == {200, 402}
    assert statuses.count(200) == len(limits) == total.calls >= 3
    assert min(limits) >= 4_000
    # The rest is too little for the lowest output limit.
    assert dollars - Decimal("0.21") < total.dollars <= dollars
