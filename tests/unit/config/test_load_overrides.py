"""Overrides of the file: the environment, and above it flags."""

from decimal import Decimal
from pathlib import Path

from foveate.config.cost_settings import CostOptions
from foveate.config.load import Configuration, LocalModel, ServeFlags, apply_overrides, parse_settings
from foveate.cost.pricing.price_book import PriceBook

FILE = b"""
server: {host: 0.0.0.0, port: 1, workers: 3, cors_origins: ['https://a.example']}
store: {url: 'sqlite:///file.sqlite'}
routes: [{models: 'local', upstream: openai}]
"""


def make_configuration() -> Configuration:
    return Configuration(parse_settings(FILE, "foveate.yaml"), CostOptions())


def test_without_overrides_the_file_applies() -> None:
    assert apply_overrides(make_configuration(), {"FOVEATE_STORE": ""}) == make_configuration()


def test_the_environment_overrides_the_file() -> None:
    settings = apply_overrides(make_configuration(), {"FOVEATE_STORE": "postgresql://db/foveate"}).settings

    assert settings.store.url == "postgresql://db/foveate"
    assert settings.store.keep_days == 30


def test_flags_override_environment_and_file() -> None:
    flags = ServeFlags(
        host="::1", port=0, workers=1, certificate="a.pem", key="b.pem", cors_origins=("https://b.example",)
    )

    server = apply_overrides(make_configuration(), {}, flags).settings.server

    assert (server.host, server.port, server.workers) == ("::1", 0, 1)
    assert server.tls is not None
    assert server.tls.certificate == Path("a.pem")
    assert server.cors_origins == ["https://b.example"]


def test_a_local_model_is_added_as_a_free_upstream() -> None:
    local = LocalModel(base_url="http://127.0.0.1:1", model="SmolLM2-135M-Instruct")

    overridden = apply_overrides(make_configuration(), {}, ServeFlags(local=local))

    upstream = overridden.settings.upstreams["local"]
    assert (upstream.base_url, upstream.api, upstream.provider) == ("http://127.0.0.1:1", "both", "llama.cpp")
    assert [route.models for route in overridden.settings.routes] == [
        "local",  # the user's own route stays first
        "local",
        "SmolLM2-135M-Instruct",
        "smollm2*",
    ]
    assert [price.model for price in overridden.cost.prices] == ["SmolLM2-135M-Instruct"]
    PriceBook(overridden.cost.prices)
    assert all(
        price.dollars_per_million.output == Decimal(0)
        for price in overridden.cost.prices
        if price.dollars_per_million
    )
