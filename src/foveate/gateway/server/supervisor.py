"""Starts several worker processes that serve at one socket, and restarts those that die.

Every worker gets the supervisor's socket; the one with the fewest connections accepts the next. A worker ends
when its standard input does, which the supervisor holds open, so no worker outlives it.
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
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace

import msgspec

from foveate.config.load import ServeFlags
from foveate.errors import WorkersFailed
from foveate.gateway.server.balancing import ConnectionCounts
from foveate.gateway.server.broadcast import WorkerBroadcast

_LOG = logging.getLogger(__name__)

WORKER_MODULE = "foveate.gateway.server.worker"
READY_MESSAGE = b"ready\n"

# A worker that lived longer did not crash at startup.
_MIN_LIFETIME_SECONDS = 10.0
_MIN_RESTART_SECONDS = 0.5
_MAX_RESTART_SECONDS = 15.0
_MAX_CONSECUTIVE_CRASHES = 6
# How often the configuration is read: it may be invalid when a worker has to be restarted.
_POLL_SECONDS = 1.0
# Time beyond the grace period, for recording charges.
_MARGIN_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """Instructions that a worker is started with. Worker 0 also runs retention.

    `default_paths` are the places of the configuration if none is named; `last_valid` is its last valid
    content. `counts_descriptor` is that of the workers' `ConnectionCounts`, and `broadcast_descriptor` that of
    their `WorkerBroadcast`.
    """

    descriptor: int
    config: str | None
    flags: ServeFlags
    default_paths: tuple[str, ...] = ()
    number: int = 0
    last_valid: bytes | None = None
    counts_descriptor: int = -1
    broadcast_descriptor: int = -1


@dataclass(frozen=True, slots=True)
class CrashHistory:
    """Counts the workers in a row that died soon after their start, and tells whether any was ever ready."""

    consecutive: int = 0
    was_ready: bool = False

    def add_crash(self, *, lived_seconds: float) -> "CrashHistory":
        return replace(self, consecutive=self.consecutive + 1 if lived_seconds < _MIN_LIFETIME_SECONDS else 1)

    def restart_delay_seconds(self, *, others_serve: bool) -> float | None:
        """Return the delay before a worker is restarted; None if a restart is useless.

        While `others_serve`, the supervisor never gives up.
        """
        if not self.was_ready or (self.consecutive > _MAX_CONSECUTIVE_CRASHES and not others_serve):
            return None
        doublings = min(self.consecutive - 1, _MAX_CONSECUTIVE_CRASHES)
        return min(_MIN_RESTART_SECONDS * 2.0**doublings, _MAX_RESTART_SECONDS)


@dataclass(slots=True)
class _Worker:
    number: int
    process: "subprocess.Popen[bytes]"
    started_at: float
    is_ready: bool = False


@dataclass(slots=True)
class _SupervisorState:
    running: dict[int, _Worker] = field(default_factory=dict)
    restarts_at: dict[int, float] = field(default_factory=dict)
    crashes: CrashHistory = field(default_factory=CrashHistory)
    signals: list[int] = field(default_factory=list)
    ends_at: float | None = None
    failure: WorkersFailed | None = None


def run_workers(
    listener: socket.socket,
    order: WorkerOrder,
    environment: Mapping[str, str],
    *,
    count: int,
    grace_seconds: float,
    on_ready: Callable[[], None],
    on_exit: Callable[[int], None],
    last_valid: Callable[[], bytes | None] = lambda: None,
) -> None:
    """Serve at a socket with `count` processes until it is shut down.

    `on_ready` is called once all of them serve, and `on_exit` with the process id of one that has ended.
    `last_valid` returns the last valid content of the configuration.

    Raises:
        WorkersFailed: workers die as soon as they are started.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    state = _SupervisorState()

    def start(number: int) -> None:
        worker_order = replace(
            order,
            number=number,
            last_valid=last_valid(),
            counts_descriptor=counts.descriptor,
            broadcast_descriptor=broadcast.descriptor,
        )
        state.running[number] = worker = _start_worker(worker_order, environment)
        if worker.process.stdout is not None:
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    with (
        closing(ConnectionCounts.create(count)) as counts,
        closing(WorkerBroadcast.create(count)) as broadcast,
        selectors.DefaultSelector() as selector,
        _open_signal_pipe() as signal_pipe,
    ):
        selector.register(signal_pipe, selectors.EVENT_READ, None)
        try:
            for number in range(count):
                start(number)
            while state.running or (state.restarts_at and state.ends_at is None):
                for key, _ in selector.select(_select_timeout(state)):
                    if key.data is None:
                        _handle_signals(state, os.read(signal_pipe, 64), listener, grace_seconds)
                    elif not _read_message(key.data):
                        selector.unregister(key.fileobj)
                        counts.mark_ended(key.data.number)
                        broadcast.mark_ended(key.data.number)
                        _handle_exit(state, key.data, listener, grace_seconds)
                        on_exit(key.data.process.pid)
                    elif not state.crashes.was_ready and _are_all_ready(state, count):
                        state.crashes = replace(state.crashes, was_ready=True)
                        on_ready()
                _kill_overdue(state)
                last_valid()
                for number in [number for number, at in state.restarts_at.items() if at <= time.monotonic()]:
                    del state.restarts_at[number]
                    if state.ends_at is None:
                        start(number)
        finally:
            for worker in state.running.values():
                worker.process.kill()
                worker.process.wait()
    if state.failure is not None:
        raise state.failure
    if signal.SIGINT in state.signals:
        raise KeyboardInterrupt


def _start_worker(order: WorkerOrder, environment: Mapping[str, str]) -> _Worker:
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER_MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(order.descriptor, order.counts_descriptor, order.broadcast_descriptor),
        env=dict(environment),
        start_new_session=True,  # the supervisor handles Ctrl-C
    )
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # then its exit is noticed at once
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
    return _Worker(number=order.number, process=process, started_at=time.monotonic())


def _read_message(worker: _Worker) -> bool:
    """Return whether a worker sent its ready message; otherwise its pipe was closed."""
    assert worker.process.stdout is not None
    message = os.read(worker.process.stdout.fileno(), 64)
    worker.is_ready = worker.is_ready or bool(message)
    return bool(message)


def _are_all_ready(state: _SupervisorState, count: int) -> bool:
    return len(state.running) == count and all(worker.is_ready for worker in state.running.values())


def _handle_exit(
    state: _SupervisorState, worker: _Worker, listener: socket.socket, grace_seconds: float
) -> None:
    code = worker.process.wait()
    for pipe in (worker.process.stdin, worker.process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    del state.running[worker.number]
    if state.ends_at is not None:
        return
    now = time.monotonic()
    state.crashes = state.crashes.add_crash(lived_seconds=now - worker.started_at)
    others_serve = any(other.is_ready for other in state.running.values())
    delay_seconds = state.crashes.restart_delay_seconds(others_serve=others_serve)
    if delay_seconds is None:
        state.failure = WorkersFailed(state.crashes.consecutive, code)
        _shut_down(state, listener, grace_seconds)
        return
    _LOG.error("worker %d exited (%s), restarting it in %g s", worker.number, _exit_reason(code), delay_seconds)
    state.restarts_at[worker.number] = now + delay_seconds


def _exit_reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


def _handle_signals(
    state: _SupervisorState, numbers: bytes, listener: socket.socket, grace_seconds: float
) -> None:
    """Shut down gracefully at the first signal, cancel responses at the second, and kill at the third."""
    for number in numbers:
        if number not in (signal.SIGINT, signal.SIGTERM):
            continue
        state.signals.append(number)
        if len(state.signals) > 2:
            state.ends_at = time.monotonic()
        else:
            _shut_down(state, listener, grace_seconds)


def _shut_down(state: _SupervisorState, listener: socket.socket, grace_seconds: float) -> None:
    listener.close()  # so that new connections are refused at once
    state.ends_at = time.monotonic() + grace_seconds + _MARGIN_SECONDS
    for worker in state.running.values():
        worker.process.terminate()


def _kill_overdue(state: _SupervisorState) -> None:
    if state.ends_at is not None and state.ends_at <= time.monotonic():
        for worker in state.running.values():
            worker.process.kill()


def _select_timeout(state: _SupervisorState) -> float:
    due_times = [*state.restarts_at.values(), *([] if state.ends_at is None else [state.ends_at])]
    return min([_POLL_SECONDS, *(max(0.0, due_at - time.monotonic()) for due_at in due_times)])


@contextmanager
def _open_signal_pipe() -> Iterator[int]:
    """Yield a descriptor from which signal numbers are read; signals have no other effect meanwhile."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous_handlers = {
        number: signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for number, action in previous_handlers.items():
            signal.signal(number, action)
        os.close(reader)
        os.close(writer)
