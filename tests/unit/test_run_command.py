"""`./run` without arguments serves, with a local model if there is no provider's key."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project whose `foveate` only prints its arguments, and whose setup does nothing."""
    shutil.copy(ROOT / "run", tmp_path / "run")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "setup.sh").write_text('prepare() { :; }\nsay() { printf "%s\\n" "$*" >&2; }\n')
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    foveate = tmp_path / ".venv" / "bin" / "foveate"
    foveate.write_text('#!/bin/sh\nprintf "%s " "$@"\n')
    foveate.chmod(0o755)
    (tmp_path / "work").mkdir()
    return tmp_path


def run_and_get_arguments(checkout: Path, *arguments: str, **environment: str) -> str:
    result = subprocess.run(
        [checkout / "run", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=checkout / "work",
        env={"PATH": os.environ["PATH"], **environment},
    )
    return result.stdout.strip()


def test_without_any_key_a_local_model_is_used(checkout: Path) -> None:
    assert run_and_get_arguments(checkout) == "serve --local"
    assert run_and_get_arguments(checkout, OPENAI_API_KEY="") == "serve --local"


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "DEEPSEEK_API_KEY"])
def test_with_a_key_in_the_environment_no_local_model_is_used(checkout: Path, name: str) -> None:
    assert run_and_get_arguments(checkout, **{name: "sk-1"}) == "serve"


@pytest.mark.parametrize(
    "line", ["ANTHROPIC_API_KEY=sk-1", 'export OPENAI_API_KEY = "sk-1"', "  NVIDIA_API_KEY='x'"]
)
def test_with_a_key_in_the_env_file_no_local_model_is_used(checkout: Path, line: str) -> None:
    (checkout / "work" / ".env").write_text(f"A=1\n{line}\n")

    assert run_and_get_arguments(checkout) == "serve"


@pytest.mark.parametrize(
    "line", ["#ANTHROPIC_API_KEY=sk-1", "ANTHROPIC_API_KEY=", 'OPENAI_API_KEY=""', "MY_KEY=sk-1"]
)
def test_a_line_without_a_key_is_ignored(checkout: Path, line: str) -> None:
    (checkout / "work" / ".env").write_text(f"{line}\n")

    assert run_and_get_arguments(checkout) == "serve --local"


def test_arguments_are_passed_on(checkout: Path) -> None:
    assert run_and_get_arguments(checkout, "count", "a file") == "count a file"
