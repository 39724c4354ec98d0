"""Tests can reach only loopback."""

import socket

import pytest

from tests.support.harness import network_guard


def test_a_connection_to_another_machine_is_refused() -> None:
    with socket.socket() as outward, pytest.raises(network_guard.NotLoopback, match=r"192\.0\.2\.1"):
        outward.connect(("192.0.2.1", 80))
    with pytest.raises(network_guard.NotLoopback, match="loopback only"):
        socket.getaddrinfo("example.org", 80)

    assert len(network_guard.ATTEMPTS) == 2
    network_guard.ATTEMPTS.clear()


def test_a_connection_to_loopback_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(("localhost", address[1]), timeout=5):
            pass
