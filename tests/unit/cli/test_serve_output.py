"""The start-up screen: the address of the gateway, how to use it, its features, and never a key."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from foveate.cli.serve import GatewayStatus, describe_gateway, started_screen
from foveate.cli.shared.console import Display
from foveate.config.cost_settings import CostOptions
from foveate.config.load import Configuration, LocalModel, parse_settings
from foveate.gateway.config import resolve_config

STATUS = GatewayStatus(
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


def render_screen(status: GatewayStatus, display: Display = Display()) -> str:  # noqa: B008 - it is frozen
    return "\n".join(started_screen(status, display))


def test_the_start_screen_shows_dashboard_exports_features_and_data() -> None:
    screen = render_screen(replace(STATUS, page="http://127.0.0.1:8090/"))

    assert screen.startswith(
        "Dashboard: http://127.0.0.1:8090/\nThe gateway is running. Press Ctrl-C to stop it.\n"
    )
    assert "  export ANTHROPIC_BASE_URL=http://127.0.0.1:8090\n" in screen
    assert "  export OPENAI_BASE_URL=http://127.0.0.1:8090/v1\n" in screen
    assert re.search("^on +prompt cache$", screen, re.MULTILINE)
    assert re.search("^off +compaction, caps$", screen, re.MULTILINE)
    assert re.search("^config +foveate.yaml$", screen, re.MULTILINE)
    assert re.search("^data +sqlite:////data/foveate.sqlite$", screen, re.MULTILINE)
    assert re.search("^metrics +http://127.0.0.1:8090/metrics$", screen, re.MULTILINE)
    assert "curl" not in screen


def test_the_screen_begins_with_the_dashboard_unless_it_is_off() -> None:
    for yaml, page in ((b"server: {port: 1}", "http://h:1/"), (b"server: {page: false}", None)):
        configuration = Configuration(parse_settings(yaml, "foveate.yaml"), CostOptions())
        status = describe_gateway("http://h:1", resolve_config(configuration, {}), config=None, local=None)

        assert status.page == page
        first_line = render_screen(status).partition("\n")[0]
        assert first_line == ("Gateway: http://h:1" if page is None else "Dashboard: http://h:1/")


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_text_is_wrapped_and_commands_are_not(columns: int) -> None:
    status = replace(
        STATUS, host="0.0.0.0", workers=4, local="SmolLM2", config="", keys=["anthropic", "openai"]
    )
    status = replace(
        status, paid=["openai"], unkeyed=["ben", "the other agent"], off=["compaction", "caps"] * 5
    )
    lines = started_screen(status, Display(columns=columns))

    commands = [line.strip() for line in lines if re.match(" +(export|curl|foveate) ", line)]
    assert [command.split()[0] for command in commands] == ["export"] * 2 + ["curl"] + ["foveate"] * 4
    assert commands[-1] == "foveate config key --agent 'the other agent'"
    for line in lines:
        if line.strip() not in commands:
            assert len(line) <= columns or len(line.split()) <= 2, line


def test_colours_are_used_only_if_the_display_has_them() -> None:
    assert "\x1b" not in render_screen(STATUS)
    coloured = render_screen(STATUS, Display(colours=True))
    assert "\x1b[1mhttp://127.0.0.1:8090\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == render_screen(STATUS)


def joined(screen: str) -> str:
    return " ".join(screen.split())


def test_keys_are_listed_by_owner() -> None:
    assert "clients send their own; the gateway has none" in render_screen(STATUS)
    screen = joined(render_screen(replace(STATUS, keys=["openai"])))
    assert "or a gateway key to use the gateway's (openai); to create one: foveate config key" in screen
    screen = joined(render_screen(replace(STATUS, keys=["anthropic", "openai"], agents=["ana", "ben"])))
    assert "or the gateway key of ana, ben to use the gateway's: anthropic, openai" in screen


def test_a_gateway_open_to_other_machines_is_reported() -> None:
    assert "network" not in render_screen(STATUS)
    assert re.search(
        r"^network +other machines can connect \(0\.0\.0\.0\)",
        render_screen(replace(STATUS, host="0.0.0.0")),
        re.MULTILINE,
    )


def test_paid_upstreams_and_unkeyed_agents_are_reported() -> None:
    """Defect: clients were said to bring their own keys where all of them spent that of `key_variable`."""
    paid = replace(STATUS, keys=["openai"], paid=["openai"], unkeyed=["ben"])

    assert "pays for openai, with its own key, whatever key a client sends" in joined(render_screen(paid))
    assert "warning" not in render_screen(paid)
    open_screen = joined(render_screen(replace(paid, host="0.0.0.0")))
    assert "pays for openai, with its own key, for clients that send a gateway key" in open_screen
    assert "warning any client that names the agent ben gets its notes and files in the prompt" in open_screen
    assert open_screen.endswith("foveate config key --agent ben")


def test_workers_and_the_local_model_are_shown() -> None:
    screen = render_screen(replace(STATUS, workers=4, local="SmolLM2", certificate="my cert.pem"))

    assert "The gateway is running with 4 workers. Press" in screen
    assert "curl -s --cacert 'my cert.pem' http://127.0.0.1:8090/v1/messages" in screen
    assert '"model": "local"' in screen


def test_the_status_has_the_effective_settings_and_never_a_key() -> None:
    yaml = (
        b"context_optimization: {compaction: {enabled: true}, prompt_cache: {enabled: false}}\n"
        b"server: {host: '::', tls: {certificate: a.pem, key: b.pem}}\n"
        b"store: {url: 'postgresql://ana:hush@db/x'}\n"
    )
    configuration = Configuration(parse_settings(yaml, "foveate.yaml"), CostOptions())
    config = resolve_config(configuration, {"OPENAI_API_KEY": "sk-hush", "GEMINI_API_KEY": ""})

    status = describe_gateway(
        "http://[::1]:8090", config, config=Path("x.yaml"), local=LocalModel(base_url="http://h", model="m")
    )

    assert status.url == "https://[::1]:8090"
    assert status.on == ["compaction", "token counter", "workspace cache", "TLS"]
    assert status.keys == ["openai"]
    assert status.local == "m"
    assert "hush" not in str(status)
    assert "postgresql://ana@db/x" in render_screen(status)


@pytest.mark.parametrize("url", ["postgresql://a:b@h/x", "postgresql://h/x?password=b&a=1"])
def test_the_password_of_a_store_is_never_shown(url: str) -> None:
    configuration = Configuration(parse_settings(f"store: {{url: '{url}'}}".encode(), "f.yaml"), CostOptions())

    status = describe_gateway("http://h", resolve_config(configuration, {}), config=None, local=None)

    assert not re.search(r"[:=]b\b", status.store)
