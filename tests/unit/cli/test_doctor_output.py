"""Output of `foveate doctor`."""

import pytest

from foveate.cli.doctor import findings_lines
from foveate.cli.shared.console import Display
from foveate.doctor.findings import failed_finding, ok_finding, warning_finding

FINDINGS = [
    ok_finding("store", "there"),
    warning_finding("port", "taken", "take another"),
    failed_finding("config", "prot", "port?", "x"),
]


def test_each_finding_has_a_line_and_its_advice_below() -> None:
    assert list(findings_lines(FINDINGS, Display(columns=80))) == [
        "ok       store   there",
        "warning  port    taken",
        "                 -> take another",
        "failed   config  x: prot",
        "                 -> port?",
        "1 ok, 1 warning, 1 failed",
    ]


@pytest.mark.parametrize("columns", [1, 24, 30, 80])
def test_lines_are_wrapped_and_control_characters_escaped(columns: int) -> None:
    findings = [*FINDINGS, failed_finding("vocabularies", "模型 " * 40 + "\x1b[31m", "do this and that " * 9)]
    lines = list(findings_lines(findings, Display(columns=columns, encoding="utf-8")))

    assert all(line.isprintable() for line in lines)
    assert "\x1b[33mwarning" in "\n".join(findings_lines(FINDINGS, Display(colours=True)))
