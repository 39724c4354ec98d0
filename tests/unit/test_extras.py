"""Extras: what the code imports, what `pyproject.toml` requires, and the error if it is missing."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from foveate.errors import MissingExtra
from foveate.extras import GATEWAY_MODULES, SEARCH_MODULES, install_command, to_missing_extra

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def required_packages(lines: list[str]) -> set[str]:
    return {str(canonicalize_name(Requirement(line).name)) for line in lines} - {"foveate"}


def imported_modules() -> Iterator[str]:
    for path in (ROOT / "src" / "foveate").rglob("*.py"):
        for statement in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(statement, ast.Import):
                yield from (name.name.partition(".")[0] for name in statement.names)
            elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
                yield statement.module.partition(".")[0]


def test_everything_that_is_imported_is_required() -> None:
    packages = packages_distributions()
    required = required_packages(
        [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
    )
    others = set(imported_modules()) - sys.stdlib_module_names - {"foveate"}
    others.discard("pydantic_core")  # part of pydantic, which pins its version

    assert {
        module for module in others if not required & set(map(canonicalize_name, packages[module]))
    } == set()


@pytest.mark.parametrize(("extra", "modules"), [("gateway", GATEWAY_MODULES), ("search", SEARCH_MODULES)])
def test_the_modules_of_an_extra_are_those_of_its_packages(extra: str, modules: tuple[str, ...]) -> None:
    packages = packages_distributions()
    found = {canonicalize_name(package) for module in modules for package in packages[module]}

    assert found == required_packages(EXTRAS[extra])


def test_all_extras_are_in_all() -> None:
    (line,) = EXTRAS["all"]

    assert Requirement(line).extras == EXTRAS.keys() - {"all"}


@pytest.mark.parametrize(
    ("module", "extra"), [("uvicorn", "gateway"), ("sqlalchemy.exc", "gateway"), ("numpy", "search")]
)
def test_a_missing_module_is_reported_with_its_extra(module: str, extra: str) -> None:
    error = to_missing_extra(ModuleNotFoundError(name=module))

    assert isinstance(error, MissingExtra)
    assert error.extra == extra
    assert str(error) == f"{module.partition('.')[0]} is not installed: {install_command()} 'foveate[{extra}]'"


def test_the_command_that_installs_packages_is_that_of_the_environment(tmp_path: Path) -> None:
    environment = str(tmp_path / "my tools")

    assert install_command(environment, has_pip=True) == "pip install"
    assert install_command(environment, has_pip=False) == f"uv pip install --python '{environment}'"
    (tmp_path / "my tools").mkdir()
    (tmp_path / "my tools" / "pipx_metadata.json").touch()
    assert install_command(environment, has_pip=True) == "pipx runpip foveate install"


@pytest.mark.parametrize("module", ["foveate.nothing", "msgspec", None])
def test_a_module_of_no_extra_is_not_reported(module: str | None) -> None:
    assert to_missing_extra(ModuleNotFoundError(name=module)) is None


def test_every_extra_that_a_message_names_exists() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "foveate").rglob("*.py")]
    named = {
        name
        for text in texts
        for name in re.findall(r"\{install(?:_command\(\))?\} 'foveate\[([a-z]+)\]'", text)
    }

    assert named <= EXTRAS.keys()
    assert named
