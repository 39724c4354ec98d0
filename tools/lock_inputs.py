"""Print a digest of everything that the lock files are made from, for their headers.

A lock with another digest in its header was made from other requirements. Its pins alone would not show a
removed requirement.
"""

import hashlib
import json
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def digest(pyproject: str) -> str:
    """Return the digest of the requirements in a `pyproject.toml`, independent of their order."""
    content = tomllib.loads(pyproject)
    inputs = {
        "python": content["project"]["requires-python"],
        "runtime": sorted(content["project"]["dependencies"]),
        "extras": {name: sorted(extra) for name, extra in content["project"]["optional-dependencies"].items()},
        "groups": {name: sorted(group) for name, group in content["dependency-groups"].items()},
        "overrides": sorted(content["tool"]["uv"]["override-dependencies"]),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    print(digest(PYPROJECT.read_text(encoding="utf-8")))
