"""Connections are reused unless they are stale; responses are streamed; failures are distinguished."""

import asyncio
import gc
import select
from contextlib import suppress
from weakref import ReferenceType, ref

import pytest

from foveate.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from foveate.http.pool import ConnectionPool, Target, Timeouts, read_body
from tests.support.servers.scripted_http import HELLO, closing, eventually, got, saying, server


async def test_a_connection_serves_successive_requests() -> None:
    pool = ConnectionPool()
    async with server(saying(HELLO)) as upstream:
        assert [await got(pool, upstream.target, b"1"), await got(pool, upstream.target, b"22")] == [
            b"hello"
        ] * 2
        await pool.close()

    host = upstream.target.authority
    assert upstream.heard == [
        [
            b"POST /v1/x?y=1 HTTP/1.1\r\nhost: %b\r\nx-a: b\r\ncontent-length: 1\r\n\r\n1" % host,
            b"POST /v1/x?y=1 HTTP/1.1\r\nhost: %b\r\nx-a: b\r\ncontent-length: 2\r\n\r\n22" % host,
        ]
    ]


async def test_a_connection_is_used_again_also_where_the_system_has_no_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: Windows has no poll, and no connection could be made there."""
    monkeypatch.delattr(select, "poll")
    async with server(saying(HELLO)) as made, ConnectionPool() as pool:
        for _ in range(2):
            assert await got(pool, made.target) == b"hello"

    assert [len(requests) for requests in made.heard] == [2]


async def test_requests_at_once_have_a_connection_each() -> None:
    pool = ConnectionPool()
    async with server(saying(HELLO)) as upstream:
        assert await asyncio.gather(*(got(pool, upstream.target) for _ in range(20))) == [b"hello"] * 20
        assert len(upstream.heard) == 20
        await asyncio.gather(*(got(pool, upstream.target) for _ in range(20)))
        assert len(upstream.heard) == 20
        await pool.close()


@pytest.mark.slow
async def test_each_request_on_a_connection_has_its_own_timeout() -> None:
    """One timer watches over a connection, from one request to the next."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(waits.pop(0))
        writer.write(HELLO)

    waits = [0.0, 0.0, 0.8, 5.0]
    async with server(talk) as upstream:
        pool = ConnectionPool(timeouts=Timeouts(idle_seconds=600))
        assert await got(pool, upstream.target) == b"hello"
        pool.timeouts = Timeouts(idle_seconds=0.6)
        assert await got(pool, upstream.target) == b"hello"
        pool.timeouts = Timeouts(idle_seconds=4)
        assert await got(pool, upstream.target) == b"hello"
        pool.timeouts = Timeouts(idle_seconds=0.1)
        with pytest.raises(UpstreamTimeout):
            await got(pool, upstream.target)
        await pool.close()

    assert len(upstream.heard) == 1


async def test_a_connection_that_was_closed_meanwhile_is_never_sent_to() -> None:
    pool = ConnectionPool()
    async with server(closing(HELLO)) as upstream:
        for _ in range(5):
            assert await got(pool, upstream.target) == b"hello"

    assert [len(requests) for requests in upstream.heard] == [1] * 5


@pytest.mark.parametrize(
    "head", [b"keep-alive: timeout=1, max=9\r\n", b"Keep-Alive: timeout=0\r\n", b"connection: close\r\n"]
)
async def test_a_server_that_keeps_connections_shortly_is_believed(head: bytes) -> None:
    pool = ConnectionPool()
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n" + head + b"\r\n"
    async with server(saying(reply)) as upstream:
        await got(pool, upstream.target)
        await got(pool, upstream.target)
        await pool.close()

    assert len(upstream.heard) == 2


async def test_unexpected_data_closes_a_connection() -> None:
    pool = ConnectionPool()
    async with server(saying(HELLO, b"HTTP/1.1 408 Request Timeout\r\n\r\n")) as upstream:
        assert await got(pool, upstream.target) == b"hello"
        await eventually(lambda: upstream.gone == [True])
        assert await got(pool, upstream.target) == b"hello"

    assert [len(requests) for requests in upstream.heard] == [1, 1]


@pytest.mark.parametrize("behind", [b"HTTP/1.1 408 No\r\ncontent-length: 3\r\nx: y\r\n\r\nbye", b"junk"])
async def test_what_comes_behind_an_answer_is_none_of_it(behind: bytes) -> None:
    """Regression: if it arrived at once, the response had a wrong status or was lost."""
    async with server(saying(HELLO + behind)) as upstream, ConnectionPool() as pool:
        for _ in range(2):
            async with pool.stream("POST", upstream.target, [], b"{}") as answer:
                assert (answer.status, answer.headers) == (200, [(b"content-length", b"5")])
                assert [await answer.read_chunk(), await answer.read_chunk()] == [b"hello", b""]

    assert [len(requests) for requests in upstream.heard] == [1, 1]


async def test_pieces_come_as_they_are_sent() -> None:
    more = asyncio.Event()

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        await more.wait()
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")

    pool = ConnectionPool()
    async with server(talk) as upstream, pool.stream("GET", upstream.target, []) as answer:
        assert await answer.read_chunk() == b"first"
        more.set()
        assert await answer.read_chunk() == b"second"
        assert await answer.read_chunk() == b""
    await pool.close()


@pytest.mark.slow
async def test_who_reads_slowly_keeps_the_server_waiting() -> None:
    sent = 0

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
        for _round in range(500):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    pool = ConnectionPool(timeouts=Timeouts(idle_seconds=0.6))
    async with server(talk) as upstream, pool.stream("GET", upstream.target, []) as answer:
        await asyncio.sleep(0.9)  # longer than may pass without a word, but it is not the server that is slow
        assert sent < 20_000_000
        assert len(await read_body(answer, max_bytes=10**8, url="")) == 50_000_000
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
    ids=["nothing", "half a head", "cut", "cut chunks", "no HTTP", "another protocol", "headers without end"],
)
async def test_an_answer_that_is_none_is_an_error_and_is_not_asked_for_again(reply: bytes) -> None:
    pool = ConnectionPool()
    async with server(closing(reply)) as upstream:
        with pytest.raises(UpstreamUnreachable):
            await got(pool, upstream.target)

    assert [len(requests) for requests in upstream.heard] == [1]


@pytest.mark.parametrize(
    "said", [b"content-length: 9\r\n\r\nhello", b"transfer-encoding: chunked\r\n\r\n5\r\nhel"]
)
async def test_a_truncated_response_differs_from_no_response(said: bytes) -> None:
    async with server(closing(b"HTTP/1.1 200 OK\r\n" + said)) as upstream:
        with pytest.raises(UpstreamBroken):
            await got(ConnectionPool(), upstream.target)
    async with server(closing(b"")) as upstream:
        with pytest.raises(UpstreamUnreachable) as failure:
            await got(ConnectionPool(), upstream.target)
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
    ids=["half a head", "another protocol", "no such status", "two lengths", "an upgrade", "a long head"],
)
async def test_a_server_that_answers_with_something_else_than_http_may_have_served_the_request(
    reply: bytes,
) -> None:
    """Regression: such a call counted as never sent, and was not charged."""
    async with server(closing(reply)) as upstream, ConnectionPool() as pool:
        with pytest.raises(UpstreamBroken):
            await got(pool, upstream.target)


@pytest.mark.parametrize(("work_seconds", "kind"), [(60.0, UpstreamUnreachable), (0.0, UpstreamBroken)])
async def test_who_closes_without_a_word_may_have_done_what_it_had_the_time_for(
    work_seconds: float, kind: type[Exception]
) -> None:
    """Regression: calls dropped by a network were charged, but left no trace."""
    async with (
        server(closing(b"")) as upstream,
        ConnectionPool(timeouts=Timeouts(work_seconds=work_seconds)) as pool,
    ):
        with pytest.raises(UpstreamUnreachable, match="before an answer came") as failure:
            await got(pool, upstream.target)

    assert type(failure.value) is kind


class Held:
    """An object that the caller refers to."""


@pytest.mark.parametrize(
    "reply", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello"], ids=["none", "cut"]
)
async def test_a_failed_request_is_not_kept_in_memory(reply: bytes) -> None:
    """Regression: a failed call stayed in memory until the next garbage collection."""
    held: list[ReferenceType[Held]] = []

    async def asking(where: Target) -> None:
        own = Held()
        held.append(ref(own))
        await got(pool, where)

    pool = ConnectionPool()
    gc.disable()
    try:
        async with server(closing(reply)) as upstream:
            with suppress(UpstreamUnreachable):
                await asking(upstream.target)
            await asyncio.sleep(0)  # the loop has it until then
            assert held[0]() is None
    finally:
        gc.enable()


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with server(closing(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as upstream:
        assert await got(ConnectionPool(), upstream.target) == b"all of it"


async def test_the_head_of_an_answer_is_given_without_what_came_before_it() -> None:
    before = b"HTTP/1.1 100 Continue\r\nx-b: 1\r\n\r\n"
    reply = before + b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n"
    pool = ConnectionPool()
    async with server(saying(reply)) as upstream, pool.stream("POST", upstream.target, []) as answer:
        assert answer.status == 429
        assert answer.headers == [(b"Retry-After", b"7"), (b"content-length", b"0")]
        assert answer.header(b"retry-after") == b"7"
        assert await answer.read_chunk() == b""
    await pool.close()


async def test_the_answer_to_a_head_request_has_no_body() -> None:
    pool = ConnectionPool()
    async with (
        server(saying(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as upstream,
        pool.stream("HEAD", upstream.target, []) as answer,
    ):
        assert await answer.read_chunk() == b""


@pytest.mark.parametrize(
    "timeouts",
    [Timeouts(idle_seconds=0.1), Timeouts(total_seconds=0.1)],
    ids=["idle", "total"],
)
async def test_what_takes_too_long_is_given_up_and_the_server_sees_that(timeouts: Timeouts) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello")
        await reader.read()

    pool = ConnectionPool(timeouts=timeouts)
    async with server(talk) as upstream:
        with pytest.raises(UpstreamTimeout) as failure:
            await got(pool, upstream.target)
        await eventually(lambda: upstream.gone == [True])

    assert failure.value.timeout_seconds == 0.1


@pytest.mark.slow
async def test_pieces_that_keep_coming_are_not_idle() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n")
        for _round in range(12):
            await asyncio.sleep(0.1)
            writer.write(b".")

    pool = ConnectionPool(
        timeouts=Timeouts(idle_seconds=0.8)
    )  # less than all of it takes, and much more than one piece
    async with server(talk) as upstream:
        assert await got(pool, upstream.target) == b"." * 12
    await pool.close()


async def test_an_answer_that_is_left_early_closes_its_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello")
        await reader.read()

    pool = ConnectionPool()
    async with server(talk) as upstream:
        async with pool.stream("GET", upstream.target, []) as answer:
            assert await answer.read_chunk() == b"hello"
        await eventually(lambda: upstream.gone == [True])


async def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    pool = ConnectionPool()
    async with server(talk) as upstream:
        asking = asyncio.create_task(got(pool, upstream.target))
        await eventually(lambda: bool(upstream.heard and upstream.heard[0]))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: upstream.gone == [True])


def test_a_pool_can_be_used_from_successive_event_loops() -> None:
    pool = ConnectionPool()

    async def once() -> bytes:
        async with server(saying(HELLO)) as upstream:
            return await got(pool, upstream.target)

    assert [asyncio.run(once()), asyncio.run(once())] == [b"hello"] * 2


@pytest.mark.slow
def test_the_same_holds_on_the_event_loop_of_servers() -> None:
    uvloop = pytest.importorskip("uvloop")
    uvloop.run(test_a_connection_serves_successive_requests())
    uvloop.run(test_a_connection_that_was_closed_meanwhile_is_never_sent_to())
    uvloop.run(test_unexpected_data_closes_a_connection())
    uvloop.run(test_pieces_come_as_they_are_sent())
    uvloop.run(test_who_reads_slowly_keeps_the_server_waiting())
    uvloop.run(test_a_request_that_is_cancelled_closes_its_connection())
