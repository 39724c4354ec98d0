"""The gateway served at a socket until somebody ends it."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from foveate.config.live import LiveSettings
from foveate.gateway.assembly import Choices, assembled, choices_of

# How long answers under way may take when it is to end.
_GRACE_SECONDS = 30


def live_choices(path: Path | None, environment: Mapping[str, str]) -> LiveSettings[Choices]:
    """What the configuration in a file decides, now and whenever it has changed.

    Raises:
        FoveateError: it cannot be used.
    """
    return LiveSettings(path, lambda found: choices_of(found, environment))


def serve(where: socket.socket, choices: LiveSettings[Choices], environment: Mapping[str, str]) -> None:
    """Be the gateway at a socket until somebody ends it; answers under way are finished first.

    Raises:
        StoreUnavailable: the store cannot be opened.
    """
    main = _served(where, choices, environment)
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _served(where: socket.socket, choices: LiveSettings[Choices], environment: Mapping[str, str]) -> None:
    import uvicorn

    tls = choices.now().made.settings.server.tls
    async with assembled(lambda: choices.now().made, environment=environment) as gateway:
        server = uvicorn.Server(
            uvicorn.Config(
                gateway,
                http="httptools",
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                ssl_certfile=None if tls is None else str(tls.certificate),
                ssl_keyfile=None if tls is None else str(tls.key),
                ssl_version=ssl.PROTOCOL_TLS_SERVER,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        await server.serve(sockets=[where])
