"""Overrides of the configuration file: environment variables, and above them command-line flags."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.config.load import Configuration

if TYPE_CHECKING:
    from foveate.config.settings import Settings

STORE_VARIABLE = "FOVEATE_STORE"
"""Overrides `store.url`."""

LOCAL_UPSTREAM = "local"
"""The model name that requests the local model, and the name of its upstream."""
LOCAL_PROVIDER = "llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    base_url: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    """The flags of `foveate serve`. Those that are None or empty override nothing.

    `is_plain_http` is set by `foveate run`, whose agents cannot be made to trust a certificate.
    """

    host: str | None = None
    port: int | None = None
    workers: int | None = None
    certificate: str | None = None
    key: str | None = None
    cors_origins: tuple[str, ...] = ()
    local: LocalModel | None = None
    is_plain_http: bool = False


def apply_overrides(
    configuration: Configuration,
    environment: Mapping[str, str],
    flags: ServeFlags = ServeFlags(),  # noqa: B008 - frozen
) -> Configuration:
    settings = configuration.settings
    if store := environment.get(STORE_VARIABLE):
        settings = settings.model_copy(update={"store": settings.store.model_copy(update={"url": store})})
    settings = _apply_flags(settings, flags)
    if flags.local is None:
        return Configuration(settings, configuration.cost)
    return _add_local_model(Configuration(settings, configuration.cost), flags.local)


def _apply_flags(settings: "Settings", flags: ServeFlags) -> "Settings":
    from foveate.config.settings import TlsSettings

    updates: dict[str, object] = {
        name: value for name in ("host", "port", "workers") if (value := getattr(flags, name)) is not None
    }
    if flags.cors_origins:
        updates["cors_origins"] = list(flags.cors_origins)
    if flags.certificate is not None and flags.key is not None:
        updates["tls"] = TlsSettings(certificate=Path(flags.certificate), key=Path(flags.key))
    if flags.is_plain_http:
        updates["tls"] = None
    if not updates:
        return settings
    return settings.model_copy(update={"server": settings.server.model_copy(update=updates)})


def _add_local_model(configuration: Configuration, local: LocalModel) -> Configuration:
    from foveate.config.settings import RouteSettings, UpstreamSettings
    from foveate.cost.pricing.custom_prices import CustomPrice, DollarsPerMillion

    settings = configuration.settings
    upstream = UpstreamSettings(base_url=local.base_url, api="both", provider=LOCAL_PROVIDER)
    family = local.model.partition("-")[0].lower()
    routes = [
        RouteSettings(models=models, upstream=LOCAL_UPSTREAM, model=local.model)
        for models in dict.fromkeys((LOCAL_UPSTREAM, local.model, f"{family}*"))
    ]
    free = CustomPrice(
        model=local.model,
        provider=LOCAL_PROVIDER,
        dollars_per_million=DollarsPerMillion(uncached=Decimal(0), output=Decimal(0)),
    )
    return Configuration(
        settings.model_copy(
            update={
                "upstreams": {**settings.upstreams, LOCAL_UPSTREAM: upstream},
                "routes": [*settings.routes, *routes],
            }
        ),
        replace(configuration.cost, prices=(*configuration.cost.prices, free)),
    )
