"""Contracts of a running gateway: its own pages, error responses in both formats, and headers."""

import http.client
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
  - {{models: 'spoken-otherwise', upstream: openai}}
server: {{log: json, body_limit_bytes: {LIMIT_BYTES}}}
agents:
  - {{id: narrow, window_tokens: 2000}}
  - {{id: keyed, keys: ['{"0" * 64}']}}
cost:
  caps:
    - {{scope: agent, agent: poor, dollars: 0.000001}}
"""


@dataclass
class Gateway:
    """Observed contracts: JSON documents by source, codes of error responses, own headers."""

    documents: dict[str, list[object]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    response_headers: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0


def running_gateway(folder: Path, upstream_url: str) -> Gateway:
    """Run a gateway, make it respond and reject, and stop it with Ctrl-C."""
    seen = Gateway()
    write_config(folder / "foveate.yaml", upstream_url, CONFIGURATION)
    with gateway_process(folder, OPENAI_API_KEY=KEY) as served:
        seen.documents["foveate serve"] = [served.ready_object]
        for page in ("/health", "/ready"):
            seen.documents[f"GET {page}"] = [json.loads(_ask(served, page, method="GET").body)]
        answers = _answers(served)
        write_config(folder / "foveate.yaml", upstream_url, "nonsense: 1\n")
        seen.documents["GET /health"].append(_health_with_wrong_configuration(served))
        served.process.send_signal(signal.SIGINT)
        seen.exit_code, log = served.wait_for_exit()
    for path, answer in answers:
        seen.response_headers |= {name: "header" for name in answer.headers if name.startswith("x-foveate-")}
        if answer.status >= 400:
            seen.documents.setdefault(f"error response of {path}", []).append(json.loads(answer.body))
    seen.refusals = _refusals([answer for _, answer in answers], log)
    return seen


def _health_with_wrong_configuration(served: GatewayProcess) -> object:
    deadline = time.monotonic() + 60
    while (health := json.loads(_ask(served, "/health", method="GET").body))["config"]["valid"]:
        assert time.monotonic() < deadline, "the gateway never saw that its configuration is wrong"
        time.sleep(0.05)
    return health


class Answer:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        self.body = answer.read()


def _ask(
    served: GatewayProcess,
    path: str,
    *,
    method: str,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    host, _, port = served.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
        return Answer(connection.getresponse())
    finally:
        connection.close()


def _answers(served: GatewayProcess) -> list[tuple[str, Answer]]:
    """Return a response, a token count by the gateway, and every error response that clients can cause."""
    found: list[tuple[str, Answer]] = []

    def ask(path: str, model: str, text: str = "Hello!", more: str = "", **headers: str) -> None:
        message = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}]}
        body = json.dumps(message).removesuffix("}") + more + "}"
        named = {name.replace("_", "-"): message for name, message in headers.items()}
        sent = {"x-api-key": KEY, "authorization": f"Bearer {KEY}", **named}
        found.append((path, _ask(served, path, method="POST", body=body, headers=sent)))

    for path, model in (("/v1/messages", CLAUDE), (CHAT, GPT)):
        ask(path, model)
        ask(path, model, x_api_key="fov-unknown")
        ask(path, model, x_foveate_agent="poor")
        ask(path, model, "Where does it all end? " * 2000, x_foveate_agent="narrow")
        ask(path, model, "x" * LIMIT_BYTES)
        ask(path, model, more=f', "model": "{model}"')
        ask(path, model, host="elsewhere.example")
        ask(path, model, origin="https://elsewhere.example")
        ask(path, "nowhere-1")
    ask("/v1/messages", "spoken-otherwise")
    ask(f"{CHAT}/input_tokens", GPT)
    return found


def _refusals(answers: list[Answer], log: str) -> dict[str, str]:
    """Return the status of each code in the log, and whether clients are told to retry."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    codes = {line["id"]: line["refused"] for line in lines if line.get("refused")}
    found: dict[str, str] = {}
    for answer in answers:
        code = codes.get(answer.headers.get("x-foveate-request-id", ""))
        if code is not None:
            found[code] = (
                f"HTTP {answer.status}, x-should-retry {answer.headers.get('x-should-retry', 'not set')}"
            )
    return found
