"""Connections are reused unless they are stale; responses are streamed; failures are distinguished."""

import asyncio
import gc
import select
from contextlib import suppress
from weakref import ReferenceType, ref

import pytest

from foveate.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from foveate.http.pool import ConnectionPool, Target, Timeouts, read_body
from tests.support.servers.scripted_http import (
    HELLO,
    fetch,
    reply_and_close,
    reply_with,
    serve_script,
    wait_until,
)


async def test_a_connection_serves_successive_requests() -> None:
    pool = ConnectionPool()
    async with serve_script(reply_with(HELLO)) as upstream:
        assert [await fetch(pool, upstream.target, b"1"), await fetch(pool, upstream.target, b"22")] == [
            b"hello"
        ] * 2
        await pool.close()

    host = upstream.target.authority
    assert upstream.requests_by_connection == [
        [
            b"POST /v1/x?y=1 HTTP/1.1\r\nhost: %b\r\nx-a: b\r\ncontent-length: 1\r\n\r\n1" % host,
            b"POST /v1/x?y=1 HTTP/1.1\r\nhost: %b\r\nx-a: b\r\ncontent-length: 2\r\n\r\n22" % host,
        ]
    ]


async def test_connections_are_reused_on_systems_without_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: Windows has no poll, and no connection could be made there."""
    monkeypatch.delattr(select, "poll")
    async with serve_script(reply_with(HELLO)) as upstream, ConnectionPool() as pool:
        for _ in range(2):
            assert await fetch(pool, upstream.target) == b"hello"

    assert [len(requests) for requests in upstream.requests_by_connection] == [2]


async def test_concurrent_requests_use_one_connection_each() -> None:
    pool = ConnectionPool()
    async with serve_script(reply_with(HELLO)) as upstream:
        assert await asyncio.gather(*(fetch(pool, upstream.target) for _ in range(20))) == [b"hello"] * 20
        assert len(upstream.requests_by_connection) == 20
        await asyncio.gather(*(fetch(pool, upstream.target) for _ in range(20)))
        assert len(upstream.requests_by_connection) == 20
        await pool.close()


@pytest.mark.slow
async def test_each_request_on_a_connection_has_its_own_timeout() -> None:
    """One timer serves successive requests of a connection."""

    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(waits.pop(0))
        writer.write(HELLO)

    waits = [0.0, 0.0, 0.8, 5.0]
    async with serve_script(handler) as upstream:
        pool = ConnectionPool(timeouts=Timeouts(idle_seconds=600))
        assert await fetch(pool, upstream.target) == b"hello"
        pool.timeouts = Timeouts(idle_seconds=0.6)
        assert await fetch(pool, upstream.target) == b"hello"
        pool.timeouts = Timeouts(idle_seconds=4)
        assert await fetch(pool, upstream.target) == b"hello"
        pool.timeouts = Timeouts(idle_seconds=0.1)
        with pytest.raises(UpstreamTimeout):
            await fetch(pool, upstream.target)
        await pool.close()

    assert len(upstream.requests_by_connection) == 1


async def test_a_connection_closed_by_the_server_is_not_reused() -> None:
    pool = ConnectionPool()
    async with serve_script(reply_and_close(HELLO)) as upstream:
        for _ in range(5):
            assert await fetch(pool, upstream.target) == b"hello"

    assert [len(requests) for requests in upstream.requests_by_connection] == [1] * 5


@pytest.mark.parametrize(("server", "connections"), [(b"llama.cpp", [1, 1]), (b"uvicorn", [2])])
async def test_a_connection_is_not_reused_if_its_server_closes_it_after_streams(
    server: bytes, connections: list[int]
) -> None:
    """Regression: llama.cpp closes it late if it is busy, and the next request got no response."""
    head = (
        b"HTTP/1.1 200 OK\r\nserver: %b\r\nkeep-alive: timeout=5\r\ntransfer-encoding: chunked\r\n\r\n" % server
    )
    async with serve_script(reply_with(head, b"5\r\nhello\r\n0\r\n\r\n")) as upstream, ConnectionPool() as pool:
        for _ in range(2):
            assert await fetch(pool, upstream.target) == b"hello"

    assert [len(requests) for requests in upstream.requests_by_connection] == connections


@pytest.mark.parametrize(
    ("head", "connections"),
    [
        (b"keep-alive: timeout=1, max=9\r\n", 2),
        (b"Keep-Alive: timeout=0\r\n", 2),
        (b"Keep-Alive: timeout=60, max=0\r\n", 2),
        (b"keep-alive: max=0\r\n", 2),
        (b"connection: close\r\n", 2),
        (b"keep-alive: timeout=60, max=1\r\n", 1),
        (b"keep-alive: ,;timeout=x, max\r\n", 1),
    ],
)
async def test_the_keep_alive_limits_of_a_server_are_respected(head: bytes, connections: int) -> None:
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n" + head + b"\r\n"
    async with serve_script(reply_with(reply)) as upstream, ConnectionPool() as pool:
        await fetch(pool, upstream.target)
        await fetch(pool, upstream.target)

    assert len(upstream.requests_by_connection) == connections


async def test_connections_of_a_burst_are_closed_once_they_were_unused_for_long() -> None:
    timeouts = Timeouts(keep_alive_seconds=0.1)
    async with serve_script(reply_with(HELLO)) as upstream, ConnectionPool(timeouts=timeouts) as pool:
        await asyncio.gather(*(fetch(pool, upstream.target) for _ in range(5)))
        await asyncio.sleep(0.15)
        await fetch(pool, upstream.target)
        await wait_until(lambda: upstream.is_closed == [True] * 5 + [False])


async def test_unexpected_data_closes_a_connection() -> None:
    pool = ConnectionPool()
    async with serve_script(reply_with(HELLO, b"HTTP/1.1 408 Request Timeout\r\n\r\n")) as upstream:
        assert await fetch(pool, upstream.target) == b"hello"
        await wait_until(lambda: upstream.is_closed == [True])
        assert await fetch(pool, upstream.target) == b"hello"

    assert [len(requests) for requests in upstream.requests_by_connection] == [1, 1]


@pytest.mark.parametrize("extra", [b"HTTP/1.1 408 No\r\ncontent-length: 3\r\nx: y\r\n\r\nbye", b"junk"])
async def test_data_after_a_response_is_not_part_of_it(extra: bytes) -> None:
    """Regression: if it arrived at once, the response had a wrong status or was lost."""
    async with serve_script(reply_with(HELLO + extra)) as upstream, ConnectionPool() as pool:
        for _ in range(2):
            async with pool.stream("POST", upstream.target, [], b"{}") as response:
                assert (response.status, response.headers) == (200, [(b"content-length", b"5")])
                assert [await response.read_chunk(), await response.read_chunk()] == [b"hello", b""]

    assert [len(requests) for requests in upstream.requests_by_connection] == [1, 1]


async def test_chunks_arrive_as_they_are_sent() -> None:
    more = asyncio.Event()

    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        await more.wait()
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")

    pool = ConnectionPool()
    async with serve_script(handler) as upstream, pool.stream("GET", upstream.target, []) as response:
        assert await response.read_chunk() == b"first"
        more.set()
        assert await response.read_chunk() == b"second"
        assert await response.read_chunk() == b""
    await pool.close()


@pytest.mark.slow
async def test_a_slow_reader_applies_backpressure() -> None:
    sent_bytes = 0

    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
        for _chunk in range(500):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent_bytes += 100_000

    pool = ConnectionPool(timeouts=Timeouts(idle_seconds=0.6))
    async with serve_script(handler) as upstream, pool.stream("GET", upstream.target, []) as response:
        await asyncio.sleep(0.9)  # longer than the idle timeout, but the client is slow and not the server
        assert sent_bytes < 20_000_000
        assert len(await read_body(response, max_bytes=10**8, url="")) == 50_000_000
    await pool.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
    ids=[
        "nothing",
        "truncated head",
        "truncated body",
        "truncated chunks",
        "no HTTP",
        "another protocol",
        "endless headers",
    ],
)
async def test_an_invalid_response_is_an_error_and_is_not_retried(reply: bytes) -> None:
    pool = ConnectionPool()
    async with serve_script(reply_and_close(reply)) as upstream:
        with pytest.raises(UpstreamUnreachable):
            await fetch(pool, upstream.target)

    assert [len(requests) for requests in upstream.requests_by_connection] == [1]


@pytest.mark.parametrize(
    "rest", [b"content-length: 9\r\n\r\nhello", b"transfer-encoding: chunked\r\n\r\n5\r\nhel"]
)
async def test_a_truncated_response_differs_from_no_response(rest: bytes) -> None:
    async with serve_script(reply_and_close(b"HTTP/1.1 200 OK\r\n" + rest)) as upstream:
        with pytest.raises(UpstreamBroken):
            await fetch(ConnectionPool(), upstream.target)
    async with serve_script(reply_and_close(b"")) as upstream:
        with pytest.raises(UpstreamUnreachable) as failure:
            await fetch(ConnectionPool(), upstream.target)
    assert not isinstance(failure.value, UpstreamBroken)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 O",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
    ids=["truncated head", "another protocol", "invalid status", "two lengths", "an upgrade", "a long head"],
)
async def test_after_an_invalid_response_the_request_may_have_been_served(
    reply: bytes,
) -> None:
    """Regression: such a call counted as never sent, and was not charged."""
    async with serve_script(reply_and_close(reply)) as upstream, ConnectionPool() as pool:
        with pytest.raises(UpstreamBroken):
            await fetch(pool, upstream.target)


@pytest.mark.parametrize(("work_seconds", "kind"), [(60.0, UpstreamUnreachable), (0.0, UpstreamBroken)])
async def test_a_late_close_without_a_response_may_have_served_the_request(
    work_seconds: float, kind: type[Exception]
) -> None:
    """Regression: calls dropped by a network were charged, but left no trace."""
    async with (
        serve_script(reply_and_close(b"")) as upstream,
        ConnectionPool(timeouts=Timeouts(work_seconds=work_seconds)) as pool,
    ):
        with pytest.raises(UpstreamUnreachable, match="before a response arrived") as failure:
            await fetch(pool, upstream.target)

    assert type(failure.value) is kind


class Referent:
    """An object that only the failed call refers to."""


@pytest.mark.parametrize(
    "reply",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello"],
    ids=["no response", "truncated response"],
)
async def test_a_failed_request_is_released_from_memory(reply: bytes) -> None:
    """Regression: a failed call stayed in memory until the next garbage collection."""
    references: list[ReferenceType[Referent]] = []

    async def send_failing_request(target: Target) -> None:
        referent = Referent()
        references.append(ref(referent))
        await fetch(pool, target)

    pool = ConnectionPool()
    gc.disable()
    try:
        async with serve_script(reply_and_close(reply)) as upstream:
            with suppress(UpstreamUnreachable):
                await send_failing_request(upstream.target)
            await asyncio.sleep(0)  # the event loop holds the call until then
            assert references[0]() is None
    finally:
        gc.enable()


async def test_a_response_without_a_length_ends_with_its_connection() -> None:
    async with serve_script(reply_and_close(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as upstream:
        assert await fetch(ConnectionPool(), upstream.target) == b"all of it"


async def test_informational_responses_are_skipped() -> None:
    informational = b"HTTP/1.1 100 Continue\r\nx-b: 1\r\n\r\n"
    reply = informational + b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n"
    pool = ConnectionPool()
    async with (
        serve_script(reply_with(reply)) as upstream,
        pool.stream("POST", upstream.target, []) as response,
    ):
        assert response.status == 429
        assert response.headers == [(b"Retry-After", b"7"), (b"content-length", b"0")]
        assert response.header(b"retry-after") == b"7"
        assert await response.read_chunk() == b""
    await pool.close()


async def test_the_response_to_a_head_request_has_no_body() -> None:
    pool = ConnectionPool()
    async with (
        serve_script(reply_with(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as upstream,
        pool.stream("HEAD", upstream.target, []) as response,
    ):
        assert await response.read_chunk() == b""


@pytest.mark.parametrize(
    "timeouts",
    [Timeouts(idle_seconds=0.1), Timeouts(total_seconds=0.1)],
    ids=["idle", "total"],
)
async def test_a_timeout_closes_the_connection(timeouts: Timeouts) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello")
        await reader.read()

    pool = ConnectionPool(timeouts=timeouts)
    async with serve_script(handler) as upstream:
        with pytest.raises(UpstreamTimeout) as failure:
            await fetch(pool, upstream.target)
        await wait_until(lambda: upstream.is_closed == [True])

    assert failure.value.timeout_seconds == 0.1


@pytest.mark.slow
async def test_chunks_that_keep_arriving_are_not_idle() -> None:
    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n")
        for _chunk in range(12):
            await asyncio.sleep(0.1)
            writer.write(b".")

    pool = ConnectionPool(
        timeouts=Timeouts(idle_seconds=0.8)
    )  # less than the whole response takes, and much more than one chunk
    async with serve_script(handler) as upstream:
        assert await fetch(pool, upstream.target) == b"." * 12
    await pool.close()


async def test_an_unfinished_response_closes_its_connection() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello")
        await reader.read()

    pool = ConnectionPool()
    async with serve_script(handler) as upstream:
        async with pool.stream("GET", upstream.target, []) as response:
            assert await response.read_chunk() == b"hello"
        await wait_until(lambda: upstream.is_closed == [True])


async def test_a_cancelled_request_closes_its_connection() -> None:
    async def handler(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    pool = ConnectionPool()
    async with serve_script(handler) as upstream:
        request = asyncio.create_task(fetch(pool, upstream.target))
        await wait_until(lambda: bool(upstream.requests_by_connection and upstream.requests_by_connection[0]))
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await wait_until(lambda: upstream.is_closed == [True])


def test_a_pool_can_be_used_from_successive_event_loops() -> None:
    pool = ConnectionPool()

    async def once() -> bytes:
        async with serve_script(reply_with(HELLO)) as upstream:
            return await fetch(pool, upstream.target)

    assert [asyncio.run(once()), asyncio.run(once())] == [b"hello"] * 2


@pytest.mark.slow
def test_the_pool_works_with_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")
    uvloop.run(test_a_connection_serves_successive_requests())
    uvloop.run(test_a_connection_closed_by_the_server_is_not_reused())
    uvloop.run(test_unexpected_data_closes_a_connection())
    uvloop.run(test_chunks_arrive_as_they_are_sent())
    uvloop.run(test_a_slow_reader_applies_backpressure())
    uvloop.run(test_a_cancelled_request_closes_its_connection())
