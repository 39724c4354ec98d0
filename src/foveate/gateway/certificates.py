"""The certificate that the gateway shows: read at the start, and again when its files have changed."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from foveate.config.settings import Tls
from foveate.errors import BadOption

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0

_Stamp = tuple[tuple[int, int, int] | None, ...]


def tls_context(tls: Tls) -> ssl.SSLContext:
    """What the gateway shows to its clients.

    Raises:
        BadOption: a file cannot be read, is no PEM, or the key is not that of the certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for name, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise BadOption(f"the {name} {path}: {error.strerror}", path=("server", "tls", name)) from None
    try:
        _load(context, tls)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise BadOption(
            f"the certificate {tls.certificate} and the key {tls.key} cannot be used together: {reason}",
            path=("server", "tls"),
        ) from None
    return context


def _load(context: ssl.SSLContext, tls: Tls) -> None:
    # A key that wants a password would have it asked for on the terminal.
    context.load_cert_chain(tls.certificate, tls.key, password=_no_password)


def _no_password() -> str:
    raise ValueError("the key wants a password: give one without")


@asynccontextmanager
async def renewing(
    context: ssl.SSLContext, tls: Tls, *, wait: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[None]:
    """Until the end of the block, new connections are shown what the files hold; those that are there go on."""
    task = asyncio.create_task(_renewed(context, tls, wait))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _renewed(context: ssl.SSLContext, tls: Tls, wait: Callable[[float], Awaitable[None]]) -> None:
    seen = _stamps(tls)
    while True:
        await wait(_LOOK_SECONDS)
        now = _stamps(tls)
        if now == seen:
            continue
        seen = now
        try:
            # Tried apart first: half of a new pair would leave the context with none.
            tls_context(tls)
        except BadOption as error:
            _LOG.error("the certificate stays as it was: %s", error)
            continue
        _load(context, tls)
        _LOG.info("%s has changed, and is shown from now on", tls.certificate)


def _stamps(tls: Tls) -> _Stamp:
    return tuple(_stamp(path) for path in (tls.certificate, tls.key))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
