"""Request bodies are read within limits of size, time and memory."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foveate.gateway.request import Receive
from foveate.gateway.request_body import (
    BodyLimits,
    BodyMemory,
    BodyRejected,
    NoRoom,
    Stalled,
    TooLarge,
    TooSlow,
    read_body,
)
from foveate.model import Format

PIECE = b"x" * 100_000
LENGTH = {"content-length": "200000"}
CHUNKED = {"transfer-encoding": "chunked"}


def make_client(
    *chunks: bytes, disconnects: bool = False, pause_seconds: float = 0.0
) -> tuple[Receive, list[int]]:
    """A client that sends chunks, and the number of chunks received from it so far."""
    receive_count = [0]

    async def receive() -> dict[str, Any]:
        receive_count[0] += 1
        await asyncio.sleep(pause_seconds)
        if receive_count[0] > len(chunks):
            if disconnects:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
        is_last = receive_count[0] == len(chunks) and not disconnects
        return {"type": "http.request", "body": chunks[receive_count[0] - 1], "more_body": not is_last}

    return receive, receive_count


async def read_request(
    receive: Receive, headers: dict[str, str], memory: BodyMemory | None = None, **limits: Any
) -> bytes | None:
    memory = memory or BodyMemory()
    body = await read_body(None, receive, headers, limits=BodyLimits(**limits), memory=memory)
    if body is None:
        assert memory.used_bytes == 0
        return None
    assert memory.used_bytes == len(body.data)
    body.reservation.release()
    return body.data


@pytest.mark.parametrize("headers", [LENGTH, CHUNKED, {}])
async def test_a_body_is_read_in_pieces_and_its_memory_is_counted(headers: dict[str, str]) -> None:
    receive, _ = make_client(PIECE, PIECE)

    assert await read_request(receive, headers) == PIECE + PIECE


async def test_a_large_body_is_joined_in_the_order_of_its_pieces() -> None:
    pieces = [bytes([number]) * 100_000 for number in range(30)]
    receive, _ = make_client(*pieces)

    assert await read_request(receive, CHUNKED) == b"".join(pieces)


async def test_a_disconnected_client_holds_no_memory() -> None:
    assert await read_request(make_client(PIECE, disconnects=True)[0], LENGTH) is None


@pytest.mark.parametrize(("headers", "expected_count"), [({"content-length": "200001"}, 0), (CHUNKED, 3)])
async def test_a_body_over_the_limit_is_not_read_completely(
    headers: dict[str, str], expected_count: int
) -> None:
    memory = BodyMemory()
    receive, receive_count = make_client(PIECE, PIECE, PIECE, PIECE)

    with pytest.raises(TooLarge):
        await read_request(receive, headers, memory, max_bytes=200_000)

    assert receive_count == [expected_count]
    assert memory.used_bytes == 0


async def test_a_slow_body_is_rejected_after_the_total_timeout() -> None:
    chunks: Sequence[bytes] = [b"x"] * 10_000
    receive, receive_count = make_client(*chunks, pause_seconds=0.001)

    with pytest.raises(TooSlow):
        await read_request(receive, CHUNKED, idle_seconds=60, total_seconds=0.1)

    assert 1 < receive_count[0] < len(chunks)


async def test_a_stalled_body_is_rejected_after_the_idle_timeout() -> None:
    memory = BodyMemory()

    with pytest.raises(Stalled):
        await read_request(make_silent_client(), LENGTH, memory, idle_seconds=0.01, total_seconds=60)

    assert memory.used_bytes == 0


def make_silent_client() -> Receive:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    return receive


async def test_a_body_without_memory_is_not_read() -> None:
    memory = BodyMemory()
    limits = BodyLimits(max_bytes=200_000, memory_bytes=600_000, memory_seconds=0.01)
    bodies = [
        await read_body(None, make_client(PIECE, PIECE)[0], LENGTH, limits=limits, memory=memory) for _ in "123"
    ]
    receive, receive_count = make_client(PIECE, PIECE)

    with pytest.raises(NoRoom):
        await read_body(None, receive, LENGTH, limits=limits, memory=memory)

    assert receive_count == [0]
    for body in bodies:
        assert body is not None
        body.reservation.release()
    assert await read_body(None, receive, LENGTH, limits=limits, memory=memory)


@pytest.mark.parametrize(
    ("error", "status"), [(TooLarge(9), 413), (Stalled(1), 408), (TooSlow(2), 408), (NoRoom(), 503)]
)
@pytest.mark.parametrize("api_format", [Format.ANTHROPIC, Format.CHAT])
def test_each_rejection_has_its_status(error: BodyRejected, status: int, api_format: Format) -> None:
    assert error.response(api_format).status == status
    assert error.may_retry is (status != 413)
    assert bool(error.headers) is (status == 503)
