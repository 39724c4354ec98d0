"""pytest plugin that reports which tests, files and markers take the time: `./test --durations [ARGS]`.

Each test gets its wall time and its CPU time. The CPU time includes processes that ended during the test. A
test whose wall time is much longer than its CPU time waits for something.
"""

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

import pytest

from tests.support.harness.markers import TIERS

_PROPERTY = "cpu_seconds"
_ROWS = 25
# CPU time from which on a test is to have a marker, and directories that the quick run takes tests from.
_SLOW_SECONDS = 0.5
_QUICK = ("tests/unit/", "tests/contract/")


@dataclass(frozen=True, slots=True)
class TimedTest:
    """Wall and CPU time of one test, setup and teardown included."""

    name: str
    wall_seconds: float
    cpu_seconds: float
    markers: tuple[str, ...]

    @property
    def file(self) -> str:
        """Path of the test's module."""
        return self.name.split("::", 1)[0]


def format_report(tests: Iterable[TimedTest]) -> Iterator[str]:
    """Format tables of the time by directory, marker, file and test."""
    slowest = sorted(tests, key=lambda test: test.wall_seconds, reverse=True)
    if not slowest:
        return
    wall_seconds = sum(test.wall_seconds for test in slowest)
    top = slowest[: -(-len(slowest) // 20)]
    share = sum(test.wall_seconds for test in top) / wall_seconds if wall_seconds else 0.0
    yield f"{len(slowest):,} tests took {wall_seconds:,.0f} s in all workers together"
    yield f"the slowest 5% ({len(top):,} tests, from {top[-1].wall_seconds:.2f} s on) took {share:.0%} of it"
    yield from _table("directory", slowest, lambda test: [_directory(test.file)])
    yield from _table("marker", slowest, lambda test: test.markers or ["(none)"])
    yield from _table("file", slowest, lambda test: [test.file])
    yield from _table("test", slowest, lambda test: [f"{test.name}  {' '.join(test.markers)}".rstrip()])
    unmarked = [
        test
        for test in slowest
        if not test.markers and test.cpu_seconds > _SLOW_SECONDS and test.file.startswith(_QUICK)
    ]
    if unmarked:
        yield from _table("slow test without a marker", unmarked, lambda test: [test.name])


def _directory(file: str) -> str:
    return "/".join(file.split("/")[:-1][:3])


def _table(title: str, tests: Iterable[TimedTest], keys: Callable[[TimedTest], Iterable[str]]) -> Iterator[str]:
    groups: dict[str, list[TimedTest]] = defaultdict(list)
    for test in tests:
        for key in keys(test):
            groups[key].append(test)
    rows = sorted(
        (sum(test.wall_seconds for test in group), sum(test.cpu_seconds for test in group), len(group), key)
        for key, group in groups.items()
    )
    yield ""
    yield f"{'wall s':>9} {'CPU s':>9} {'tests':>7}  {title}"
    for wall, cpu, count, key in rows[: -_ROWS - 1 : -1]:
        yield f"{wall:>9.1f} {cpu:>9.1f} {count:>7,}  {key}"


class _Recorder:
    """Records CPU time where tests run, and adds everything up where reports arrive."""

    def __init__(self) -> None:
        self._cpu_before = 0.0
        self._wall: dict[str, float] = defaultdict(float)
        self._cpu: dict[str, float] = defaultdict(float)
        self._markers: dict[str, tuple[str, ...]] = {}

    def pytest_runtest_logstart(self) -> None:
        self._cpu_before = _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = _cpu_seconds()
        report.user_properties = [(_PROPERTY, now - self._cpu_before)]
        self._cpu_before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._wall[report.nodeid] += report.duration
        for name, value in report.user_properties:
            if name == _PROPERTY and isinstance(value, float):
                self._cpu[report.nodeid] += value
        self._markers[report.nodeid] = tuple(name for name in TIERS if name in report.keywords)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("where the time went")
        tests = [
            TimedTest(name, wall, self._cpu[name], self._markers[name]) for name, wall in self._wall.items()
        ]
        for line in format_report(tests):
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder())


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
