"""Optional parts of an installation: the modules that each extra of `pyproject.toml` adds."""

import sys
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from foveate.errors import MissingExtra

SEARCH_MODULES = ("numpy", "Stemmer", "safetensors", "tokenizers", "wordllama")
GATEWAY_MODULES = (
    "alembic",
    "brotli",
    "jinja2",
    "prometheus_client",
    "prompt_toolkit",
    "psycopg",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "uvloop",
    "watchfiles",
    "zstandard",
)
_EXTRA_OF_MODULE = dict.fromkeys(SEARCH_MODULES, "search") | dict.fromkeys(GATEWAY_MODULES, "gateway")


def install_command(prefix: str = sys.prefix, *, has_pip: bool | None = None) -> str:
    """Return the start of a command that adds packages to this Python environment: `pip install`, or its like.

    Environments of uv have no pip, and that of another environment would install packages there.
    """
    if (Path(prefix) / "pipx_metadata.json").exists():
        return "pipx runpip foveate install"
    if has_pip if has_pip is not None else find_spec("pip") is not None:
        return "pip install"
    return f"uv pip install --python {quote(prefix)}"


def check_search() -> None:
    """Check that notes can be searched.

    Raises:
        MissingExtra: a package for it is not installed.
    """
    _check_modules("search", SEARCH_MODULES)


def check_gateway() -> None:
    """Check that a gateway can be started.

    Raises:
        MissingExtra: a package for it is not installed.
    """
    _check_modules("gateway", GATEWAY_MODULES)


def _check_modules(extra: str, modules: tuple[str, ...]) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(extra, module, install_command())


def to_missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the error that names the extra with the missing module; None if no extra has it."""
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF_MODULE.get(module)
    return None if extra is None else MissingExtra(extra, module, install_command())
