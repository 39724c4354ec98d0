"""What a service runs: the program, its configuration, folder and environment."""

from collections.abc import Iterator, Mapping
from contextlib import chdir, nullcontext
from dataclasses import dataclass
from pathlib import Path

from foveate.config.dotenv import ENV_FILE_NAME, load_env_file
from foveate.config.load import STORE_VARIABLE, load_settings
from foveate.config.settings import ServerSettings, Settings
from foveate.errors import BadOption
from foveate.paths import data_folder

_STOP_RESERVE_SECONDS = 30
# A service does not inherit these from the terminal, and `.env` cannot set them.
_NETWORK_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
_INHERITED_VARIABLES = ("HOME", "LANG", "PATH", "USER")
# Marks folders whose content can be deleted at any time: https://bford.info/cachedir/ (November 2026)
_CACHE_TAG = "CACHEDIR.TAG"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """The command of a service, and what it sees.

    `folder` is the working folder: the gateway reads `.env` there, and relative paths in the configuration
    start there. `variables` never contain secrets, because they are written into a file.
    """

    program: tuple[str, ...]
    config: Path | None
    settings: Settings
    folder: Path
    data: Path
    variables: Mapping[str, str]

    @property
    def command(self) -> tuple[str, ...]:
        options = () if self.config is None else ("--config", str(self.config))
        return (*self.program, "serve", *options)

    @property
    def env_file(self) -> Path:
        return self.folder / ENV_FILE_NAME

    @property
    def stop_seconds(self) -> int:
        """Time for running requests to finish when the gateway stops."""
        return int(self.settings.server.grace_seconds) + _STOP_RESERVE_SECONDS


def plan_service(
    config: Path | None, environ: Mapping[str, str], platform: str, *, executable: Path
) -> ServicePlan:
    """Plan a service that runs the gateway of a Python environment with a configuration file, or without.

    Raises:
        BadOption: the Python environment is temporary, or a path contains control characters.
        InputError: the configuration is invalid.
    """
    data = data_folder(environ, platform).absolute()
    config = None if config is None else config.absolute()
    plan = ServicePlan(
        program=_find_program(executable),
        config=config,
        settings=Settings() if config is None else load_settings(config),
        folder=data if config is None else config.parent,
        data=data,
        variables={"FOVEATE_HOME": str(data), **_network_variables(environ)},
    )
    for text in (*plan.command, str(plan.folder), *plan.variables.values()):
        if not text.isprintable():
            raise BadOption(f"a service cannot use {text!r}: rename it without control characters")
    return plan


def _find_program(executable: Path) -> tuple[str, ...]:
    if any((folder / _CACHE_TAG).exists() for folder in executable.parents[2:]):
        raise BadOption(
            f"{executable.parents[1]} is temporary, as made by uvx and `pipx run`, and cannot run a service: "
            "install Foveate with `uv tool install` or `pipx install` first, and use the installed command"
        )
    script = executable.with_name("foveate")
    return (str(script),) if script.is_file() else (str(executable), "-P", "-m", "foveate")


def _network_variables(environ: Mapping[str, str]) -> dict[str, str]:
    names = (name for upper in _NETWORK_VARIABLES for name in (upper, upper.lower()))
    return {name: environ[name] for name in names if environ.get(name) and "@" not in environ[name]}


def check_plan(plan: ServicePlan, environ: Mapping[str, str]) -> None:
    """Check that the gateway can start with what the service sees.

    Raises:
        FoveateError: it cannot.
    """
    from foveate.gateway.server.serve import load_live_config

    # The data folder may not exist yet.
    with chdir(plan.folder) if plan.folder.is_dir() else nullcontext():
        load_live_config(plan.config, _service_environment(plan, environ), logs_changes=False)


def _service_environment(plan: ServicePlan, environ: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: environ[name] for name in _INHERITED_VARIABLES if name in environ}
    return load_env_file(inherited | dict(plan.variables), plan.env_file)


def list_warnings(plan: ServicePlan, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about keys and passwords: those of the terminal that the service will not see.

    Raises:
        InputError: `.env` is invalid.
    """
    from foveate.gateway.config import DEFAULT_KEY_VARIABLES

    seen = _service_environment(plan, environ)
    own_keys = (upstream.key_variable for upstream in plan.settings.upstreams.values())
    wanted = dict.fromkeys((*DEFAULT_KEY_VARIABLES.values(), *filter(None, own_keys), STORE_VARIABLE))
    if lost := [name for name in wanted if environ.get(name) and not seen.get(name)]:
        yield (
            f"{', '.join(lost)}: set in this terminal, but the service does not see it; if the gateway needs "
            f"it, write it into {plan.env_file} (chmod 600) and install the service again"
        )
    network = (name for upper in _NETWORK_VARIABLES for name in (upper, upper.lower()))
    if private := [name for name in network if "@" in environ.get(name, "")]:
        yield (
            f"{', '.join(private)}: contains a password, so it is not written into the service; "
            "set server.proxy in the configuration instead"
        )
    if plan.env_file.is_file() and plan.env_file.stat().st_mode & 0o077:
        yield f"other users can read {plan.env_file}: run chmod 600 {plan.env_file}"


def local_url(server: ServerSettings) -> str | None:
    """Return the URL of a gateway on this machine; None if it picks any free port."""
    if not server.port:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    scheme = "http" if server.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{server.port}"
