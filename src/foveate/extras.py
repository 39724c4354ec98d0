"""Optional parts of an installation: the modules that each extra of `pyproject.toml` adds."""

from importlib.util import find_spec

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


def check_search() -> None:
    """Check that notes can be searched.

    Raises:
        MissingExtra: a package for it is not installed.
    """
    for module in SEARCH_MODULES:
        if find_spec(module) is None:
            raise MissingExtra("search", module)


def to_missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the error that names the extra with the missing module; None if no extra has it."""
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF_MODULE.get(module)
    return None if extra is None else MissingExtra(extra, module)
