"""Lock files pin all requirements with hashes, and no file names a package index."""

import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = {
    "requirements.lock": (("all",), ("run", "dev")),
    "requirements-bench.lock": (("local",), ("bench",)),
    "requirements-run.lock": (("all",), ("run",)),
    "requirements-runtime.lock": (("gateway",), ()),
    "requirements-build.lock": (None, ("build",)),
}
"""The extras and groups that each lock is made from. None is without the project's own requirements."""
INDEX_ADDRESS = re.compile(r"pythonhosted\.org|pypi\.org|https?://\S*/simple\b|index-url\s*=")


def read_pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def list_requirements(extras: tuple[str, ...] | None, groups: tuple[str, ...]) -> list[Requirement]:
    content = read_pyproject()
    project = content["project"]
    lines = [] if extras is None else list(project["dependencies"])
    lines += [line for group in groups for line in content["dependency-groups"][group]]
    lines += [line for extra in extras or () for line in project["optional-dependencies"][extra]]
    requirements = list(map(Requirement, lines))
    own = [requirement for requirement in requirements if requirement.name == project["name"]]
    others = [requirement for requirement in requirements if requirement.name != project["name"]]
    return others + [nested for extra in own for nested in list_requirements(tuple(extra.extras), ())]


def read_pins(lock: str) -> dict[str, list[Version]]:
    """Versions that a lock file pins, by name; several if it differs by platform."""
    versions: dict[str, list[Version]] = {}
    for line in (ROOT / lock).read_text(encoding="utf-8").splitlines():
        if pin := re.match(r"([a-z0-9.-]+)==([^ ]+)", line):
            versions.setdefault(pin[1], []).append(Version(pin[2]))
    return versions


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout, so there are no tracked files to look through")
    paths = (ROOT / name for name in listing.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_pins_every_requirement(lock: str) -> None:
    pinned = read_pins(lock)
    for requirement in list_requirements(*LOCKS[lock]):
        versions = pinned.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not in {lock}: run tools/lock"
        for version in versions:
            assert version in requirement.specifier, f"{lock} has {requirement.name} {version}"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_is_up_to_date(lock: str) -> None:
    digest = runpy.run_path(str(ROOT / "tools" / "lock_inputs.py"))["digest"]
    current = digest((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert f"\n# inputs: sha256:{current}\n" in (ROOT / lock).read_text(encoding="utf-8"), (
        f"{lock} was made from other requirements: run tools/lock"
    )


def test_removing_a_requirement_makes_the_locks_stale() -> None:
    digest = runpy.run_path(str(ROOT / "tools" / "lock_inputs.py"))["digest"]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    changed = re.sub(r'\n    "blake3[^"]*",', "", text)

    assert changed != text
    assert digest(changed) != digest(text)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pinned_version_has_a_hash(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    for entry in re.split(r"\n(?=[a-z0-9])", text)[1:]:
        assert "--hash=sha256:" in entry


def test_benchmarks_and_tests_use_the_same_versions() -> None:
    tested, measured = read_pins("requirements.lock"), read_pins("requirements-bench.lock")
    for requirement in list_requirements(("local",), ()):
        name = canonicalize_name(requirement.name)
        assert measured[name] == tested[name]


@pytest.mark.parametrize(
    "lock", ["requirements-run.lock", "requirements-runtime.lock", "requirements-build.lock"]
)
def test_users_get_the_versions_that_tests_run_with(lock: str) -> None:
    tested = read_pins("requirements.lock")
    assert {name: tested.get(name) for name in read_pins(lock)} == read_pins(lock)


def test_an_environment_for_users_has_no_test_tools() -> None:
    pinned = read_pins("requirements-run.lock").keys()
    assert pinned.isdisjoint({"pytest", "pyrefly", "ruff", "hypothesis", "playwright", "openai", "anthropic"})


@pytest.mark.process
def test_no_file_names_the_address_of_a_package_index() -> None:
    for path in tracked_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        address = INDEX_ADDRESS.search(text)
        assert not address, f"{path.relative_to(ROOT)} names {address}"


@pytest.mark.process
def test_no_lock_file_contains_addresses() -> None:
    assert not [path for path in tracked_files() if path.name in {"uv.lock", "poetry.lock"}]
