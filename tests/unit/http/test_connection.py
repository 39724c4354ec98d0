"""Large bodies are sent in pieces, as fast as the server reads them."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from foveate.http.connection import Connection
from tests.support.servers.scripted_http import HELLO

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n\r\n"
BODY = bytes(range(256)) * 8192  # 2 MB
MAX_PIECE_BYTES = 256 * 1024


class RecordingTransport:
    """Records what is written; the server reads nothing from the `full_after`-th write on."""

    def __init__(self, connection: Connection, full_after: int) -> None:
        self.connection = connection
        self.full_after = full_after
        self.written: list[bytes] = []
        self._socket = socket.socket()

    def get_extra_info(self, _: str) -> socket.socket:
        return self._socket

    def writelines(self, pieces: Iterator[Any]) -> None:
        self.write(b"".join(pieces))

    def write(self, piece: Any) -> None:
        self.written.append(bytes(piece))
        if len(self.written) == self.full_after:
            self.connection.pause_writing()

    def abort(self) -> None:
        self._socket.close()


def start_request(full_after: int = 0) -> tuple[Connection, RecordingTransport]:
    connection = Connection("http://x")
    transport: Any = RecordingTransport(connection, full_after)
    connection.connection_made(transport)
    connection.send_request(HEAD, BODY, idle_seconds=60, total_seconds=60, work_seconds=10)
    return connection, transport


async def run_callbacks() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_large_body_is_sent_in_pieces_between_which_others_run() -> None:
    connection, transport = start_request()
    assert len(transport.written) == 1
    await run_callbacks()

    assert b"".join(transport.written) == HEAD + BODY
    assert max(map(len, transport.written)) <= MAX_PIECE_BYTES + len(HEAD)
    connection.close()


@pytest.mark.parametrize("full_after", [1, 3])
async def test_the_rest_of_a_body_waits_until_the_server_has_read_enough(full_after: int) -> None:
    connection, transport = start_request(full_after)
    await run_callbacks()
    assert len(transport.written) == full_after

    connection.resume_writing()
    await run_callbacks()
    assert b"".join(transport.written) == HEAD + BODY
    connection.close()


@pytest.mark.parametrize(("full_after", "is_reusable"), [(0, True), (2, False)])
async def test_a_connection_is_not_reused_while_a_part_of_the_body_is_unsent(
    full_after: int, is_reusable: bool
) -> None:
    connection, _ = start_request(full_after)
    await run_callbacks()
    connection.data_received(HELLO)

    assert await connection.read_chunk() == b"hello"
    assert connection.is_reusable is is_reusable
    connection.close()
