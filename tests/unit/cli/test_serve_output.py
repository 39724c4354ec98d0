"""The start-up screen: where the gateway is, how to point a client at it, what is on, and no key."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from foveate.cli.console import Display
from foveate.cli.serve_output import GatewayStatus, describe_gateway, started_screen
from foveate.config.cost import CostOptions
from foveate.config.load import Configuration, parse_settings
from foveate.config.overrides import LocalModel
from foveate.gateway.config import resolve_config

SHOWN = GatewayStatus(
    url="http://127.0.0.1:8090",
    host="127.0.0.1",
    workers=1,
    store="sqlite:////data/foveate.sqlite",
    config="foveate.yaml",
    on=["prompt cache"],
    off=["compaction", "caps"],
    keys=[],
    agents=[],
    local=None,
    certificate=None,
    metrics="http://127.0.0.1:8090/metrics",
    health="http://127.0.0.1:8090/health",
)


def text(shown: GatewayStatus, look: Display = Display()) -> str:  # noqa: B008 - it is frozen
    return "\n".join(started_screen(shown, look))


def test_the_start_screen_shows_url_exports_features_and_data() -> None:
    screen = text(SHOWN)

    assert "Foveate is at http://127.0.0.1:8090. Ctrl-C ends it." in screen
    assert "  export ANTHROPIC_BASE_URL=http://127.0.0.1:8090\n" in screen
    assert "  export OPENAI_BASE_URL=http://127.0.0.1:8090/v1\n" in screen
    assert re.search("^on +prompt cache$", screen, re.MULTILINE)
    assert re.search("^off +compaction, caps$", screen, re.MULTILINE)
    assert re.search("^config +foveate.yaml$", screen, re.MULTILINE)
    assert re.search("^data +sqlite:////data/foveate.sqlite$", screen, re.MULTILINE)
    assert re.search("^metrics +http://127.0.0.1:8090/metrics$", screen, re.MULTILINE)
    assert "curl" not in screen


def test_the_page_is_shown_unless_it_is_off() -> None:
    for message, page in ((b"server: {port: 1}", "http://h:1/"), (b"server: {page: false}", None)):
        found = Configuration(parse_settings(message, "foveate.yaml"), CostOptions())
        result = describe_gateway("http://h:1", resolve_config(found, {}), config=None, local=None)

        assert result.page == page
        assert bool(re.search("^page +http://h:1/$", text(result), re.MULTILINE)) == (page is not None)


def test_colours_are_used_only_if_the_display_has_them() -> None:
    assert "\x1b" not in text(SHOWN)
    coloured = text(SHOWN, Display(colours=True))
    assert "\x1b[1mhttp://127.0.0.1:8090\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == text(SHOWN)


def test_keys_are_listed_by_owner() -> None:
    assert "clients bring their own; none is in this environment" in text(SHOWN)
    assert "a gateway key (`foveate config key` makes one) for openai" in text(replace(SHOWN, keys=["openai"]))
    output = text(replace(SHOWN, keys=["anthropic", "openai"], agents=["ana", "ben"]))
    assert "a gateway key of ana, ben for anthropic, openai" in output


def test_a_gateway_open_to_other_machines_is_reported() -> None:
    assert "open to" not in text(SHOWN)
    assert re.search(
        r"^open to +other machines \(0\.0\.0\.0\)", text(replace(SHOWN, host="0.0.0.0")), re.MULTILINE
    )


def test_paid_upstreams_and_unkeyed_agents_are_reported() -> None:
    """Defect: clients were said to bring their own keys where all of them spent that of `key_variable`."""
    paid = replace(SHOWN, keys=["openai"], paid=["openai"], unkeyed=["ben"])

    assert re.search("^paid here +openai, whatever key clients bring$", text(paid), re.MULTILINE)
    assert "careful" not in text(paid)
    opened = text(replace(paid, host="0.0.0.0"))
    assert re.search("^paid here +openai, for those who show a gateway key$", opened, re.MULTILINE)
    assert re.search("^careful +whoever names the agent ben has its notes", opened, re.MULTILINE)


def test_workers_and_the_local_model_are_shown() -> None:
    screen = text(replace(SHOWN, workers=4, local="SmolLM2", certificate="my cert.pem"))

    assert ", 4 workers. Ctrl-C ends it." in screen
    assert "curl -s --cacert 'my cert.pem' http://127.0.0.1:8090/v1/messages" in screen
    assert '"model": "local"' in screen


def test_the_status_has_the_effective_settings_and_never_a_key() -> None:
    message = (
        b"context_optimization: {compaction: {enabled: true}, prompt_cache: {enabled: false}}\n"
        b"server: {host: '::', tls: {certificate: a.pem, key: b.pem}}\n"
        b"store: {url: 'postgresql://ana:hush@db/x'}\n"
    )
    found = Configuration(parse_settings(message, "foveate.yaml"), CostOptions())
    now = resolve_config(found, {"OPENAI_API_KEY": "sk-hush", "GEMINI_API_KEY": ""})

    result = describe_gateway(
        "http://[::1]:8090", now, config=Path("x.yaml"), local=LocalModel(base_url="http://h", model="m")
    )

    assert result.url == "https://[::1]:8090"
    assert result.on == ["compaction", "token counter", "workspace cache", "TLS"]
    assert result.keys == ["openai"]
    assert result.local == "m"
    assert "hush" not in str(result)
    assert "postgresql://ana@db/x" in text(result)


@pytest.mark.parametrize("url", ["postgresql://a:b@h/x", "postgresql://h/x?password=b&a=1"])
def test_the_password_of_a_store_is_never_shown(url: str) -> None:
    found = Configuration(parse_settings(f"store: {{url: '{url}'}}".encode(), "f.yaml"), CostOptions())

    result = describe_gateway("http://h", resolve_config(found, {}), config=None, local=None)

    assert not re.search(r"[:=]b\b", result.store)
