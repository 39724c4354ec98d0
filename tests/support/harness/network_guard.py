"""Keep tests on loopback: connecting to another machine raises and fails the test."""

import ipaddress
import socket
import sys
from collections.abc import Sequence

ATTEMPTS: list[str] = []
"""Blocked attempts, so that code which swallows the error is noticed too."""


class NotLoopback(AssertionError):
    """A test tried to reach another machine."""


def is_loopback(host: object) -> bool:
    if isinstance(host, bytes | bytearray):
        host = host.decode("ascii", "replace")
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False


def _reject_other_hosts(event: str, arguments: Sequence[object]) -> None:
    if not event.startswith("socket."):  # nearly all: each call of `id` is one
        return
    match event, arguments:
        case "socket.getaddrinfo", (host, *_):
            pass
        case (
            "socket.connect" | "socket.sendto" | "socket.sendmsg",
            (socket.socket(family=socket.AF_INET | socket.AF_INET6), (host, *_)),
        ):
            pass
        case _:
            return
    if not is_loopback(host):
        attempt = f"{event} to {host!r}: tests may reach loopback only"
        ATTEMPTS.append(attempt)
        raise NotLoopback(attempt)


def block_other_hosts() -> None:
    """Block other machines in this process from now on (audit hooks cannot be removed)."""
    sys.addaudithook(_reject_other_hosts)
