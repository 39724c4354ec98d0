"""Listening sockets for the gateway and the sandbox."""

import socket

from foveate.errors import CannotListen

_BACKLOG = 1024
# Python appends this to the system's message.
_PYTHON_SUFFIX = " (while "


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Open a socket that clients can connect to at once; port 0 means any free port.

    Raises:
        CannotListen: the port is in use or not permitted, or the host is not on this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except UnicodeError:
        raise CannotListen(host, port, "invalid host name") from None
    except OSError as error:  # also for unknown hosts, whose number is not a system error
        reason = (error.strerror or str(error)).partition(_PYTHON_SUFFIX)[0]
        raise CannotListen(host, port, reason) from None


def find_listener_command(port: int, platform: str) -> str:
    """Return a command for users that shows which program listens on a port."""
    return f"lsof -i :{port}" if platform == "darwin" else f"ss -ltnp 'sport = :{port}'"


def socket_url(listening_socket: socket.socket) -> str:
    host, port = listening_socket.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
