"""The files to run the gateway by: what they copy and call is there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from foveate.config.environment import variables_in
from foveate.config.overriding import STORE_VARIABLE
from foveate.gateway.configured import USUAL_VARIABLES
from foveate.gateway.pages import HEALTH
from tests.unit.test_docs import COMMANDS

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
UNIT = ROOT / "packaging" / "foveate.service"


def test_all_that_the_image_copies_is_there_and_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
        for name in line.split()
    ]

    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name in allowed, f"{name} is not in .dockerignore's exceptions"


def test_the_image_is_not_run_by_root_and_keeps_its_data_in_a_volume() -> None:
    last_stage = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]

    assert re.search(r"^USER (?!root)\w+$", last_stage, re.MULTILINE)
    home = re.search(r"FOVEATE_HOME=(\S+)", last_stage)
    assert home
    assert f"\nVOLUME {home[1]}\n" in last_stage
    assert HEALTH in last_stage[last_stage.index("HEALTHCHECK") :]


@pytest.mark.parametrize(
    "line",
    [
        re.sub(r'[\[\]",]', "", DOCKERFILE[DOCKERFILE.rindex("CMD [") + 4 :]).strip(),
        re.search(r"^ExecStart=\S+ (.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)[1],  # type: ignore[index]
    ],
)
def test_what_they_call_the_command_with_is_understood(line: str) -> None:
    command, *words = line.split()
    options = {option for parameter in COMMANDS[f"foveate {command}"].params for option in parameter.opts}

    assert {word for word in words if word.startswith("--")} <= options


def test_the_example_of_variables_can_be_read_and_names_the_key_of_every_provider() -> None:
    text = (ROOT / ".env.example").read_text(encoding="utf-8")

    assert variables_in(text, ".env.example") == {}  # whoever copies it has changed nothing yet
    said = variables_in(re.sub(r"^#(?=[A-Z_]+=)", "", text, flags=re.MULTILINE), ".env.example")
    assert {*USUAL_VARIABLES.values(), "FOVEATE_HOME", STORE_VARIABLE} == said.keys()


def test_the_steps_in_the_unit_write_the_file_that_it_is_started_with() -> None:
    """Defect: whoever followed them had no such file, and a unit that was restarted for ever."""
    text = UNIT.read_text(encoding="utf-8")
    named = re.search(r"^ExecStart=.* --config (\S+)$", text, re.MULTILINE)

    assert named
    steps = [line for line in text.splitlines() if line.startswith("#   ")]
    written = next(number for number, line in enumerate(steps) if f"foveate config init {named[1]}" in line)
    assert "systemctl enable" in steps[written + 1]


@pytest.mark.process
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze to ask")
    # It looks whether the program is there, which it is only where it was installed.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/foveate/bin/foveate", "/bin/true"))

    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
