"""A renewed certificate is used without a restart, and an incomplete pair changes nothing."""

import asyncio
import ssl
from pathlib import Path

import trustme

from foveate.config.settings import TlsSettings
from foveate.gateway.server.tls import create_tls_context, reload_certificates


def write_certificate(authority: trustme.CA, tls: TlsSettings) -> trustme.LeafCert:
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tls.certificate)
    certificate.private_key_pem.write_to_path(tls.key)
    return certificate


def presented_certificate(server: ssl.SSLContext, authority: trustme.CA) -> str:
    """Return the certificate that a client sees, by a real handshake in memory."""
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    unfinished = [client, server_side]
    while unfinished:
        for side in list(unfinished):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(side)
    return ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True) or b"")


async def test_new_connections_use_changed_files_but_never_an_incomplete_pair(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    tls = TlsSettings(certificate=tmp_path / "a.pem", key=tmp_path / "a.key")
    first = write_certificate(authority, tls)
    context = create_tls_context(tls)
    checks: asyncio.Queue[None] = asyncio.Queue()
    checked = asyncio.Semaphore(0)

    async def wait(_seconds: float) -> None:
        checked.release()
        await checks.get()

    async def check_files() -> None:
        checks.put_nowait(None)
        await checked.acquire()

    async with reload_certificates(context, tls, wait=wait):
        await checked.acquire()
        assert presented_certificate(context, authority) == first.cert_chain_pems[0].bytes().decode()

        renewed = authority.issue_cert("localhost")
        renewed.cert_chain_pems[0].write_to_path(tls.certificate)
        await check_files()
        assert presented_certificate(context, authority) == first.cert_chain_pems[0].bytes().decode()

        renewed.private_key_pem.write_to_path(tls.key)
        await check_files()
        assert presented_certificate(context, authority) == renewed.cert_chain_pems[0].bytes().decode()

        tls.certificate.unlink()
        await check_files()
        assert presented_certificate(context, authority) == renewed.cert_chain_pems[0].bytes().decode()
