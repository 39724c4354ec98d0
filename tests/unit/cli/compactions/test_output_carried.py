from foveate.cli.compactions.output import carried_lines
from foveate.cli.shared.console import Display
from foveate.compaction.summarize.extractive import CarriedLine

DISPLAY = Display(columns=50)


def test_lines_are_grouped_and_say_where_they_come_from() -> None:
    carried = [
        CarriedLine("Constraints", "Never push to the main branch of the project.", 3, "user"),
        CarriedLine("Constraints", "Use tabs.", None),
        CarriedLine("Names", "a.py b.py", None, items=("a.py", "b.py")),
    ]

    assert list(carried_lines(carried, DISPLAY, full=False)) == [
        "",
        "Constraints",
        "  - Never push to the main branch of the project.",
        "    (message 3, user)",
        "  - Use tabs.",
        "",
        "Names",
        "  - a.py, b.py",
    ]


def test_long_groups_are_cut_unless_all_is_asked_for() -> None:
    names = tuple(f"n{number}" for number in range(15))
    carried = [
        *(CarriedLine("Facts", f"Port {number}.", number + 1) for number in range(14)),
        CarriedLine("Names", " ".join(names), None, items=names),
    ]

    short, full = ("\n".join(carried_lines(carried, DISPLAY, full=full)) for full in (False, True))

    assert "  - Port 11. (message 12)\n  and 2 more; --full shows all\n" in short
    assert "n11, and 3 more;" in " ".join(short.split())
    assert "more" not in full
    assert "Port 13." in full
    assert "n14" in full
