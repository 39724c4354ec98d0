"""A gateway whose only way to providers is a proxy (proxy.py), with certificates of a company's authority."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme

from tests.support.processes.forked_commands import COMMAND, required_variables
from tests.support.servers.gateway_process import GatewayProcess, gateway_process, write_config
from tests.support.servers.http_proxy import HOST, HttpProxy, running_http_proxy
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

pytestmark = pytest.mark.process

CREDENTIALS = "ana:secret"
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
BODY = {"model": "claude-opus-4-5", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}
DEAD_PROXY = "http://127.0.0.1:1"
NO_PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "no_proxy"), "")


@dataclass(frozen=True)
class Network:
    """A provider with a certificate of `authority`. Only `proxy` knows the host of `url`.

    `direct_url` also works without a proxy. Its host is not loopback, which is never reached through one.
    """

    proxy: HttpProxy
    sandbox: RunningSandbox
    url: str
    direct_url: str
    authority: Path

    def environment(self, **variables: str) -> dict[str, str]:
        # Lower case takes precedence, so that the variables of this machine have no effect.
        return {**NO_PROXIES, "SSL_CERT_FILE": str(self.authority), **variables}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    folder, authority = tmp_path_factory.mktemp("network"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert(HOST, "0.0.0.0").private_key_and_cert_chain_pem.write_to_path(folder / "provider.pem")
    with (
        running_http_proxy(folder / "proxy", credentials=CREDENTIALS) as proxy,
        running_sandbox(certificate=folder / "provider.pem") as sandbox,
    ):
        port = sandbox.url.rpartition(":")[2]
        yield Network(
            proxy, sandbox, f"https://{HOST}:{port}", f"https://0.0.0.0:{port}", folder / "authority.pem"
        )


def send_message(gateway: GatewayProcess) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/messages", json=BODY, headers=HEADERS, timeout=60, trust_env=False)


@pytest.mark.parametrize("name", ["https_proxy", "all_proxy"])
def test_requests_use_the_proxy_of_the_environment(network: Network, tmp_path: Path, name: str) -> None:
    write_config(tmp_path / "foveate.yaml", network.url)
    environment = network.environment(**{name: network.proxy.with_credentials(CREDENTIALS)})
    before = len(network.sandbox.requests)
    with gateway_process(tmp_path, forked=True, **environment) as gateway:
        assert [send_message(gateway).status_code for _ in range(2)] == [200, 200]
    assert len(network.sandbox.requests) == before + 2


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({"https_proxy": DEAD_PROXY}, 502),
        ({"https_proxy": DEAD_PROXY, "no_proxy": "other.test, 0.0.0.0/8"}, 200),
        ({"http_proxy": DEAD_PROXY}, 200),
    ],
)
def test_upstreams_are_reached_directly_as_the_environment_says(
    network: Network, tmp_path: Path, variables: dict[str, str], status: int
) -> None:
    write_config(tmp_path / "foveate.yaml", network.direct_url)
    with gateway_process(tmp_path, forked=True, **network.environment(**variables)) as gateway:
        assert send_message(gateway).status_code == status


def test_requests_use_the_configured_proxy(network: Network, tmp_path: Path) -> None:
    proxy_url = network.proxy.with_credentials(CREDENTIALS)
    write_config(tmp_path / "foveate.yaml", network.url, f"server: {{proxy: '{proxy_url}'}}\n")
    with gateway_process(tmp_path, forked=True, **network.environment(https_proxy=DEAD_PROXY)) as gateway:
        assert send_message(gateway).status_code == 200
        shown = subprocess.run(
            [*COMMAND, "config", "show", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        assert "127.0.0.1" in shown
        assert "secret" not in shown
        gateway.process.terminate()
        _, log = gateway.wait_for_exit()
    assert "secret" not in log

    write_config(tmp_path / "foveate.yaml", network.direct_url, "server: {proxy: ''}\n")
    with gateway_process(tmp_path, forked=True, **network.environment(https_proxy=DEAD_PROXY)) as gateway:
        assert send_message(gateway).status_code == 200


@pytest.mark.parametrize(
    ("userinfo", "problem"),
    [("", "requires credentials (407)"), ("ana:wrong@", "rejects the credentials (407)")],
)
def test_clients_and_the_log_learn_why_a_proxy_rejects_requests(
    network: Network, tmp_path: Path, userinfo: str, problem: str
) -> None:
    write_config(tmp_path / "foveate.yaml", network.url, "server: {log: json}\n")
    proxy_url = network.proxy.url.replace("://", f"://{userinfo}")
    with gateway_process(tmp_path, forked=True, **network.environment(https_proxy=proxy_url)) as gateway:
        response = send_message(gateway)
        gateway.process.terminate()
        _, log = gateway.wait_for_exit()

    assert response.status_code == 502
    for text in (response.text, log):
        assert problem in text
        assert network.proxy.url in text
        assert "ana" not in text
        assert "wrong" not in text


def test_only_the_authorities_of_the_environment_are_trusted(network: Network, tmp_path: Path) -> None:
    write_config(tmp_path / "foveate.yaml", network.url)
    other_authority = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other_authority)
    variables = {
        "https_proxy": network.proxy.with_credentials(CREDENTIALS),
        "SSL_CERT_FILE": str(other_authority),
        "SSL_CERT_DIR": str(tmp_path / "none"),
    }
    with gateway_process(tmp_path, forked=True, **network.environment(**variables)) as gateway:
        response = send_message(gateway)
        assert response.status_code == 502
        assert "the certificate is not trusted" in response.text

    folder = tmp_path / "authorities"
    folder.mkdir()
    (folder / "company.pem").write_bytes(network.authority.read_bytes())
    subprocess.run(["openssl", "rehash", folder], check=True)
    variables["SSL_CERT_DIR"] = str(folder)
    with gateway_process(tmp_path, forked=True, **network.environment(**variables)) as gateway:
        assert send_message(gateway).status_code == 200


def test_the_counting_endpoint_is_reached_through_the_proxy(network: Network, tmp_path: Path) -> None:
    settings = "context_optimization: {token_counter: {backend: anthropic_api, timeout_ms: 20000}}\n"
    write_config(tmp_path / "foveate.yaml", network.url, settings)
    environment = network.environment(https_proxy=network.proxy.with_credentials(CREDENTIALS))
    with gateway_process(tmp_path, forked=True, **environment) as gateway:
        assert send_message(gateway).status_code == 200

    assert any(request.path.endswith("/count_tokens") for request in network.sandbox.requests)


def test_doctor_names_the_proxy_without_its_password(network: Network, tmp_path: Path) -> None:
    write_config(tmp_path / "foveate.yaml", network.url)

    def check(userinfo: str) -> str:
        environment = network.environment(https_proxy=network.proxy.url.replace("://", f"://{userinfo}"))
        process = subprocess.run(
            [*COMMAND, "doctor", "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={"FOVEATE_HOME": str(tmp_path), **required_variables(), **environment},
        )
        findings = [
            finding for finding in json.loads(process.stdout)["findings"] if finding["check"] == "upstream"
        ]
        return json.dumps(findings)

    reached, rejected = check("ana:secret@"), check("ana:wrong@")

    assert f"through the proxy {network.proxy.url}" in reached
    assert "rejects the credentials (407)" in rejected
    assert "server.proxy" in rejected
    assert "secret" not in reached
    assert "wrong" not in rejected
