"""The engine's options for counting and keep-alive, from the configuration."""

from pathlib import Path

import pytest

from foveate.config.load import load_and_build, parse_settings
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.engine.options_from_settings import options_by_agent
from foveate.errors import BadSetting
from foveate.tokens import Backend, CounterOptions

COUNTER = b"context_optimization:\n  token_counter:\n    "


def load_options(data: bytes, agent: str = "ana") -> AgentOptions:
    return options_by_agent(parse_settings(data, "foveate.yaml"))(agent)


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        (b"enabled: true", CounterOptions()),
        (b"backend: tiktoken", CounterOptions(backend=Backend.OFFLINE)),
        (b"backend: estimate", CounterOptions(backend=Backend.ESTIMATE)),
        (
            b"{backend: anthropic_api, timeout_ms: 50}",
            CounterOptions(backend=Backend.ANTHROPIC_API, timeout_ms=50),
        ),
        (
            b"{backend: endpoint, use_endpoint: true}",
            CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True),
        ),
        (b"cache_capacity: 7", CounterOptions(cache_capacity=7)),
    ],
)
def test_each_counting_backend_is_chosen_by_name(yaml: bytes, expected: CounterOptions) -> None:
    config = b"context_optimization:\n  token_counter: " + yaml if yaml.startswith(b"{") else COUNTER + yaml

    assert load_options(config + b"\n").counter == expected


def test_counting_can_be_off_for_a_single_agent() -> None:
    config = b"agents: [{id: ana, context_optimization: {token_counter: false}}]\n"

    assert not load_options(config).token_counter
    assert load_options(config, "bob").token_counter


def test_an_endpoint_backend_that_is_not_allowed_is_an_error_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    config.write_bytes(COUNTER + b"backend: endpoint\n")

    with pytest.raises(BadSetting, match=r"foveate.yaml:3: .*use_endpoint: true"):
        load_and_build(config, lambda loaded: options_by_agent(loaded.settings))


def test_keep_alive_is_off_by_default() -> None:
    config = (
        b"context_optimization: {prompt_cache: {pings: {enabled: true, most_in_a_row: 2, most_sessions: 9}}}\n"
    )

    assert load_options(b"{}\n").keep_alive == KeepAliveOptions(enabled=False, max_in_a_row=3, max_sessions=64)
    assert load_options(config).keep_alive == KeepAliveOptions(enabled=True, max_in_a_row=2, max_sessions=9)


@pytest.mark.parametrize(
    ("for_all", "for_ana", "replaces"),
    [("keep", None, False), ("replace", None, True), ("replace", "keep", False), ("keep", "replace", True)],
)
def test_client_breakpoints_are_kept_or_replaced_for_all_or_one_agent(
    for_all: str, for_ana: str | None, replaces: bool
) -> None:
    agents = (
        f"agents: [{{id: ana, context_optimization: {{client_breakpoints: {for_ana}}}}}]\n" if for_ana else ""
    )
    config = f"context_optimization: {{prompt_cache: {{client_breakpoints: {for_all}}}}}\n{agents}"

    assert load_options(config.encode()).replace_breakpoints == replaces
    assert load_options(config.encode(), "bo").replace_breakpoints == (for_all == "replace")
