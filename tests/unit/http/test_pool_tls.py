"""TLS connections are made to servers with a trusted certificate only."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trustme

from foveate.errors import UpstreamUnreachable
from foveate.http.pool import ConnectionPool, parse_url, read_body

AUTHORITY = trustme.CA()


@asynccontextmanager
async def secure_server(name: str) -> AsyncIterator[int]:
    """The port of a server with a certificate for `name`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline() != b"\r\n":
            pass
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(name).configure_cert(context)
    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


def make_trusting_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


async def fetch(pool: ConnectionPool, url: str) -> bytes:
    async with pool.stream("GET", parse_url(url), []) as response:
        return await read_body(response, max_bytes=100, url=url)


async def test_a_server_with_a_trusted_certificate_is_used() -> None:
    async with secure_server("localhost") as port:
        assert (
            await fetch(ConnectionPool(tls_context=make_trusting_context()), f"https://localhost:{port}/")
            == b"hello"
        )


async def test_a_server_with_an_untrusted_certificate_is_not_used() -> None:
    async with secure_server("localhost") as port:
        with pytest.raises(UpstreamUnreachable, match="certificate is not trusted"):
            await fetch(ConnectionPool(), f"https://localhost:{port}/")


async def test_a_certificate_for_another_name_is_not_trusted() -> None:
    async with secure_server("elsewhere.example") as port:
        with pytest.raises(UpstreamUnreachable, match="certificate is not trusted"):
            await fetch(ConnectionPool(tls_context=make_trusting_context()), f"https://localhost:{port}/")


async def test_a_server_without_tls_is_not_used_for_https() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(UpstreamUnreachable, match="TLS connection failed"):
        await fetch(ConnectionPool(), f"https://127.0.0.1:{port}/")
    listener.close()
