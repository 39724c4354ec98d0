"""Every setting and every environment variable has a test of its effect."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.settings_coverage import SETTINGS, SYSTEM_VARIABLES, VARIABLES
from tests.golden.contract_file import load

FOLDER = Path(__file__).parent
# Keys of other files: scripts of the sandbox, and sections for `foveate assemble`.
OTHER_FILES = ("sandbox script: ", "sections: ")


@cache
def function_names(file: str) -> frozenset[str]:
    tree = ast.parse((FOLDER / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_setting_has_a_test() -> None:
    settings = {
        path
        for path, entry in load()["settings"].items()
        if not entry.startswith("mapping") and not path.startswith(OTHER_FILES)
    }

    assert settings - SETTINGS.keys() == set(), "name the test of a new setting in settings_coverage.py"
    assert SETTINGS.keys() - settings == set(), "this setting no longer exists"


def test_every_environment_variable_has_a_test() -> None:
    assert load()["environment variables"].keys() == VARIABLES.keys() | SYSTEM_VARIABLES


@pytest.mark.parametrize(("file", "name"), sorted({*SETTINGS.values(), *VARIABLES.values()}))
def test_the_test_of_each_setting_exists(file: str, name: str) -> None:
    assert name in function_names(file)
