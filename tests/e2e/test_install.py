"""The wheel and the source distribution: what they contain, tools that install them, and lines in pages."""

import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path

import pytest

from tests.support.harness.doc_examples import PAGES, ROOT, read_blocks
from tests.support.processes.distributions import Distributions, run_or_skip
from tests.support.servers.gateway_process import SERVE_ARGUMENTS, write_config
from tests.support.servers.sandbox import running_sandbox

pytestmark = [pytest.mark.slow, pytest.mark.process]

# Endings of the files that the code reads at run time.
DATA = {".toml", ".html", ".js", ".css", ".gz", ".yaml", ".json", ".z", ".txt", ".typed"}
SOURCES = {
    str(path.relative_to(ROOT / "src"))
    for path in (ROOT / "src" / "foveate").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


def test_the_wheel_contains_the_package_with_its_data_and_licences(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        names = set(wheel.namelist())
        metadata = Parser().parsestr(wheel.read("foveate-0.1.0.dist-info/METADATA").decode())

    assert {name for name in names if ".dist-info/" not in name} == SOURCES
    assert {Path(name).suffix for name in SOURCES} - {".py"} == DATA
    assert metadata.get_all("License-File") == ["LICENSE", "src/foveate/web/files/chart.LICENSE.txt"]
    for licence in metadata.get_all("License-File") or ():
        assert f"foveate-0.1.0.dist-info/licenses/{licence}" in names


def test_the_source_distribution_contains_what_a_wheel_is_built_from_and_nothing_else(
    distributions: Distributions,
) -> None:
    with tarfile.open(distributions.sdist) as sdist:
        members = sdist.getmembers()
        texts = [file.read() for member in members if (file := sdist.extractfile(member))]
    names = {member.name.removeprefix("foveate-0.1.0/") for member in members}
    others = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}

    assert names == others | {f"src/{name}" for name in SOURCES}
    assert not [text for text in texts if str(ROOT).encode() in text]
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}


@contextmanager
def served(command: Path, folder: Path, sandbox_url: str) -> Iterator[str]:
    """Run `foveate serve` of an environment in front of a sandbox, and return its URL."""
    write_config(folder / "foveate.yaml", sandbox_url)
    process = subprocess.Popen(
        [command, *SERVE_ARGUMENTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "FOVEATE_HOME": str(folder)},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        process.communicate()


def installed_files(command: Path) -> set[str]:
    """Return the files of the package in the environment of an installed command."""
    (package,) = command.resolve().parents[1].glob("lib/python*/site-packages/foveate")
    files = (path.relative_to(package.parent) for path in package.rglob("*") if path.is_file())
    return {str(path) for path in files if "__pycache__" not in path.parts}


def check_commands(command: Path, folder: Path) -> None:
    """Check `--version`, `count`, `replay`, `service` and `serve` of an installed command."""
    assert installed_files(command) == SOURCES
    folder.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "FOVEATE_HOME": str(folder)}
    shown = {
        "--version": "foveate 0.1.0",
        "count README.md": "offline: exact",
        "replay examples/session.jsonl": "foveate",
        "service install --print": f'ExecStart="{command.resolve()}" "serve"',
    }
    for words, text in shown.items():
        assert text in run_or_skip([str(command), *words.split()], environment)
    with running_sandbox() as sandbox, served(command, folder, sandbox.url) as url:
        body = {
            "model": "claude-opus-4-5",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hello!"}],
        }
        headers = {
            "content-type": "application/json",
            "x-api-key": "sk-1",
            "anthropic-version": "2023-06-01",
        }
        request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response)["type"] == "message"
        assert len(sandbox.requests) == 1


def test_uv_installs_the_wheel_as_a_tool(distributions: Distributions, tmp_path: Path) -> None:
    """With the line for a released version: the folder of the wheel stands in for the index."""
    environment = distributions.environment(tmp_path) | {"UV_FIND_LINKS": str(distributions.wheel.parent)}
    run_or_skip(["uv", "tool", "install", "foveate[gateway]"], environment)

    check_commands(tmp_path / ".local" / "bin" / "foveate", tmp_path / "data")


def test_pipx_installs_the_source_distribution(distributions: Distributions, tmp_path: Path) -> None:
    run_or_skip(["pipx", "install", f"{distributions.sdist}[gateway]"], distributions.environment(tmp_path))

    check_commands(tmp_path / ".local" / "bin" / "foveate", tmp_path / "data")


def test_pip_installs_the_wheel(distributions: Distributions, tmp_path: Path) -> None:
    """uv installs the requirements first, from its cache: pip alone downloads them, which takes minutes."""
    environment, python = distributions.environment(tmp_path), tmp_path / "env" / "bin" / "python"
    run_or_skip([sys.executable, "-m", "venv", str(tmp_path / "env")], environment)
    with_requirements = ["install", "--quiet", f"{distributions.wheel}[gateway]"]
    for words in (with_requirements, ["uninstall", "--quiet", "foveate"]):
        run_or_skip(["uv", "pip", *words, "--python", str(python)], environment)
    pip = [str(python), "-m", "pip"]
    output = run_or_skip([*pip, "install", "--no-index", f"{distributions.wheel}[gateway]"], environment)
    assert "Successfully installed foveate-0.1.0" in output
    run_or_skip([*pip, "check"], environment)

    check_commands(python.with_name("foveate"), tmp_path / "data")


def test_uvx_runs_a_replay_from_the_wheel(distributions: Distributions, tmp_path: Path) -> None:
    environment = distributions.environment(tmp_path)
    words = ["uvx", "--from", str(distributions.wheel), "foveate", "replay", "examples/session.jsonl"]
    assert "client_breakpoints: replace" in run_or_skip(words, environment)

    refused = subprocess.run(
        ["uvx", "--from", f"{distributions.wheel}[gateway]", "foveate", "service", "install", "--print"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert refused.returncode == 2
    assert "is temporary" in refused.stderr


PAGE = ROOT / "docs" / "get-started" / "install.md"
TESTED_HERE = "has its own test"
# The one place where lines are changed before they are run: pip downloads requirements, which takes minutes.
SUBSTITUTIONS = {
    "~/.venvs/foveate/bin/pip install ": "uv pip install --python ~/.venvs/foveate/bin/python ",
}
INSTALLER = re.compile(r"(?:^|(?<=`)|(?<=\$ ))[^\s`]*\b(?:uv tool|uv pip|uvx|pipx|pip) [^`\n]+", re.MULTILINE)


def install_lines(text: str) -> set[str]:
    """Return the lines, in blocks and in text, that install or remove the project."""
    lines = (line.partition("  #")[0].strip() for line in INSTALLER.findall(text))
    return {line for line in lines if "foveate" in line or "'.[" in line}


def test_every_install_line_of_the_pages_works(distributions: Distributions, tmp_path: Path) -> None:
    clone, environment = tmp_path / "clone", distributions.environment(tmp_path)
    environment["PIPX_BIN_DIR"] = str(tmp_path / "pipx")  # uv and pipx would want the same file
    with tarfile.open(distributions.sdist) as sdist:
        sdist.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        sdist.extractall(tmp_path)
    (tmp_path / "foveate-0.1.0").rename(clone)
    (clone / "examples").symlink_to(ROOT / "examples")
    blocks = [block.text for block in read_blocks(PAGE) if block.skip_reason == TESTED_HERE]
    programs = {
        "uv tool install": tmp_path / ".local/bin/foveate",
        "pipx install": tmp_path / "pipx/foveate",
        "bin/pip install": tmp_path / ".venvs/foveate/bin/foveate",
    }

    for block in blocks:
        script = block
        for written, run in SUBSTITUTIONS.items():
            script = script.replace(written, run)
        output = run_or_skip(["sh", "-ec", script], environment, folder=clone)
        assert "replay" not in script or "client_breakpoints: replace" in output
        for line, program in programs.items():
            if line in block:
                assert run_or_skip([str(program), "--version"], environment) == "foveate 0.1.0\n"
    assert [str(path) for path in programs.values() if path.exists()] == [str(programs["bin/pip install"])]


def test_no_page_names_another_install_line() -> None:
    tested = {
        line
        for block in read_blocks(PAGE)
        if block.skip_reason == TESTED_HERE
        for line in block.text.splitlines()
    }
    named = {line: path for path in PAGES for line in install_lines(path.read_text(encoding="utf-8"))}

    assert len(named) > 5
    assert {line: str(path) for line, path in named.items() if line not in tested} == {}


@pytest.mark.parametrize(
    "text",
    [
        "```bash\npip install foveate\n```",
        "run `uv tool install 'foveate[gateway]'` first",
        "    $ pipx install foveate     # a comment\n",
        "~/env/bin/pip install '.[all]'",
    ],
)
def test_install_lines_are_found_in_blocks_and_text(text: str) -> None:
    assert len(install_lines(text)) == 1
