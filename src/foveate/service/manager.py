"""Installs, inspects and removes the service through the service manager of the platform."""

import json
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from foveate.config.files import replace_file
from foveate.config.load import load_settings
from foveate.config.settings import ServerSettings, Settings
from foveate.errors import CannotListen, FoveateError, NoServiceManager, ServiceFailed, UnwritableFile
from foveate.http.listening_sockets import find_listener_command, open_listening_socket
from foveate.service.plan import ServicePlan, local_url

_START_SECONDS = 60.0
_POLL_SECONDS = 0.25
_HEALTH_SECONDS = 2.0
_MAX_HEALTH_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    is_running: bool
    description: str
    since: float | None = None
    has_failed: bool = False


class ServiceManager(Protocol):
    """A service manager, and the one service in it."""

    path: Path
    """The file that declares the service."""
    log: str
    """A file, or a command that shows the log."""

    def check_available(self) -> None:
        """Check that the service manager answers.

        Raises:
            NoServiceManager: it does not.
        """

    def render(self, plan: ServicePlan) -> bytes:
        """Return the content of the file that declares a service."""

    def read_config(self) -> Path | None: ...

    def start(self) -> None:
        """Start the service from its file, now and at every login. A running one is restarted.

        Raises:
            ServiceFailed: the service manager refuses.
        """

    def stop(self) -> None:
        """Stop the service, and do not start it again."""

    def forget(self) -> None:
        """Make the service manager notice that the file is gone."""

    def state(self) -> ProcessState: ...

    def survives_logout(self) -> bool: ...


def install(manager: ServiceManager, plan: ServicePlan) -> None:
    """Write the file of the service, start the service, and wait until the gateway answers.

    A service that exists already is replaced and restarted.

    Raises:
        NoServiceManager: there is no service manager.
        CannotListen: another program uses the port.
        ServiceFailed: the service does not start.
        UnwritableFile: its file cannot be written.
    """
    manager.check_available()
    if not (manager.path.exists() and manager.state().is_running):
        _check_port(plan.settings.server)
    for folder in (plan.data, manager.path.parent):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UnwritableFile(str(folder), error.strerror or "cannot be created") from None
    replace_file(manager.path, manager.render(plan))
    manager.start()
    _wait_until_healthy(manager, local_url(plan.settings.server))


def _check_port(server: ServerSettings) -> None:
    """Another gateway at the same port would answer in place of this one."""
    try:
        open_listening_socket(server.host, server.port).close()
    except CannotListen as error:
        if "in use" not in error.reason:
            raise
        reason = (
            f"{error.reason}; stop the program that uses it, or set another server.port in the configuration; "
            f"to find the program: {find_listener_command(server.port, sys.platform)}"
        )
        raise CannotListen(server.host, server.port, reason) from None


def _wait_until_healthy(manager: ServiceManager, url: str | None) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        state = manager.state()
        if state.has_failed:
            raise ServiceFailed(f"the service does not start ({state.description}); see its log: {manager.log}")
        if state.is_running and (url is None or fetch_health(url) is not None):
            return
        if time.monotonic() > deadline:
            raise ServiceFailed(f"the service does not answer at {url}; see its log: {manager.log}")
        time.sleep(_POLL_SECONDS)


def remove(manager: ServiceManager) -> bool:
    """Stop the service and delete its file. Return whether there was one.

    Raises:
        NoServiceManager: there is no service manager.
        ServiceFailed: the service manager refuses.
        UnwritableFile: the file cannot be deleted.
    """
    manager.check_available()
    if not manager.path.exists():
        return False
    manager.stop()
    try:
        manager.path.unlink(missing_ok=True)
    except OSError as error:
        raise UnwritableFile(str(manager.path), error.strerror or "cannot be deleted") from None
    manager.forget()
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """`since` is null if the service does not run, `health` if the gateway does not answer."""

    installed: bool
    running: bool
    state: str
    since: float | None
    url: str | None
    health: str | None
    config: str | None
    file: str
    log: str
    survives_logout: bool


def fetch_status(manager: ServiceManager) -> ServiceStatus:
    """Ask the service manager and the gateway.

    Raises:
        NoServiceManager: there is no service manager.
        ServiceFailed: the service manager refuses.
    """
    manager.check_available()
    if not manager.path.exists():
        return ServiceStatus(
            installed=False,
            running=False,
            state="not installed",
            since=None,
            url=None,
            health=None,
            config=None,
            file=str(manager.path),
            log=manager.log,
            survives_logout=manager.survives_logout(),
        )
    state, config = manager.state(), manager.read_config()
    url = _find_url(config)
    return ServiceStatus(
        installed=True,
        running=state.is_running,
        state=state.description,
        since=state.since,
        url=url,
        health=None if url is None or not state.is_running else fetch_health(url),
        config=None if config is None else str(config),
        file=str(manager.path),
        log=manager.log,
        survives_logout=manager.survives_logout(),
    )


def _find_url(config: Path | None) -> str | None:
    try:
        return local_url((Settings() if config is None else load_settings(config)).server)
    except FoveateError:  # edited since, and invalid now
        return None


def fetch_health(url: str) -> str | None:
    """Return the status of the gateway at a URL of this machine; None if no gateway answers."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        # The certificate is for the name that clients use, and nothing secret is sent.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: HTTPConnection = HTTPSConnection(
            parts.hostname, parts.port, timeout=_HEALTH_SECONDS, context=context
        )
    else:
        connection = HTTPConnection(parts.hostname, parts.port, timeout=_HEALTH_SECONDS)
    try:
        connection.request("GET", "/health")
        health = json.loads(connection.getresponse().read(_MAX_HEALTH_BYTES))
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
    status = health.get("status") if isinstance(health, dict) else None
    return status if isinstance(status, str) else None


def run_program(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of the service manager, and capture its output.

    Raises:
        NoServiceManager: it is not installed.
    """
    try:
        return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        raise NoServiceManager(f"{words[0]} was not found") from None


def run_or_fail(*words: str) -> str:
    """Run a program of the service manager, and return its output.

    Raises:
        ServiceFailed: it ends with another exit code than 0.
    """
    finished = run_program(*words)
    if finished.returncode:
        reason = " ".join(finished.stderr.split()) or f"exit code {finished.returncode}"
        raise ServiceFailed(f"`{' '.join(words)}` failed: {reason}")
    return finished.stdout


def parse_pairs(text: str, separator: str) -> Mapping[str, str]:
    """Parse lines of names and values; the first line of a name counts."""
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        name, found, value = line.strip().partition(separator)
        if found:
            pairs.setdefault(name, value)
    return pairs
