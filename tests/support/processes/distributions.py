"""The wheel and the source distribution of the project, and environments made from them.

They are made once for all workers of a test session.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONSTRAINTS = ROOT / "requirements-run.lock"
_BUILD_SCRIPT = """
set -eu
root=$1 folder=$2 python=$3
. "$root/tools/setup.sh"
tell_uv_what_pip_knows
fetch_uv
"$uv" build --quiet --no-build-isolation --python "$python" --out-dir "$folder/dist" "$root"
ln -sf "$uv" "$folder/uv"
env | grep -E '^(UV_|SSL_CERT_FILE)' >"$folder/index" || :
"""
_UNREACHABLE = re.compile(r"Failed to fetch|error sending request|[Cc]onnection|dns error|timed out|offline")


@dataclass(frozen=True)
class Distributions:
    """The files that `uv build` makes, and the environment in which uv and pip install the tested versions."""

    folder: Path

    @property
    def wheel(self) -> Path:
        (path,) = (self.folder / "dist").glob("*.whl")
        return path

    @property
    def sdist(self) -> Path:
        (path,) = (self.folder / "dist").glob("*.tar.gz")
        return path

    @property
    def uv(self) -> Path:
        return (self.folder / "uv").resolve()

    def environment(self, home: Path) -> dict[str, str]:
        """Return variables for an installation below `home`: no keys, and the versions of the lock file."""
        inherited = ("PIP_", "UV_", "SSL_CERT", "HTTP", "http", "no_proxy", "NO_PROXY", "LANG", "TMPDIR")
        index = (self.folder / "index").read_text(encoding="utf-8").splitlines()
        return {
            **{name: value for name, value in os.environ.items() if name.startswith(inherited)},
            **dict(line.split("=", 1) for line in index),
            "HOME": str(home),
            "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv"),
            "UV_CONSTRAINT": str(CONSTRAINTS),
            "UV_PYTHON": sys.executable,
            "PIP_CONFIG_FILE": os.environ.get("PIP_CONFIG_FILE") or str(Path.home() / ".config/pip/pip.conf"),
            "PIP_COMPILE": "0",  # each command compiles what it loads
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip"),
            "PATH": f"{home / '.local' / 'bin'}:{self.uv.parent}:{Path(sys.executable).parent}:/usr/bin:/bin",
        }


def build_distributions(folder: Path) -> None:
    run_or_skip(["sh", "-c", _BUILD_SCRIPT, "sh", str(ROOT), str(folder), sys.executable], dict(os.environ))


def run_or_skip(words: list[str], environment: dict[str, str], *, folder: Path = ROOT) -> str:
    """Run a command that needs a package index, and return its output; skip the test if there is none.

    uv first tries its cache alone: to ask the index whether all packages are current takes minutes on some
    networks.
    """
    for offline in ("1", "0"):
        finished = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment | {"UV_OFFLINE": offline},
            timeout=300,
        )
        if not finished.returncode:
            return finished.stdout
    if _UNREACHABLE.search(finished.stderr):
        pytest.skip(f"no package index to install from: {finished.stderr.strip()[-300:]}")
    pytest.fail(f"{' '.join(words)}\n{finished.stdout}{finished.stderr}")
