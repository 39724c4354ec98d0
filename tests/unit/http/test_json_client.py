"""Every failure of the JSON client becomes an error of Foveate."""

import json

import pytest

from foveate.errors import UpstreamError, UpstreamGarbled, UpstreamStatus, UpstreamTimeout, UpstreamUnreachable
from foveate.http import JsonClient
from tests.support.servers.counting_apis import always_reply, http_response, ok_response, raw_server
from tests.support.servers.scripted_http import reply_with, serve_script


async def test_a_response_is_returned_as_fields_in_bytes() -> None:
    async with (
        raw_server(always_reply(ok_response({"tokens": [1, 2], "n": 2}))) as server,
        JsonClient() as client,
    ):
        reply = await client.post_json(server.url, b"{}")

    assert {name: bytes(raw) for name, raw in reply.items()} == {"tokens": b"[1, 2]", "n": b"2"}


async def test_a_body_is_sent_unchanged() -> None:
    async with raw_server(lambda _path, body: ok_response(json.loads(body))) as server, JsonClient() as client:
        reply = await client.post_json(f"{server.url}/a", b'{"b":  1}', {"x-api-key": "k"})

    assert bytes(reply["b"]) == b"1"
    assert server.sent == [("/a", {"b": 1})]


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 429, 500, 503])
async def test_an_error_status_is_reported_with_one_line_of_its_body(status: int) -> None:
    reply = http_response(status, b"first\n  second " + b"x" * 10_000, "text/plain")
    async with raw_server(always_reply(reply)) as server, JsonClient() as client:
        with pytest.raises(UpstreamStatus) as failure:
            await client.post_json(server.url, b"{}")

    assert failure.value.status == status
    assert failure.value.detail.startswith("first second x")
    assert len(str(failure.value)) < 400
    assert failure.value.code == "upstream_status"


async def test_a_timeout_names_its_seconds() -> None:
    async with raw_server(always_reply(None)) as server, JsonClient(timeout_seconds=0.05) as client:
        with pytest.raises(UpstreamTimeout, match=r"no response within 0\.05 s") as failure:
            await client.post_json(server.url, b"{}")

    assert failure.value.timeout_seconds == 0.05


@pytest.mark.parametrize(
    "url", ["http://", "ftp://127.0.0.1/", "nonsense", "http://127.0.0.1:99999/", "http://[::1"]
)
async def test_an_invalid_url_is_unreachable(url: str) -> None:
    async with JsonClient() as client:
        with pytest.raises(UpstreamUnreachable):
            await client.post_json(url, b"{}")


@pytest.mark.parametrize("reply", [b"<html>", b"[1]", b"3", b"", b'{"a": ', b"\xff\xfe", b'{"a":' * 50_000])
async def test_a_response_that_is_not_a_json_object_is_garbled(reply: bytes) -> None:
    async with raw_server(always_reply(http_response(200, reply))) as server, JsonClient() as client:
        with pytest.raises(UpstreamGarbled):
            await client.post_json(server.url, b"{}")


async def test_a_header_that_cannot_be_sent_is_an_upstream_error() -> None:
    async with raw_server(always_reply(ok_response({}))) as server, JsonClient() as client:
        with pytest.raises(UpstreamError):
            await client.post_json(server.url, b"{}", {"x-api-key": "a\r\nb: c"})

    assert server.requests == 0


@pytest.mark.parametrize(("reuse", "connections"), [(True, 1), (False, 3)])
async def test_connections_are_reused_only_if_enabled(reuse: bool, connections: int) -> None:
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    async with serve_script(reply_with(reply)) as upstream, JsonClient() as client:
        for _ in range(3):
            await client.with_reuse(reuse).post_json(upstream.url, b"{}")
        await client.close()

    assert len(upstream.requests_by_connection) == connections


async def test_a_closed_client_reopens_at_the_next_call() -> None:
    async with raw_server(always_reply(ok_response({}))) as server:
        client = JsonClient()
        await client.close()
        await client.post_json(server.url, b"{}")
        await client.close()
        await client.post_json(server.url, b"{}")
        await client.close()

    assert server.requests == 2
