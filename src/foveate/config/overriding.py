"""What goes over the configuration's file: the environment, and over both what a command is told."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.config.loading import Configuration

if TYPE_CHECKING:
    from foveate.config.settings import Settings

FILE_NAME = "foveate.yaml"

STORE_VARIABLE = "FOVEATE_STORE"
"""Over `store.url`."""

LOCAL = "local"
"""How the model on this machine is asked for, and what its upstream is called."""
LOCAL_PROVIDER = "llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model on this machine: where its server is, and the name that it has there."""

    base_url: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What `foveate serve` was told. What is None or empty is left to the environment and the file."""

    host: str | None = None
    port: int | None = None
    workers: int | None = None
    certificate: str | None = None
    key: str | None = None
    cors_origins: tuple[str, ...] = ()
    local: LocalModel | None = None


def usual_file(folder: Path, home: Path) -> Path | None:
    """The file that holds where none is named: in the working folder, else among Foveate's data."""
    return next((place for place in usual_places(folder, home) if place.is_file()), None)


def usual_places(folder: Path, home: Path) -> tuple[Path, ...]:
    """Where that file may be, the first one before the others."""
    return folder / FILE_NAME, home / FILE_NAME


def overridden(
    found: Configuration,
    environment: Mapping[str, str],
    flags: Flags = Flags(),  # noqa: B008 - it is frozen
) -> Configuration:
    """The configuration as it holds in the end."""
    settings = found.settings
    if store := environment.get(STORE_VARIABLE):
        settings = settings.model_copy(update={"store": settings.store.model_copy(update={"url": store})})
    settings = _told(settings, flags)
    if flags.local is None:
        return Configuration(settings, found.cost)
    return _with_local(Configuration(settings, found.cost), flags.local)


def _told(settings: "Settings", flags: Flags) -> "Settings":
    from foveate.config.settings import Tls

    told: dict[str, object] = {
        name: said for name in ("host", "port", "workers") if (said := getattr(flags, name)) is not None
    }
    if flags.cors_origins:
        told["cors_origins"] = list(flags.cors_origins)
    if flags.certificate is not None and flags.key is not None:
        told["tls"] = Tls(certificate=Path(flags.certificate), key=Path(flags.key))
    if not told:
        return settings
    return settings.model_copy(update={"server": settings.server.model_copy(update=told)})


def _with_local(found: Configuration, local: LocalModel) -> Configuration:
    """With the model on this machine as one more upstream, which costs nothing."""
    from foveate.config.settings import RouteTo, UpstreamServer
    from foveate.cost.own_prices import OwnPrice, PerMillion

    settings = found.settings
    upstream = UpstreamServer(base_url=local.base_url, api="both", provider=LOCAL_PROVIDER)
    family = local.model.partition("-")[0].lower()
    routes = [
        RouteTo(models=models, upstream=LOCAL, model=local.model)
        for models in dict.fromkeys((LOCAL, local.model, f"{family}*"))
    ]
    free = OwnPrice(
        model=local.model,
        provider=LOCAL_PROVIDER,
        dollars_per_million=PerMillion(uncached=Decimal(0), output=Decimal(0)),
    )
    return Configuration(
        settings.model_copy(
            update={
                "upstreams": {**settings.upstreams, LOCAL: upstream},
                "routes": [*settings.routes, *routes],
            }
        ),
        replace(found.cost, prices=(*found.cost.prices, free)),
    )
