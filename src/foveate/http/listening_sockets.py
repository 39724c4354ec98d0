"""Sockets that servers listen on, before and behind the gateway."""

import socket

from foveate.errors import CannotListen

_BACKLOG = 1024
# What Python adds to an error of the system.
_PYTHON_SUFFIX = " (while "


def open_listening_socket(host: str, port: int) -> socket.socket:
    """A socket that clients can connect to from now on; port 0 is any that is free.

    Raises:
        CannotListen: the port is in use or not allowed, or the host is not of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except UnicodeError:
        raise CannotListen(host, port, "no such host") from None
    except OSError as error:  # of a name that is none too, with a number that is no error of the system
        reason = (error.strerror or str(error)).partition(_PYTHON_SUFFIX)[0]
        raise CannotListen(host, port, reason) from None


def socket_url(listening_socket: socket.socket) -> str:
    """Where a socket is reached, as a URL."""
    host, port = listening_socket.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
