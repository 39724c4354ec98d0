"""The files that pages load beside their text: our own styles and scripts, and the Chart.js of chartkick."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_OWN_FILES = ("foveate.css", "live.js", "charts.js")
_CHART_LIBRARY = ("chartkick", "django/static/chartkick/Chart.bundle.js")
_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file, its kind, and the same in less room."""

    name: str
    media_type: str
    plain: bytes
    compressed: bytes

    @property
    def digest(self) -> str:
        """What is another for another file."""
        return hashlib.sha256(self.plain).hexdigest()[:16]


@cache
def load_assets() -> Mapping[str, Asset]:
    """Every file by its name."""
    package, path = _CHART_LIBRARY
    files = {name: resources.files(__package__).joinpath("files", name).read_bytes() for name in _OWN_FILES}
    files["chart.js"] = resources.files(package).joinpath(path).read_bytes()
    return {name: _build_asset(name, data) for name, data in files.items()}


@cache
def asset_url(name: str) -> str:
    """Where a file is found, as long as it is this one: a browser may keep it for ever."""
    return f"/-/assets/{name}?{load_assets()[name].digest}"


def _build_asset(name: str, data: bytes) -> Asset:
    return Asset(name, _MEDIA_TYPES[name.rpartition(".")[2]], data, gzip.compress(data, 6, mtime=0))
