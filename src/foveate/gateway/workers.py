"""Several processes that serve at one socket, and one that only watches them.

The parent has the socket and gives it to every worker; whichever is free takes the next connection. A worker
that dies is started again. It ends when its standard input does, which the parent holds: so none outlives it.
"""

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import msgspec

from foveate.config.overriding import Flags
from foveate.errors import WorkersFailed

_LOG = logging.getLogger(__name__)

WORKER = "foveate.gateway.worker"
READY = b"ready\n"

# One that lived for so long did not die of how it was started.
_SOON_SECONDS = 10.0
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 15.0
_MOST_IN_A_ROW = 6
# So often it is looked what the configuration says: it may be unusable when a worker has to be started.
_LOOK_SECONDS = 1.0
# Beyond the time that answers under way have: for booking, and for whoever does not hear.
_MARGIN_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker is told: the socket's descriptor, and what the command was told. The first also forgets.

    `usual` are the places of the configuration where none is named, and `held` is what it said when it last
    could be used.
    """

    descriptor: int
    config: str | None
    flags: Flags
    usual: tuple[str, ...] = ()
    number: int = 0
    held: bytes | None = None


@dataclass(frozen=True, slots=True)
class Deaths:
    """How many workers in a row died soon after their start, and whether any was ever ready."""

    in_a_row: int = 0
    was_ready: bool = False

    def after(self, *, lived_seconds: float) -> "Deaths":
        """With one more that died."""
        return replace(self, in_a_row=self.in_a_row + 1 if lived_seconds < _SOON_SECONDS else 1)

    def wait_seconds(self, *, others_serve: bool) -> float | None:
        """How long to wait before another one is started; None: to do so is of no use.

        While `others_serve`, nobody is helped by giving up.
        """
        if not self.was_ready or (self.in_a_row > _MOST_IN_A_ROW and not others_serve):
            return None
        doublings = min(self.in_a_row - 1, _MOST_IN_A_ROW)
        return min(_FIRST_WAIT_SECONDS * 2.0**doublings, _LONGEST_WAIT_SECONDS)


@dataclass(slots=True)
class _Worker:
    number: int
    process: "subprocess.Popen[bytes]"
    started_at: float
    is_ready: bool = False


@dataclass(slots=True)
class _Watched:
    """What the parent knows."""

    running: dict[int, _Worker] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)
    deaths: Deaths = field(default_factory=Deaths)
    signals: list[int] = field(default_factory=list)
    ends_at: float | None = None
    failed: WorkersFailed | None = None


def serve_by_workers(
    where: socket.socket,
    order: Order,
    environment: Mapping[str, str],
    *,
    count: int,
    grace_seconds: float,
    ready: Callable[[], None],
    ended: Callable[[int], None],
    held: Callable[[], bytes | None] = lambda: None,
) -> None:
    """Serve at a socket by `count` processes, until somebody ends it.

    `ready` is called once all of them serve, `ended` with the process id of one that has ended. `held` is asked
    now and then what the configuration said when it last could be used.

    Raises:
        WorkersFailed: they die as soon as they are started.
        KeyboardInterrupt: it was Ctrl-C that ended it.
    """
    watched = _Watched()

    def start(number: int) -> None:
        now = replace(order, number=number, held=held())
        watched.running[number] = worker = _started(now, environment)
        if worker.process.stdout is not None:
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    with selectors.DefaultSelector() as selector, _signals() as came:
        selector.register(came, selectors.EVENT_READ, None)
        try:
            for number in range(count):
                start(number)
            while watched.running or (watched.due and watched.ends_at is None):
                for key, _ in selector.select(_timeout(watched)):
                    if key.data is None:
                        _heard(watched, os.read(came, 64), where, grace_seconds)
                    elif not _is_alive(key.data):
                        selector.unregister(key.fileobj)
                        _died(watched, key.data, where, grace_seconds)
                        ended(key.data.process.pid)
                    elif not watched.deaths.was_ready and _all_ready(watched, count):
                        watched.deaths = replace(watched.deaths, was_ready=True)
                        ready()
                _kill_late(watched)
                held()
                for number in [number for number, at in watched.due.items() if at <= time.monotonic()]:
                    del watched.due[number]
                    if watched.ends_at is None:
                        start(number)
        finally:
            for worker in watched.running.values():
                worker.process.kill()
                worker.process.wait()
    if watched.failed is not None:
        raise watched.failed
    if signal.SIGINT in watched.signals:
        raise KeyboardInterrupt


def _started(order: Order, environment: Mapping[str, str]) -> _Worker:
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(order.descriptor,),
        env=dict(environment),
        start_new_session=True,  # Ctrl-C is for the parent, which tells its workers
    )
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # then its end is seen at once
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
    return _Worker(number=order.number, process=process, started_at=time.monotonic())


def _is_alive(worker: _Worker) -> bool:
    """Whether a worker that was heard of said something, which is that it is ready."""
    assert worker.process.stdout is not None
    said = os.read(worker.process.stdout.fileno(), 64)
    worker.is_ready = worker.is_ready or bool(said)
    return bool(said)


def _all_ready(watched: _Watched, count: int) -> bool:
    return len(watched.running) == count and all(worker.is_ready for worker in watched.running.values())


def _died(watched: _Watched, worker: _Worker, where: socket.socket, grace_seconds: float) -> None:
    code = worker.process.wait()
    for pipe in (worker.process.stdin, worker.process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    del watched.running[worker.number]
    if watched.ends_at is not None:
        return
    now = time.monotonic()
    watched.deaths = watched.deaths.after(lived_seconds=now - worker.started_at)
    others_serve = any(other.is_ready for other in watched.running.values())
    wait = watched.deaths.wait_seconds(others_serve=others_serve)
    if wait is None:
        watched.failed = WorkersFailed(watched.deaths.in_a_row, code)
        _end(watched, where, grace_seconds)
        return
    _LOG.error("worker %d ended (%s); another one is started in %g s", worker.number, _reason(code), wait)
    watched.due[worker.number] = now + wait


def _reason(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with code {code}"


def _heard(watched: _Watched, numbers: bytes, where: socket.socket, grace_seconds: float) -> None:
    """A first signal ends all once answers under way are there, a second breaks them off, a third kills."""
    for number in numbers:
        if number not in (signal.SIGINT, signal.SIGTERM):
            continue
        watched.signals.append(number)
        if len(watched.signals) > 2:
            watched.ends_at = time.monotonic()
        else:
            _end(watched, where, grace_seconds)


def _end(watched: _Watched, where: socket.socket, grace_seconds: float) -> None:
    where.close()  # so that clients are told at once
    watched.ends_at = time.monotonic() + grace_seconds + _MARGIN_SECONDS
    for worker in watched.running.values():
        worker.process.terminate()


def _kill_late(watched: _Watched) -> None:
    if watched.ends_at is not None and watched.ends_at <= time.monotonic():
        for worker in watched.running.values():
            worker.process.kill()


def _timeout(watched: _Watched) -> float:
    """How long there is nothing to do, unless something is heard."""
    at = [*watched.due.values(), *([] if watched.ends_at is None else [watched.ends_at])]
    return min([_LOOK_SECONDS, *(max(0.0, when - time.monotonic()) for when in at)])


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor at which the numbers of signals are read, instead of their doing anything."""
    heard, written = os.pipe()
    os.set_blocking(written, False)
    before = {
        number: signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    previous = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    try:
        yield heard
    finally:
        signal.set_wakeup_fd(previous)
        for number, action in before.items():
            signal.signal(number, action)
        os.close(heard)
        os.close(written)
