"""The files that pages load beside their text: our own styles and scripts, and the Chart.js of chartkick."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_OWN = ("foveate.css", "live.js", "charts.js")
_CHARTS = ("chartkick", "django/static/chartkick/Chart.bundle.js")
_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file, its kind, and the same in less room."""

    name: str
    kind: str
    plain: bytes
    zipped: bytes

    @property
    def stamp(self) -> str:
        """What is another for another file."""
        return hashlib.sha256(self.plain).hexdigest()[:16]


@cache
def assets() -> Mapping[str, Asset]:
    """Every file by its name."""
    package, path = _CHARTS
    found = {name: resources.files(__package__).joinpath("files", name).read_bytes() for name in _OWN}
    found["chart.js"] = resources.files(package).joinpath(path).read_bytes()
    return {name: _asset(name, data) for name, data in found.items()}


@cache
def address(name: str) -> str:
    """Where a file is found, as long as it is this one: a browser may keep it for ever."""
    return f"/-/assets/{name}?{assets()[name].stamp}"


def _asset(name: str, data: bytes) -> Asset:
    return Asset(name, _KINDS[name.rpartition(".")[2]], data, gzip.compress(data, 6, mtime=0))
