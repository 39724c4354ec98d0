"""The gateway's TLS certificate, reloaded when its files change."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from foveate.config.files import FileStamp, read_file_stamp
from foveate.config.settings import TlsSettings
from foveate.errors import BadOption

_LOG = logging.getLogger(__name__)

_CHECK_SECONDS = 30.0


def create_tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Load the certificate.

    Raises:
        BadOption: a file cannot be read or is not PEM, or the key does not match the certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for name, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise BadOption(
                f"the {name} {path} cannot be read: {error.strerror}", path=("server", "tls", name)
            ) from None
    try:
        _load_certificate(context, tls)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise BadOption(
            f"the certificate {tls.certificate} and the key {tls.key} cannot be used together: {reason}",
            path=("server", "tls"),
        ) from None
    return context


def _load_certificate(context: ssl.SSLContext, tls: TlsSettings) -> None:
    # OpenSSL would ask for the password on the terminal.
    context.load_cert_chain(tls.certificate, tls.key, password=_reject_password)


def _reject_password() -> str:
    raise ValueError("the key is encrypted: use a key without a password")


@asynccontextmanager
async def reload_certificates(
    context: ssl.SSLContext, tls: TlsSettings, *, wait: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[None]:
    """Until the end of the block, use changed files for new connections."""
    task = asyncio.create_task(_reload_loop(context, tls, wait))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _reload_loop(
    context: ssl.SSLContext, tls: TlsSettings, wait: Callable[[float], Awaitable[None]]
) -> None:
    loaded = _read_file_stamps(tls)
    while True:
        await wait(_CHECK_SECONDS)
        current = _read_file_stamps(tls)
        if current == loaded:
            continue
        loaded = current
        try:
            # Try it in another context first: an incomplete pair would break this one.
            create_tls_context(tls)
        except BadOption as error:
            _LOG.error("the changed certificate cannot be used, keeping the previous one: %s", error)
            continue
        _load_certificate(context, tls)
        _LOG.info("%s has changed, using it for new connections", tls.certificate)


def _read_file_stamps(tls: TlsSettings) -> tuple[FileStamp, ...]:
    return tuple(read_file_stamp(str(path)) for path in (tls.certificate, tls.key))
