"""The commands of the project are executable POSIX shell scripts."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
COMMANDS = ("run", "test", "bench", ".ci/run", "tools/lock")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_an_executable_posix_shell_script(command: str) -> None:
    path = ROOT / command

    assert os.access(path, os.X_OK)
    assert path.read_text(encoding="utf-8").startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(path)], check=True)


def test_the_shared_setup_is_posix_shell() -> None:
    subprocess.run(["sh", "-n", str(ROOT / "tools" / "setup.sh")], check=True)
