"""A gateway over TLS: trust, CORS for listed origins, and access to its own pages."""

import http.client
import json
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
import trustme

from foveate.gateway.auth.callers import generate_key, hash_key
from foveate.sandbox.script import ScriptStep
from tests.support.servers.gateway_process import SERVE_COMMAND, gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox, step_headers

pytestmark = pytest.mark.process

GATEWAY_KEY, ADMIN_KEY = generate_key(), generate_key()
APP = "https://app.example"
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}
BODY = {"model": "claude-opus-4-5", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}


@dataclass(frozen=True)
class TlsGateway:
    """Address of a gateway, and the certificate authority that clients trust."""

    url: str
    trust: ssl.SSLContext

    def send_request(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers and body of a response."""
        request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPSConnection(urlsplit(self.url).netloc, context=self.trust, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), request_headers)
            response = connection.getresponse()
            return (
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_gateway(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGateway]:
    """A gateway that listens on all addresses, so that its pages need a key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "gateway.pem")
    certificate.private_key_pem.write_to_path(folder / "gateway.key")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = (
        "server:\n  host: 0.0.0.0\n  tls: {certificate: gateway.pem, key: gateway.key}\n"
        f"  cors_origins: ['{APP}']\n  admin_keys: ['{hash_key(ADMIN_KEY)}']\n"
        f"agents: [{{id: ana, keys: ['{hash_key(GATEWAY_KEY)}']}}]\n"
    )
    with running_sandbox() as sandbox:
        write_config(folder / "foveate.yaml", sandbox.url, settings)
        with gateway_process(folder) as gateway:
            assert gateway.url.startswith("https://127.0.0.1:")
            yield TlsGateway(gateway.url, context)


def test_official_clients_that_trust_the_certificate_get_responses(tls_gateway: TlsGateway) -> None:
    with anthropic.Anthropic(
        base_url=tls_gateway.url,
        api_key=KEY,
        http_client=anthropic.DefaultHttpxClient(verify=tls_gateway.trust),
    ) as anthropic_client:
        message = anthropic_client.messages.create(
            model="claude-opus-4-5", max_tokens=50, messages=[{"role": "user", "content": "Hello"}]
        )
    with openai.OpenAI(
        base_url=f"{tls_gateway.url}/v1",
        api_key=KEY,
        http_client=openai.DefaultHttpxClient(verify=tls_gateway.trust),
    ) as openai_client:
        chat = openai_client.chat.completions.create(
            model="gpt-4.1", messages=[{"role": "user", "content": "Hello"}]
        )

    assert message.usage.output_tokens
    assert chat.choices[0].message.content


def test_clients_that_do_not_trust_the_certificate_get_no_response(tls_gateway: TlsGateway) -> None:
    untrusting = TlsGateway(tls_gateway.url, ssl.create_default_context())

    with pytest.raises(ssl.SSLCertVerificationError):
        untrusting.send_request("GET", "/health")


def test_a_page_of_a_listed_origin_may_send_preflights_and_read_responses(tls_gateway: TlsGateway) -> None:
    status, headers, _ = tls_gateway.send_request(
        "OPTIONS",
        "/v1/messages",
        origin=APP,
        access_control_request_method="POST",
        access_control_request_headers="x-api-key,content-type",
    )
    assert status == 204
    assert headers["access-control-allow-origin"] == APP
    assert headers["access-control-allow-headers"] == "x-api-key,content-type"
    assert "POST" in headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in headers

    status, headers, body = tls_gateway.send_request(
        "POST", "/v1/messages", BODY, origin=APP, sec_fetch_site="cross-site", **HEADERS
    )
    assert status == 200
    assert json.loads(body)["type"] == "message"
    assert headers["access-control-allow-origin"] == APP
    assert headers["vary"] == "origin"

    stream_body = {**BODY, "stream": True}
    step = step_headers(ScriptStep(text="one two three", pace_seconds=0.01))
    status, headers, body = tls_gateway.send_request(
        "POST", "/v1/messages", stream_body, origin=APP, **HEADERS, **step
    )
    assert b"message_stop" in body
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["access-control-allow-origin"] == APP
    assert "x-foveate-request-id" in headers["access-control-expose-headers"]


def test_a_page_of_another_origin_is_rejected_before_anything_is_forwarded(tls_gateway: TlsGateway) -> None:
    origin = "https://evil.example"
    status, headers, _ = tls_gateway.send_request(
        "OPTIONS", "/v1/messages", origin=origin, access_control_request_method="POST"
    )
    assert status == 403
    assert not [name for name in headers if name.startswith("access-control")]

    status, headers, body = tls_gateway.send_request("POST", "/v1/messages", BODY, origin=origin, **HEADERS)
    assert status == 403
    assert b"--cors-origin" in body
    assert headers["x-foveate-request-id"]
    assert not [name for name in headers if name.startswith("access-control")]
    # Pages of the gateway's own origin may send requests.
    status, headers, _ = tls_gateway.send_request(
        "POST", "/v1/messages", BODY, origin=tls_gateway.url, **HEADERS
    )
    assert status == 200
    assert not [name for name in headers if name.startswith("access-control")]


def test_the_gateways_pages_need_a_key_beyond_loopback_but_health_does_not(tls_gateway: TlsGateway) -> None:
    assert tls_gateway.send_request("GET", "/health")[0] == 200
    assert tls_gateway.send_request("GET", "/ready")[0] == 200
    assert tls_gateway.send_request("GET", "/metrics")[0] == 401
    assert tls_gateway.send_request("GET", "/metrics", authorization=f"Bearer {generate_key()}")[0] == 401
    assert tls_gateway.send_request("GET", "/metrics", authorization=f"Bearer {GATEWAY_KEY}")[0] == 403
    status, _, body = tls_gateway.send_request("GET", "/metrics", authorization=f"Bearer {ADMIN_KEY}")
    assert status == 200
    assert b"llm_" in body or b"foveate" in body


def test_browser_requests_for_other_pages_are_never_forwarded_to_a_provider(tls_gateway: TlsGateway) -> None:
    """Regression: the icon and pages with a trailing slash went to the provider with the page's password."""
    agent_password = "Basic " + b64encode(f"x:{GATEWAY_KEY}".encode()).decode()

    assert tls_gateway.send_request("GET", "/favicon.ico", authorization=agent_password)[0] == 404
    assert tls_gateway.send_request("GET", "/metrics/")[0] == 401
    assert tls_gateway.send_request("GET", "//metrics/", authorization=agent_password)[0] == 403
    admin_password = "Basic " + b64encode(f"x:{ADMIN_KEY}".encode()).decode()
    assert tls_gateway.send_request("GET", "//metrics/", authorization=admin_password)[0] == 200


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("none.pem", "own.key", "the certificate none.pem cannot be read: No such file"),
        ("own.pem", "other.key", "cannot be used together: KEY_VALUES_MISMATCH"),
        ("own.pem", "locked.key", "the key is encrypted"),
        ("own.pem", None, "--tls-certificate and --tls-key must be given together"),
    ],
)
def test_an_unusable_certificate_is_reported_at_start(
    certificate: str, key: str | None, message: str, authority: trustme.CA, tmp_path: Path
) -> None:
    own, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    own.cert_chain_pems[0].write_to_path(tmp_path / "own.pem")
    own.private_key_pem.write_to_path(tmp_path / "own.key")
    other.private_key_pem.write_to_path(tmp_path / "other.key")
    if key == "locked.key":
        subprocess.run(
            ["openssl", "pkcs8", "-topk8", "-in", "own.key", "-out", key, "-passout", "pass:hush"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    options = ["--tls-certificate", certificate, *([] if key is None else ["--tls-key", key])]

    result = subprocess.run(
        [*SERVE_COMMAND, *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )

    assert result.returncode == 2
    assert message in result.stderr


def test_a_certificate_in_the_configuration_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "foveate.yaml").write_text("server:\n  tls:\n    certificate: none.pem\n    key: none.key\n")

    result = subprocess.run(
        SERVE_COMMAND, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
    )

    assert result.returncode == 2
    assert "foveate.yaml:3: the certificate none.pem" in result.stderr
