"""Server that has loaded all of `foveate` and forks for each command.

`python -m tests.support.processes.fork_server SOCKET` serves the clients in `fork_client` until its standard
input ends.
"""

import atexit
import fcntl
import gc
import importlib
import io
import marshal
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import termios
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.support.processes import fork_client

# Loaded by commands when they need them.
_ALSO_LOADED = ("alembic.command", "genai_prices.data", "numpy", "sqlalchemy.dialects.sqlite", "uvloop")
_MAX_FILES = 253  # the kernel passes no more at once
_exit_codes: list[int] = []


class _Order(NamedTuple):
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    umask: int
    open_files: list[int]
    has_terminal: bool
    traits: list[object]


class _Server:
    def __init__(self, path: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(100)
        self._traits = fork_client.traits()
        self._children: dict[socket.socket, tuple[int, int]] = {}  # process id, and its file for polling
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)

    def serve(self) -> tuple[_Order, list[int]] | None:
        """Serve until standard input ends; return an order in each process that was forked for one."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    for child, _ in self._children.values():
                        os.kill(child, signal.SIGKILL)
                    return None
                if key.fileobj is self._listener:
                    order = self._fork()
                    if order is not None:
                        return order
                else:
                    self._finish(key.data, is_gone=key.fileobj is key.data)

    def _fork(self) -> tuple[_Order, list[int]] | None:
        client, _ = self._listener.accept()
        size, files, _, _ = socket.recv_fds(client, 4, _MAX_FILES)
        with client.makefile("rb") as file:
            data = file.read(int.from_bytes(size))
        child = 0
        if data and len(data) == int.from_bytes(size):  # or the client was killed
            order = _Order(*marshal.loads(data))
            if order.traits == self._traits:
                child = os.fork()
                if not child:
                    self._close()
                    client.close()
                    return order, files
        for descriptor in files:
            os.close(descriptor)
        with suppress(OSError):  # it may be gone; then `_finish` kills the command
            client.sendall(child.to_bytes(4))
        if not child:
            client.close()
            return None
        polled = os.pidfd_open(child)
        self._children[client] = child, polled
        self._selector.register(polled, selectors.EVENT_READ, client)
        self._selector.register(client, selectors.EVENT_READ, client)
        return None

    def _finish(self, client: socket.socket, *, is_gone: bool) -> None:
        """Report the exit code of a command to its client; if the client is gone, kill the command."""
        if client not in self._children:  # both events came at once
            return
        child, polled = self._children.pop(client)
        if is_gone:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with suppress(OSError):
            client.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))
        self._selector.unregister(polled)
        self._selector.unregister(client)
        os.close(polled)
        client.close()

    def _close(self) -> None:
        self._selector.close()
        self._listener.close()
        for client, (_, polled) in self._children.items():
            client.close()
            os.close(polled)


def _load() -> list[Random]:
    """Load what commands need; return the generators that each process has to seed anew."""
    import foveate

    names = [module.name for module in pkgutil.walk_packages(foveate.__path__, "foveate.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    for name in _ALSO_LOADED:
        importlib.import_module(name)
    importlib.import_module("foveate.tokens.tokenizers.vocabularies").bundled_vocabulary("o200k_base")
    gc.collect()
    gc.freeze()
    return [value for module in modules for value in vars(module).values() if isinstance(value, Random)]


def _run(order: _Order, files: list[int], generators: list[Random]) -> None:
    """Run `python -m foveate`, or another module, in this process."""
    is_foveate = order.arguments[:1] != ["-m"]
    module, *arguments = ["foveate", *order.arguments] if is_foveate else order.arguments[1:]
    if module != "foveate":
        del sys.modules[module]
    # Gateways of `run` are forked as well, and workers; not local models, whose libraries are not loaded here.
    if arguments[:1] == ["run"] or (arguments[:1] == ["serve"] and "--local" not in arguments):
        sys.executable = str(Path(sys.argv[1]).with_name("python"))
    for generator in generators:
        generator.seed()
    os.chdir(order.folder)
    os.umask(order.umask)
    os.environ.clear()
    os.environ.update(order.environment)
    time.tzset()
    tempfile.tempdir = None
    _renumber(files, order.open_files)
    for number in {0, 1, 2} - set(order.open_files):
        os.close(number)
    if order.has_terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin, sys.stdout, sys.stderr = (
        _stream(number, mode, before) if number in order.open_files else None
        for number, mode, before in ((0, "rb", sys.stdin), (1, "wb", sys.stdout), (2, "wb", sys.stderr))
    )
    sys.argv = [module, *arguments]
    sys.path[0] = order.folder
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exit_:
        if isinstance(exit_.code, int):
            _exit_codes.append(exit_.code)
        raise


def _renumber(files: list[int], numbers: list[int]) -> None:
    """Give open files the numbers that they have in the client."""
    lowest = max(numbers, default=0) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, lowest) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _exit_quickly() -> None:
    """End without freeing each object, which would first copy all memory that is shared with the server."""
    for code in _exit_codes:
        with suppress(OSError, ValueError):  # the interpreter reports the error when it flushes these itself
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(code)


def _stream(number: int, mode: str, before: Any) -> io.TextIOWrapper:
    """Open a standard stream as the interpreter does when it starts."""
    return io.TextIOWrapper(
        open(number, mode, buffering=0 if before.write_through else -1, closefd=False),
        encoding=before.encoding,
        errors=before.errors,
        newline="\n",
        line_buffering=number == 2 or os.isatty(number),
        write_through=before.write_through,
    )


def _main() -> None:
    atexit.register(_exit_quickly)  # the first that is registered is the last that is called
    generators = _load()
    server = _Server(sys.argv[1])
    os.write(1, b"ready\n")
    order = server.serve()
    if order is not None:
        _run(*order, generators)


if __name__ == "__main__":
    _main()
