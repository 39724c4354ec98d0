"""The report of `./test --durations`."""

from tests.support.harness.durations import TimedTest, format_report

TIMES = [
    TimedTest("tests/e2e/test_serve.py::test_ends", 30.0, 2.0, ("slow", "process")),
    TimedTest("tests/e2e/test_serve.py::test_starts", 9.0, 1.0, ("process",)),
    *(
        TimedTest(f"tests/unit/formats/edits/test_writer.py::test_{number}", 0.5, 0.4, ())
        for number in range(22)
    ),
]


def report_rows(title: str) -> list[list[str]]:
    """Rows of the table with this title."""
    lines = list(format_report(TIMES))
    start = next(number for number, line in enumerate(lines) if line.endswith(f"  {title}"))
    table = lines[start + 1 :]
    return [line.split() for line in (table[: table.index("")] if "" in table else table)]


def test_times_are_summed_up_by_directory_marker_and_file() -> None:
    assert report_rows("directory") == [
        ["39.0", "3.0", "2", "tests/e2e"],
        ["11.0", "8.8", "22", "tests/unit/formats"],
    ]
    assert report_rows("marker") == [
        ["39.0", "3.0", "2", "process"],
        ["30.0", "2.0", "1", "slow"],
        ["11.0", "8.8", "22", "(none)"],
    ]
    assert report_rows("file")[0] == ["39.0", "3.0", "2", "tests/e2e/test_serve.py"]


def test_the_slowest_tests_come_first_with_their_markers() -> None:
    first = report_rows("test")[0]

    assert first == ["30.0", "2.0", "1", "tests/e2e/test_serve.py::test_ends", "slow", "process"]


def test_the_share_of_the_slowest_tests_is_reported() -> None:
    first, second, *_ = format_report(TIMES)

    assert first == "24 tests took 50 s in all workers together"
    assert second == "the slowest 5% (2 tests, from 9.00 s on) took 78% of it"


def test_slow_tests_of_the_quick_run_are_listed_if_they_have_no_marker() -> None:
    name = "tests/unit/formats/edits/test_writer.py::test_long"
    slow = TimedTest(name, 2.0, 0.6, ())
    mostly_waiting = TimedTest("tests/unit/formats/edits/test_writer.py::test_waits", 2.0, 0.1, ())
    in_another_folder = TimedTest("tests/e2e/test_serve.py::test_long", 2.0, 0.6, ())
    with_marker = TimedTest("tests/unit/formats/edits/test_writer.py::test_marked", 2.0, 0.6, ("slow",))

    lines = list(format_report([*TIMES, slow, mostly_waiting, in_another_folder, with_marker]))

    assert lines[-2].endswith("  slow test without a marker")
    assert lines[-1].split() == ["2.0", "0.6", "1", name]
    assert not any(line.endswith("without a marker") for line in format_report(TIMES))


def test_without_tests_the_report_is_empty() -> None:
    assert list(format_report([])) == []
