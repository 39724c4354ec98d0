"""A renewed certificate is used without a restart, and an incomplete pair changes nothing."""

import asyncio
import ssl
from pathlib import Path

import trustme

from foveate.config.settings import TlsSettings
from foveate.gateway.server.tls import create_tls_context, reload_certificates


def write_certificate(authority: trustme.CA, tls: TlsSettings) -> trustme.LeafCert:
    created = authority.issue_cert("localhost")
    created.cert_chain_pems[0].write_to_path(tls.certificate)
    created.private_key_pem.write_to_path(tls.key)
    return created


def presented_certificate(server: ssl.SSLContext, authority: trustme.CA) -> str:
    """Return the certificate that a client sees, by a real handshake in memory."""
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(back, there, server_hostname="localhost")
    other = server.wrap_bio(there, back, server_side=True)
    waiting = [client, other]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True) or b"")


async def test_new_connections_use_changed_files_but_never_an_incomplete_pair(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    tls = TlsSettings(certificate=tmp_path / "a.pem", key=tmp_path / "a.key")
    first = write_certificate(authority, tls)
    context = create_tls_context(tls)
    looks: asyncio.Queue[None] = asyncio.Queue()
    checked = asyncio.Semaphore(0)

    async def wait(_seconds: float) -> None:
        checked.release()
        await looks.get()

    async def dashboard() -> None:
        looks.put_nowait(None)
        await checked.acquire()

    async with reload_certificates(context, tls, wait=wait):
        await checked.acquire()
        assert presented_certificate(context, authority) == first.cert_chain_pems[0].bytes().decode()

        half = authority.issue_cert("localhost")
        half.cert_chain_pems[0].write_to_path(tls.certificate)
        await dashboard()
        assert presented_certificate(context, authority) == first.cert_chain_pems[0].bytes().decode()

        half.private_key_pem.write_to_path(tls.key)
        await dashboard()
        assert presented_certificate(context, authority) == half.cert_chain_pems[0].bytes().decode()

        tls.certificate.unlink()
        await dashboard()
        assert presented_certificate(context, authority) == half.cert_chain_pems[0].bytes().decode()
