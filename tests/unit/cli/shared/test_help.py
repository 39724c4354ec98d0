"""The list of commands in `foveate --help`."""

import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from foveate.cli import app
from foveate.cli.shared.help import COMMAND_GROUPS


def get_commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def test_every_command_is_in_exactly_one_group() -> None:
    grouped = [name for names in COMMAND_GROUPS.values() for name in names]

    assert sorted(grouped) == sorted(get_commands())


def test_help_lists_the_commands_by_group_in_order() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    listed = text[text.index("\nRun:\n") :]

    assert re.findall(r"^(\w+):$", listed, re.MULTILINE) == [*COMMAND_GROUPS]
    assert re.findall(r"^  (\w+)", listed, re.MULTILINE) == [
        name for names in COMMAND_GROUPS.values() for name in names
    ]
    assert "Commands:" not in text


def test_every_command_has_a_summary_that_is_an_imperative_sentence() -> None:
    def check(name: str, command: Any) -> None:
        summary: str = command.short_help
        assert re.fullmatch(r"[A-Z].{20,}\.", summary), (name, summary)
        assert not summary.partition(" ")[0].endswith("s"), (name, summary)
        for subname, subcommand in getattr(command, "commands", {}).items():
            check(f"{name} {subname}", subcommand)

    for name, command in get_commands().items():
        check(name, command)


@pytest.mark.process
def test_help_does_not_load_rich() -> None:
    code = (
        "import sys; from foveate.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print([name for name in sys.modules if name.startswith('rich')], file=sys.stderr)"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (outcome.returncode, outcome.stderr) == (0, "[]\n")


def test_usage_shows_required_arguments_without_braces() -> None:
    usage = CliRunner().invoke(app, ["memory", "outline", "--help"], prog_name="foveate").stdout.splitlines()[0]
    assert usage == "Usage: foveate memory outline [OPTIONS] PATH..."
