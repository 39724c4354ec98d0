"""The gateway that a run uses: one that is running already, or one that ends with the run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Thread

import foveate
from foveate.cli.shared import console
from foveate.errors import GatewayNotStarted, UnwritableFile
from foveate.extras import check_gateway
from foveate.paths import data_folder

LOG_NAME = "run.log"
_MAX_LOG_BYTES = 10_000_000
_SHOWN_LOG_LINES = 5
_PROBE_SECONDS = 1.0
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_ANY_ADDRESS = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGateway:
    """A gateway in use. One that was started for the run has written a log since `log_start_bytes`."""

    url: str
    is_own: bool
    log_path: Path | None = None
    log_start_bytes: int = 0

    def find_log_line(self, text: str) -> str:
        """Return the last line of its log that contains a text; empty if there is none."""
        if self.log_path is None:
            return ""
        try:
            with self.log_path.open("rb") as file:
                file.seek(self.log_start_bytes)
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if text in line), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredGateway:
    """The address and the store of `foveate serve` with a configuration."""

    host: str
    port: int
    has_tls: bool
    store_url: str
    grace_seconds: float

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in _ANY_ADDRESS else self.host
        scheme = "https" if self.has_tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"


def load_configured_gateway(config: Path | None, environment: Mapping[str, str]) -> ConfiguredGateway:
    """Return the gateway of a configuration; the default one without a file.

    Raises:
        InputError: the configuration cannot be read.
    """
    from foveate.config.load import load_settings
    from foveate.config.settings import Settings
    from foveate.store import default_url

    settings = Settings() if config is None else load_settings(config)
    server = settings.server
    return ConfiguredGateway(
        host=server.host,
        port=server.port,
        has_tls=server.tls is not None,
        store_url=environment.get("FOVEATE_STORE") or settings.store.url or default_url(),
        grace_seconds=server.grace_seconds,
    )


def is_running(configured: ConfiguredGateway) -> bool:
    """Return whether a gateway of this version with the same store listens at its address."""
    if configured.has_tls:  # agents would have to trust its certificate
        return False
    health = _read_health(configured)
    if health.get("version") != foveate.__version__:
        return False
    from foveate.store import is_same_store

    store = health.get("store")
    where = store.get("where") if isinstance(store, dict) else None
    return isinstance(where, str) and is_same_store(where, configured.store_url)


def _read_health(configured: ConfiguredGateway) -> dict[str, object]:
    host = "127.0.0.1" if configured.host in _ANY_ADDRESS else configured.host
    connection = HTTPConnection(host, configured.port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", "/health", headers={"accept": "application/json"})
        response = connection.getresponse()
        health = json.loads(response.read(1_000_000)) if response.status == 200 else None
    except (OSError, HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return health if isinstance(health, dict) else {}


@contextmanager
def open_gateway(
    configured: ConfiguredGateway, config: Path | None, *, needs_configured_address: bool
) -> Iterator[RunGateway]:
    """Use the gateway that is running, or start one that ends with the block or with this process.

    `needs_configured_address`: the agent has this address in a file of its own.

    Raises:
        MissingExtra: the packages of the gateway are not installed.
        UnwritableFile: there is no place for its log.
        GatewayNotStarted: it ended before it served; the message has the end of its log.
    """
    if is_running(configured):
        yield RunGateway(url=configured.url, is_own=False)
        return
    check_gateway()
    port = configured.port if needs_configured_address else 0
    log_path = _prepare_log()
    with log_path.open("ab") as log:
        log_start_bytes = log.tell()
        # In a session of its own, Ctrl-C in the terminal does not reach it.
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "foveate.cli.run.gateway_child",
                str(port),
                *([str(config)] if config else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        with console.show_progress("starting the gateway"):
            url = _wait_for_url(process, log_path)
        yield RunGateway(url=url, is_own=True, log_path=log_path, log_start_bytes=log_start_bytes)
    finally:
        _stop(process, configured.grace_seconds)


def _prepare_log() -> Path:
    """Return the path of the log, which is emptied if it has become large."""
    path = data_folder(os.environ, sys.platform) / LOG_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_large = path.exists() and path.stat().st_size > _MAX_LOG_BYTES
        path.open("wb" if is_large else "ab").close()
    except OSError as error:
        raise UnwritableFile(str(path), error.strerror or str(error)) from None
    return path


def _wait_for_url(process: "subprocess.Popen[str]", log_path: Path) -> str:
    lines: list[str] = []
    assert process.stdout is not None
    reader = Thread(target=lambda output: lines.append(output.readline()), args=(process.stdout,), daemon=True)
    reader.start()
    reader.join(_START_SECONDS)
    if lines and lines[0]:
        return lines[0].strip()
    if process.poll() is None and not lines:
        reason = f"it did not respond within {_START_SECONDS:g} s"
    else:
        tail = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LOG_LINES:]
        reason = " ".join(line.removeprefix("foveate: ") for line in tail[-1:]) or "it ended"
    raise GatewayNotStarted(reason, str(log_path))


def _stop(process: "subprocess.Popen[str]", grace_seconds: float) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()  # closing standard input ends the gateway
    try:
        process.wait(grace_seconds + _STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
