"""Contracts of a running gateway: its own pages, error responses in both formats, and headers."""

import http.client
import json
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import forked_commands
from tests.support.servers.gateway_process import GatewayProcess, gateway_process, write_config
from tests.support.servers.sandbox import KEY

CLAUDE, GPT = "claude-opus-4-5", "gpt-4.1"
CHAT = "/v1/chat/completions"
NOWHERE = "http://127.0.0.1:9"
LIMIT_BYTES = 200_000
# Below the upstreams that go to the sandbox.
CONFIGURATION = f"""\
  nowhere: {{base_url: '{NOWHERE}', api: both}}
routes:
  - {{models: 'nowhere-*', upstream: nowhere}}
  - {{models: 'wrong-api', upstream: openai}}
server: {{log: json, body_limit_bytes: {LIMIT_BYTES}}}
agents:
  - {{id: narrow, window_tokens: 2000}}
  - {{id: keyed, keys: ['{"0" * 64}']}}
cost:
  caps:
    - {{scope: agent, agent: poor, dollars: 0.000001}}
"""


@dataclass
class GatewayContracts:
    """Observed contracts: JSON documents by source, codes of error responses, own headers."""

    documents: dict[str, list[object]] = field(default_factory=dict)
    error_codes: dict[str, str] = field(default_factory=dict)
    response_headers: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0


def observe_gateway(folder: Path, upstream_url: str) -> GatewayContracts:
    """Run a gateway, make it respond and reject, and stop it with Ctrl-C."""
    contracts = GatewayContracts()
    write_config(folder / "foveate.yaml", upstream_url, CONFIGURATION)
    with gateway_process(folder, OPENAI_API_KEY=KEY) as gateway:
        contracts.documents["foveate serve"] = [gateway.ready_object]
        for page in ("/health", "/ready"):
            contracts.documents[f"GET {page}"] = [json.loads(_send(gateway, page, method="GET").body)]
        responses = _collect_responses(gateway)
        contracts.documents["foveate status"] = [_run_status(gateway)]
        write_config(folder / "foveate.yaml", upstream_url, "nonsense: 1\n")
        contracts.documents["GET /health"].append(_health_with_wrong_configuration(gateway))
        gateway.process.send_signal(signal.SIGINT)
        contracts.exit_code, log = gateway.wait_for_exit()
    for path, response in responses:
        contracts.response_headers |= {
            name: "header" for name in response.headers if name.startswith("x-foveate-")
        }
        if response.status >= 400:
            contracts.documents.setdefault(f"error response of {path}", []).append(json.loads(response.body))
    contracts.error_codes = _list_error_codes([response for _, response in responses], log)
    return contracts


def _run_status(gateway: GatewayProcess) -> object:
    """Run `foveate status` until the charge and the trace of a session are stored."""
    deadline = time.monotonic() + 60
    while True:
        command = [*forked_commands.COMMAND, "status", "--url", gateway.url, "--json"]
        status = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        session = status["session"]
        if session is not None and None not in (session["tokens"], session["dollars"]):
            return status
        assert time.monotonic() < deadline, "the gateway never stored a session"


def _health_with_wrong_configuration(gateway: GatewayProcess) -> object:
    deadline = time.monotonic() + 60
    while (health := json.loads(_send(gateway, "/health", method="GET").body))["config"]["valid"]:
        assert time.monotonic() < deadline, "the gateway never saw that its configuration is wrong"
        time.sleep(0.05)
    return health


class Response:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()


def _send(
    gateway: GatewayProcess,
    path: str,
    *,
    method: str,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
        return Response(connection.getresponse())
    finally:
        connection.close()


def _collect_responses(gateway: GatewayProcess) -> list[tuple[str, Response]]:
    """Return a response, a token count by the gateway, and every error response that clients can cause."""
    responses: list[tuple[str, Response]] = []

    def send(path: str, model: str, text: str = "Hello!", more: str = "", **headers: str) -> None:
        request = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}]}
        body = json.dumps(request).removesuffix("}") + more + "}"
        own_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        all_headers = {"x-api-key": KEY, "authorization": f"Bearer {KEY}", **own_headers}
        responses.append((path, _send(gateway, path, method="POST", body=body, headers=all_headers)))

    for path, model in (("/v1/messages", CLAUDE), (CHAT, GPT)):
        send(path, model)
        send(path, model, x_api_key="fov-unknown")
        send(path, model, x_foveate_agent="poor")
        send(path, model, "Where does it all end? " * 2000, x_foveate_agent="narrow")
        send(path, model, "x" * LIMIT_BYTES)
        send(path, model, more=f', "model": "{model}"')
        send(path, model, host="elsewhere.example")
        send(path, model, origin="https://elsewhere.example")
        send(path, "nowhere-1")
    send("/v1/messages", "wrong-api")
    send(f"{CHAT}/input_tokens", GPT)
    return responses


def _list_error_codes(responses: list[Response], log: str) -> dict[str, str]:
    """Return the status of each code in the log, and whether clients are told to retry."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    codes = {line["id"]: line["refused"] for line in lines if line.get("refused")}
    statuses: dict[str, str] = {}
    for response in responses:
        code = codes.get(response.headers.get("x-foveate-request-id", ""))
        if code is not None:
            statuses[code] = (
                f"HTTP {response.status}, x-should-retry {response.headers.get('x-should-retry', 'not set')}"
            )
    return statuses
