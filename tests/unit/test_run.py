"""`./run` without arguments: it serves, with a model on this machine where no provider's key is to be found."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project whose `foveate` only says what it was called with, and whose setup does nothing."""
    shutil.copy(ROOT / "run", tmp_path / "run")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "setup.sh").write_text('prepare() { :; }\nsay() { printf "%s\\n" "$*" >&2; }\n')
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    foveate = tmp_path / ".venv" / "bin" / "foveate"
    foveate.write_text('#!/bin/sh\nprintf "%s " "$@"\n')
    foveate.chmod(0o755)
    (tmp_path / "work").mkdir()
    return tmp_path


def called(checkout: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [checkout / "run", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=checkout / "work",
        env={"PATH": os.environ["PATH"], **environment},
    )
    return done.stdout.strip()


def test_without_a_key_anywhere_there_is_a_model_on_this_machine(checkout: Path) -> None:
    assert called(checkout) == "serve --local"
    assert called(checkout, OPENAI_API_KEY="") == "serve --local"


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "DEEPSEEK_API_KEY"])
def test_with_a_key_in_the_environment_there_is_none(checkout: Path, name: str) -> None:
    assert called(checkout, **{name: "sk-1"}) == "serve"


@pytest.mark.parametrize(
    "line", ["ANTHROPIC_API_KEY=sk-1", 'export OPENAI_API_KEY = "sk-1"', "  NVIDIA_API_KEY='x'"]
)
def test_with_a_key_in_the_file_of_variables_there_is_none(checkout: Path, line: str) -> None:
    (checkout / "work" / ".env").write_text(f"A=1\n{line}\n")

    assert called(checkout) == "serve"


@pytest.mark.parametrize(
    "line", ["#ANTHROPIC_API_KEY=sk-1", "ANTHROPIC_API_KEY=", 'OPENAI_API_KEY=""', "MY_KEY=sk-1"]
)
def test_a_line_without_a_key_counts_for_nothing(checkout: Path, line: str) -> None:
    (checkout / "work" / ".env").write_text(f"{line}\n")

    assert called(checkout) == "serve --local"


def test_what_it_is_told_to_run_is_run(checkout: Path) -> None:
    assert called(checkout, "count", "a file") == "count a file"
