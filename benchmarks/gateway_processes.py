"""Server processes of the gateway benchmark: start, wait, measure and stop."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway_requests import CHAT_MODEL, COMPACTING_AGENT, COMPACTING_WINDOW_TOKENS, KEY, MODEL
from benchmarks.harness import BadData

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ROOT = Path(__file__).parents[1]
# LiteLLM takes long to load.
_START_SECONDS = 180.0
_CONFIG = "foveate.yaml"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address, its main process, and the output of that."""

    name: str
    port: int
    pid: int
    log: Path


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and all its descendants, including those that have ended."""
    return sum(sum(int(field) for field in stat[11:15]) for stat in _stats(pid)) / _TICKS


def resident_bytes(pid: int) -> int:
    """Return the memory of a process and all its descendants; shared memory counts for each."""
    return sum(int(stat[21]) * _PAGE_BYTES for stat in _stats(pid))


def _stats(pid: int) -> list[list[str]]:
    """Return the fields of /proc/PID/stat from the state on, of a process and all its descendants."""
    fields_by_pid = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields_by_pid[int(path.parent.name)] = (
                path.read_text(encoding="latin-1").rpartition(") ")[2].split()
            )
    return [
        fields for process_id, fields in fields_by_pid.items() if pid in _ancestors(process_id, fields_by_pid)
    ]


def _ancestors(pid: int, fields_by_pid: Mapping[int, Sequence[str]]) -> Iterator[int]:
    """Yield a process and its ancestors."""
    while pid in fields_by_pid:
        yield pid
        pid = int(fields_by_pid[pid][1])


@contextmanager
def start_process(
    command: Sequence[str], *, log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a process in its own session; the end of the block stops it with all its descendants."""
    with log.open("w", encoding="utf-8") as log_file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            cwd=_ROOT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    """Terminate the process, and kill it if it does not end."""
    for signal_number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # workers that outlived it
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def make_certificate(folder: Path) -> Path:
    """Create a certificate for 127.0.0.1 that signs itself, in one file with its key.

    Raises:
        BadData: there is no OpenSSL.
    """
    path = folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    try:
        subprocess.run(
            [*command, *subject, "-keyout", str(path), "-out", str(path)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadData(f"openssl does not create a certificate: {error}") from None
    return path


@contextmanager
def upstream(folder: Path, certificate: Path | None = None) -> Iterator[Server]:
    """Run the provider that responds at once; with a certificate, over TLS."""
    log = folder / "upstream.log"
    command = [sys.executable, "-m", "benchmarks.gateway_upstream", *filter(None, [certificate])]
    with start_process(list(map(str, command)), log=log) as process:
        yield Server("direct", int(_read_line(process, log)), process.pid, log)


@contextmanager
def relay(folder: Path, upstream_port: int) -> Iterator[Server]:
    """Run the gateway's server and its connections without the engine."""
    log = folder / "relay.log"
    command = [sys.executable, "-m", "benchmarks.gateway_relay", str(upstream_port)]
    with start_process(command, log=log) as process:
        yield Server("relay", int(_read_line(process, log)), process.pid, log)


@contextmanager
def foveate(
    folder: Path,
    upstream_port: int,
    *,
    name: str = "foveate",
    workers: int = 1,
    is_default: bool = False,
    more: str = "",
    certificate: Path | None = None,
) -> Iterator[Server]:
    """Run `foveate serve` with every mechanism on, or with defaults, and with its own data.

    `more` is additional configuration, and `certificate` that of an upstream with TLS.
    """
    home = _make_home(
        folder, name, upstream_port, is_default=is_default, more=more, scheme="https" if certificate else "http"
    )
    options = ("--port", "0", "--workers", str(workers), "--json")
    command = [_find_command("foveate"), "serve", "--config", str(home / _CONFIG), *options]
    log = home / "log"
    environment = {"FOVEATE_HOME": str(home)} | ({"SSL_CERT_FILE": str(certificate)} if certificate else {})
    with start_process(command, log=log, environment=environment) as process:
        port = int(json.loads(_read_line(process, log))["url"].rpartition(":")[2])
        yield Server(name, port, process.pid, log)


class SteppedGateway:
    """A gateway that reports the duration of its steps."""

    def __init__(self, server: Server, process: subprocess.Popen[str]) -> None:
        self.server = server
        self._process = process

    def read_durations(self) -> dict[str, list[tuple[float, float | None]]]:
        """Return wall and CPU milliseconds of each step, for every request since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        durations: dict[str, list[tuple[float, float | None]]] = json.loads(
            _read_line(self._process, self.server.log)
        )
        return durations


@contextmanager
def stepped_gateway(folder: Path, upstream_port: int) -> Iterator[SteppedGateway]:
    """Run the same gateway with a stopwatch on its steps."""
    name = "steps"
    home = _make_home(folder, name, upstream_port)
    log = home / "log"
    command = [sys.executable, "-m", "benchmarks.gateway_steps", str(home / _CONFIG)]
    with start_process(command, log=log, environment={"FOVEATE_HOME": str(home)}) as process:
        yield SteppedGateway(Server(name, int(_read_line(process, log)), process.pid, log), process)


@contextmanager
def litellm(
    folder: Path, upstream_port: int, *, workers: int = 1, start_seconds: float = _START_SECONDS
) -> Iterator[Server]:
    """Run LiteLLM's proxy with defaults and two models.

    Raises:
        BadData: it did not answer within `start_seconds`.
    """
    port = _free_port()
    config = folder / "litellm.yaml"
    config.write_text(_litellm_configuration(upstream_port), encoding="utf-8")
    command = [
        *(_find_command("litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)),
        *("--num_workers", str(workers)),
    ]
    log = folder / "litellm.log"
    # Without a network it uses its bundled price list; everything else is the default.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
    with start_process(
        ["sh", "-c", 'exec "$@" >&2', "sh", *command], log=log, environment=environment
    ) as process:
        _wait_for(f"http://127.0.0.1:{port}/health/liveliness", process, log, start_seconds)
        yield Server("litellm", port, process.pid, log)


def _make_home(
    folder: Path,
    name: str,
    upstream_port: int,
    *,
    is_default: bool = False,
    more: str = "",
    scheme: str = "http",
) -> Path:
    """Create a folder with a configuration, which also holds data."""
    home = folder / name
    home.mkdir()
    config = _upstreams(f"{scheme}://127.0.0.1:{upstream_port}") + ("" if is_default else _ALL_ON) + more
    (home / _CONFIG).write_text(config, encoding="utf-8")
    return home


def _upstreams(address: str) -> str:
    return f"""\
upstreams:
  anthropic: {{base_url: "{address}"}}
  openai: {{base_url: "{address}/v1"}}
  google: {{base_url: "{address}"}}
"""


_ALL_ON = f"""\
context_optimization:
  prompt_cache: {{enabled: true}}
  compaction: {{enabled: true, extractive: true}}
  token_counter: {{enabled: true}}
  workspace_cache: {{enabled: true}}
agents:
  - {{id: {COMPACTING_AGENT}, window_tokens: {COMPACTING_WINDOW_TOKENS}}}
cost:
  caps:
    - {{scope: day, dollars: 1000000}}
    - {{scope: agent, dollars: 1000000}}
"""


def _litellm_configuration(upstream_port: int) -> str:
    return f"""\
model_list:
  - model_name: {MODEL}
    litellm_params:
      model: anthropic/{MODEL}
      api_base: "http://127.0.0.1:{upstream_port}"
      api_key: sk-bench
  - model_name: {CHAT_MODEL}
    litellm_params:
      model: openai/{CHAT_MODEL}
      api_base: "http://127.0.0.1:{upstream_port}/v1"
      api_key: sk-bench
"""


def _find_command(name: str) -> str:
    """Find a command of this environment."""
    command = Path(sys.executable).with_name(name)
    if not command.exists():
        raise BadData(f"there is no {name} in this environment; ./bench has it")
    return str(command)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _read_line(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    line: str = process.stdout.readline()
    if not line:
        raise BadData(f"{process.args!r} ended before it was ready: {log_tail(log)}")
    return line


def _wait_for(url: str, process: subprocess.Popen[str], log: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise BadData(f"nothing answers at {url} within {seconds:g} s: {log_tail(log)}")


def log_tail(log: Path) -> str:
    """Return the end of a process's log."""
    return log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
