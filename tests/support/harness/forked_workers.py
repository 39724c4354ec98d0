"""pytest plugin that runs tests in forks of the process that collected them: `--forks 6`.

Each worker of pytest-xdist imports and collects all tests itself, which takes as long as hundreds of tests.
Forks share what one process has collected. A worker takes one file of tests after the other, so that fixtures
of modules are set up once. As many workers as there are cores begin with files that compute, and all others
with files that wait, so that all cores are busy all the time. Quick files do not wait for anything either, so
one worker more than there are cores is enough for them: each loads much once more.

With `--again-alone 5`, up to five tests that fail beside others run a second time when nothing else runs. Only
the second outcome counts, and the summary shows how they failed at first: tests of real processes wait for
these with time limits, which a busy machine can exceed.
"""

import multiprocessing
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness.markers import TIERS

Test = int  # its position among the collected ones
_WAITING, _BUSY, _QUICK = "waiting", "busy", "quick"
_FAILED_AT_FIRST: Any = "failed beside others"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run tests in this many forks of this process")
    parser.addoption(
        "--again-alone",
        type=int,
        default=0,
        help="run up to this many failed tests a second time, one after the other; only with --forks",
    )


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    return ("failed beside others", "R", "AGAIN") if report.outcome == _FAILED_AT_FIRST else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("failed beside others")
    if reports:
        terminalreporter.section("failed beside others, and ran again alone")
    for report in reports:
        terminalreporter.section(report.nodeid, sep="_")
        terminalreporter.line(report.longreprtext)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    workers = session.config.getoption("forks")
    if not workers or session.testsfailed or session.config.option.collectonly:
        return None
    with tempfile.TemporaryDirectory(prefix="foveate-forks-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # some tests read files as another user
        _Dispatcher(session, Path(folder)).run(workers)
    return True


@dataclass(frozen=True, slots=True)
class _Worker:
    process: ForkProcess
    # The kinds of files that it takes, in this order.
    order: tuple[str, ...]
    # The test that it runs, and the next one, which decides what fixtures it keeps.
    given: deque[Test] = field(default_factory=deque)
    rest_of_file: deque[Test] = field(default_factory=deque)


class _Dispatcher:
    """Gives tests to workers and reports the outcomes that they send."""

    def __init__(self, session: pytest.Session, folder: Path) -> None:
        self._session = session
        self._hook = session.config.hook
        self._folder = folder
        self._files = sort_files(session.items)
        self._workers: dict[Connection, _Worker] = {}
        self._numbers = count()
        self._max_repeated: int = session.config.getoption("again_alone")
        self._to_repeat: deque[Test] = deque()

    def run(self, workers: int) -> None:
        cores = os.cpu_count() or 1
        for number in range(workers):
            if number < cores:
                self._start_worker((_BUSY, _QUICK, _WAITING))
            else:
                self._start_worker((_WAITING, _BUSY, _QUICK) if number == cores else (_WAITING, _BUSY))
        try:
            self._serve_all()
            self._max_repeated = 0
            for test in self._to_repeat:
                self._files[_WAITING].append([test])
                self._start_worker((_WAITING,))
                self._serve_all()
        finally:  # a worker ends when nobody listens to it
            for connection, worker in self._workers.items():
                connection.close()
                worker.process.join()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _start_worker(self, order: tuple[str, ...]) -> None:
        context, number = multiprocessing.get_context("fork"), next(self._numbers)
        here, there = context.Pipe()
        arguments = (self._session, there, [*self._workers, here], self._folder / f"gw{number}")
        process = context.Process(target=_run_worker, args=arguments)
        process.start()
        there.close()
        self._workers[here] = _Worker(process, order)

    def _serve_all(self) -> None:
        while self._workers:
            for connection in wait(list(self._workers)):
                assert isinstance(connection, Connection)
                self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        worker = self._workers[connection]
        try:
            reports: list[dict[str, Any]] = connection.recv()
            if reports:
                self._report(worker.given.popleft(), reports)
            test = self._next(worker)
            connection.send(test)
        except (EOFError, ConnectionError):
            self._remove(connection)
            return
        if test is not None:
            worker.given.append(test)

    def _next(self, worker: _Worker) -> Test | None:
        if self._session.shouldfail:
            return None
        if not worker.rest_of_file:
            files = next((self._files[kind] for kind in worker.order if self._files[kind]), None)
            if files is None:
                return None
            worker.rest_of_file.extend(files.popleft())
        return worker.rest_of_file.popleft()

    def _report(self, test: Test, serialized: Iterable[dict[str, Any]]) -> None:
        config, item = self._session.config, self._session.items[test]
        reports: list[pytest.TestReport] = [
            self._hook.pytest_report_from_serializable(config=config, data=data) for data in serialized
        ]
        failed = [report for report in reports if report.failed]
        if failed and len(self._to_repeat) < self._max_repeated:
            self._to_repeat.append(test)
            failed[0].outcome = _FAILED_AT_FIRST
            reports = failed[:1]
        for report in reports:
            self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _remove(self, connection: Connection) -> None:
        """Forget a worker that has ended. If it crashed, its test has failed, and a new one takes its place."""
        worker = self._workers.pop(connection)
        connection.close()
        worker.process.join()
        if not worker.given:
            if worker.process.exitcode:
                self._session.shouldfail = f"a worker ended with code {worker.process.exitcode}"
            return
        crashed, *rest = [*worker.given, *worker.rest_of_file]
        item = self._session.items[crashed]
        message = f"the worker ended with code {worker.process.exitcode}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call")
        self._report(
            crashed, [self._hook.pytest_report_to_serializable(config=self._session.config, report=report)]
        )
        if rest:
            self._files[_WAITING].append(rest)
        self._start_worker(worker.order)


def sort_files(items: Sequence[pytest.Item]) -> Mapping[str, deque[list[Test]]]:
    """Group tests by file, and files by what their tests do: wait for processes, compute, or neither."""
    files: dict[Path, list[Test]] = {}
    markers: dict[Path, set[str]] = {}
    for test, item in enumerate(items):
        files.setdefault(item.path, []).append(test)
        markers.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    kinds: dict[str, deque[list[Test]]] = {kind: deque() for kind in (_WAITING, _BUSY, _QUICK)}
    for path, tests in files.items():
        tiers = markers[path].intersection(TIERS)
        kinds[_QUICK if not tiers else _BUSY if tiers == {"slow"} else _WAITING].append(tests)
    # The longest first: at the end, one file with installations or pages would keep a single worker busy.
    kinds[_WAITING] = deque(
        sorted(kinds[_WAITING], key=lambda tests: markers[items[tests[0]].path].isdisjoint(("slow", "browser")))
    )
    return kinds


def _run_worker(
    session: pytest.Session, dispatcher: Connection, others: Iterable[Connection], folder: Path
) -> None:
    """Run tests until the dispatcher has no more, or is gone."""
    for connection in others:
        connection.close()
    config = session.config
    # Plugins and tests recognize a worker by what pytest-xdist sets.
    vars(config)["workerinput"] = {"workerid": folder.name}
    os.environ["PYTEST_XDIST_WORKER"] = folder.name
    folder.mkdir()
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:  # its files are those of the dispatcher
        capture.stop_global_capturing()
        capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    recorder = _Recorder(config)
    config.pluginmanager.register(recorder)
    try:
        with suppress(EOFError, ConnectionError, KeyboardInterrupt):
            test, following = (_exchange(dispatcher, []) for _ in range(2))
            while test is not None:
                nextitem = None if following is None else session.items[following]
                config.hook.pytest_runtest_protocol(item=session.items[test], nextitem=nextitem)
                reports, recorder.reports = recorder.reports, []
                test, following = following, _exchange(dispatcher, reports)
        config.hook.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.OK)
    finally:
        if capture is not None:  # so that an error of the worker itself is seen
            capture.stop_global_capturing()


def _exchange(dispatcher: Connection, reports: list[dict[str, Any]]) -> Test | None:
    dispatcher.send(reports)
    test: Test | None = dispatcher.recv()
    return test


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.reports.append(data)
