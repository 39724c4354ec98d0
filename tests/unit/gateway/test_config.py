"""Gateway options from a configuration: upstreams, routes, keys, and each agent's options."""

from pathlib import Path

import pytest

from foveate.compaction.overflow import OnOverflow
from foveate.config.live_settings import LiveSettings
from foveate.config.load import parse_settings
from foveate.config.settings import Settings
from foveate.engine.options import AgentOptions
from foveate.engine.options_from_settings import options_by_agent
from foveate.errors import BadOption, BadSetting
from foveate.gateway.app import GatewayOptions
from foveate.gateway.auth.callers import generate_key, hash_key
from foveate.gateway.auth.credentials import check_installed
from foveate.gateway.config import build_gateway_options
from foveate.gateway.endpoints import ApiFamily, match_endpoint
from foveate.model import Ttl


def resolve(text: str, **environment: str) -> GatewayOptions:
    return build_gateway_options(parse_settings(text.encode(), "f.yaml"), environment)


def test_without_a_configuration_known_upstreams_have_their_default_keys() -> None:
    upstreams = build_gateway_options(Settings(), {"ANTHROPIC_API_KEY": "sk-1"}).routing.upstreams

    assert (upstreams["anthropic"].key, upstreams["anthropic"].replaces_keys) == ("sk-1", False)
    assert upstreams["openai"].key is None
    assert "sk-1" not in repr(upstreams)


def test_an_upstream_with_both_apis_is_reached_through_both() -> None:
    config = (
        b"upstreams: {mine: {base_url: 'http://h:1', api: both}}\nroutes: [{models: 'q*', upstream: mine}]\n"
    )
    routing = build_gateway_options(parse_settings(config, "foveate.yaml"), {}).routing

    for path in ("/v1/messages", "/v1/chat/completions", "/v1/responses"):
        routed = routing.match(match_endpoint("POST", path, {}), "qwen3")
        assert routed.upstream.name == "mine"
        assert routed.upstream.url(path) == f"http://h:1{path}"


@pytest.mark.parametrize("fields", ["api: both", "api: anthropic", "api: anthropic, provider: mine"])
@pytest.mark.parametrize("base_url", ["http://h:1/x", "http://h:1/x/v1", "http://h:1/x/v1/"])
def test_an_anthropic_base_url_may_contain_the_version(base_url: str, fields: str) -> None:
    """Regression: with it, requests went to `/v1/v1/messages`, although all checks passed."""
    upstream = resolve(f"upstreams: {{mine: {{base_url: '{base_url}', {fields}}}}}").routing.upstreams["mine"]

    assert upstream.url("/v1/messages") == "http://h:1/x/v1/messages"


@pytest.mark.parametrize(
    ("base_url", "expected_url"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("http://h:1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/api/v3", "http://h:1/api/v3/chat/completions"),
        ("https://api.perplexity.ai", "https://api.perplexity.ai/chat/completions"),
    ],
)
def test_an_openai_style_base_url_may_lack_the_version(base_url: str, expected_url: str) -> None:
    """Regression: without it every call got 404."""
    upstream = resolve(f"upstreams: {{mine: {{base_url: '{base_url}', api: openai}}}}").routing.upstreams[
        "mine"
    ]

    assert upstream.url("/v1/chat/completions") == expected_url


@pytest.mark.parametrize("base_url", ["https://h.openai.azure.com", "https://h.openai.azure.com/openai/v1/"])
def test_an_upstream_named_azure_needs_only_its_address(base_url: str) -> None:
    config = f"upstreams: {{azure: {{base_url: '{base_url}', deployments: {{house: gpt-5.1}}}}}}"
    azure = resolve(config).routing.upstreams["azure"]

    assert azure.url("/openai/v1/responses") == "https://h.openai.azure.com/openai/v1/responses"
    assert (azure.family, azure.provider, azure.deployments) == (ApiFamily.AZURE, "azure", {"house": "gpt-5.1"})


@pytest.mark.parametrize(
    ("api", "base_url", "provider", "path"),
    [
        ("gemini", "http://h:1/v1beta", "google", "/v1beta/models/m:generateContent"),
        ("gemini", "http://h:1", "google", "/v1/models"),
        ("azure", "http://h:1/openai", "azure", "/openai/deployments/a/chat/completions"),
        ("bedrock", "http://h:1", "bedrock", "/model/m/converse"),
        ("vertex", "http://h:1/v1", "vertex", "/v1/projects/p/locations/l/publishers/google/models/m:predict"),
    ],
)
def test_an_api_of_a_single_provider_has_that_providers_prices(
    api: str, base_url: str, provider: str, path: str
) -> None:
    upstream = resolve(f"upstreams: {{mine: {{base_url: '{base_url}', api: {api}}}}}").routing.upstreams["mine"]

    assert (upstream.provider, upstream.url(path)) == (provider, f"http://h:1{path}")


@pytest.mark.parametrize(
    ("base_url", "environment", "region"),
    [
        ("https://bedrock-runtime.eu-west-1.amazonaws.com", {"AWS_REGION": "us-east-1"}, "eu-west-1"),
        ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", {}, "us-gov-west-1"),
        ("https://bedrock.example", {"AWS_DEFAULT_REGION": "us-east-1"}, "us-east-1"),
    ],
)
def test_the_gateway_signs_for_the_region_of_an_address_or_of_the_environment(
    base_url: str, environment: dict[str, str], region: str
) -> None:
    config = f"upstreams: {{bedrock: {{base_url: '{base_url}', sign: aws}}}}"
    bedrock = resolve(config, **environment).routing.upstreams["bedrock"]

    assert (bedrock.family, bedrock.aws_region, bedrock.replaces_keys) == (ApiFamily.BEDROCK, region, True)


def test_a_signature_needs_a_region_and_a_package() -> None:
    with pytest.raises(BadOption, match="set AWS_REGION"):
        resolve("upstreams: {bedrock: {base_url: 'https://bedrock.example', sign: aws}}")
    with pytest.raises(BadOption, match=r"pip install .*'foveate\[bedrock\]'"):
        check_installed(("upstreams",), "a_package_that_is_not_there")


def test_a_known_upstream_needs_only_settings_that_differ() -> None:
    options = resolve(
        """
        upstreams:
          vllm: {base_url: "http://10.0.0.7:8000/v1"}
          mine: {base_url: "https://llm.example/v1", api: openai, key_variable: MINE}
        routes:
          - {models: "qwen*", upstream: vllm}
          - {models: "fast", upstream: mine, model: "qwen-8b"}
        """,
        MINE="secret",
    )
    vllm, mine = options.routing.upstreams["vllm"], options.routing.upstreams["mine"]

    assert (vllm.base_url, vllm.accepts_both, vllm.provider) == ("http://10.0.0.7:8000", True, "vllm")
    assert (mine.key, mine.replaces_keys, mine.provider) == ("secret", True, "mine")
    routed = options.routing.match(match_endpoint("POST", "/v1/chat/completions", {}), "fast")
    assert (routed.upstream, routed.model) == (mine, "qwen-8b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("upstreams:\n  mine:\n    api: openai", "f.yaml:2: base_url is required"),
        ("upstreams:\n  mine:\n    base_url: http://a/v1", "f.yaml:2: api is required"),
        ("routes:\n- models: a\n  upstream: nobody", "f.yaml:3: there is no upstream 'nobody'"),
        ("upstreams:\n  openai:\n    key_variable: MINE", "f.yaml:3: MINE is not set in the environment"),
        ("server:\n  proxy: socks5://ana:secret@p:1", "f.yaml:2: proxies must speak HTTP"),
        ("server:\n  proxy: http://ana:sec/ret@p:1", "f.yaml:2: expected the URL of a proxy"),
    ],
)
def test_contradictory_settings_are_reported_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)

    with pytest.raises(BadSetting, match=message) as failure:
        LiveSettings(path, lambda result: build_gateway_options(result.settings, {}))

    assert "sec" not in str(failure.value)


@pytest.mark.parametrize(
    "address", ["http://a\\0b", "http://a b", "http://a:99999", "http://[::1", "http://a/ü"]
)
def test_an_invalid_address_is_reported_at_startup(tmp_path: Path, address: str) -> None:
    """Regression: only the first request failed; an address with a NUL caused an internal error."""
    path = tmp_path / "f.yaml"
    path.write_text(f'upstreams:\n  mine:\n    api: openai\n    base_url: "{address}"')

    with pytest.raises(BadSetting, match=r"f.yaml:4: .*base_url cannot be used"):
        LiveSettings(path, lambda result: build_gateway_options(result.settings, {}))


@pytest.mark.parametrize("key", ["sk-1\n", "sk\r\nx: y", " sk-1", "sk-ü", "sk-\x00"])
def test_a_key_that_is_not_a_valid_header_value_is_reported_at_startup(key: str) -> None:
    """Regression: only the first request failed, or the key was sent with a question mark in it."""
    with pytest.raises(BadOption, match="MINE cannot be sent in a header") as raised:
        resolve("upstreams: {openai: {key_variable: MINE}}", MINE=key)
    assert raised.value.path == ("upstreams", "openai", "key_variable")
    with pytest.raises(BadOption, match="OPENAI_API_KEY cannot be sent"):
        build_gateway_options(Settings(), {"OPENAI_API_KEY": key})


def test_a_key_names_its_agent_and_only_its_hash_is_in_the_file() -> None:
    key = generate_key()
    options = resolve(f"agents:\n- id: ana\n  keys: [{hash_key(key)}]\n- id: ben")

    assert options.keys.agent(key) == "ana"
    assert options.keys.agent(generate_key()) is None
    assert options.keys.agent("") is None


def test_an_agent_has_its_own_switches_and_shared_numbers() -> None:
    options = options_by_agent(
        parse_settings(
            b"""
            context_optimization:
              prompt_cache: {ttl: 1h}
              compaction: {tail_keep_tokens: 5000}
            agents:
              - id: ana
                context_optimization: {compaction: true, prompt_cache: false}
                on_overflow: pass
            """,
            "f.yaml",
        )
    )

    assert (options("ana").compaction, options("ana").prompt_cache) == (True, False)
    assert options("ana").on_overflow is OnOverflow.PASS
    assert (options("ben").compaction, options("ben").prompt_cache) == (False, True)
    for agent in ("ana", "ben"):
        assert options(agent).compaction_options.tail_keep_tokens == 5000
        assert options(agent).placement.ttl is Ttl.ONE_HOUR


def test_the_defaults_of_the_configuration_are_those_of_the_engine() -> None:
    assert options_by_agent(Settings())("anybody") == AgentOptions()


def test_two_agents_cannot_have_the_same_key() -> None:
    """Regression: the requests of the first agent counted as those of the second, under its caps."""
    key = hash_key(generate_key())
    agents = f"agents:\n  - {{id: ana, keys: ['{key}', '{key}']}}\n  - {{id: ben, keys: ['{key}']}}\n"

    with pytest.raises(BadOption, match="this is also a key of the agent 'ana'") as raised:
        resolve(agents)
    assert raised.value.path == ("agents", 1, "keys", 0)
