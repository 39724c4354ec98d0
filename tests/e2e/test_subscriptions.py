"""Clients that sign in with a subscription: their gateway key, their limits and their dollars."""

import csv
import http.client
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from foveate.gateway.auth.callers import generate_key, hash_key
from tests.support.clients.browser import open_page
from tests.support.processes.commands import spawn
from tests.support.servers.gateway_process import GatewayProcess, gateway_process, write_config
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

pytestmark = pytest.mark.process

OAUTH = "sk-ant-oat01-of-a-test"
GATEWAY_KEY = generate_key()
AGENTS = f"agents: [{{id: ana, keys: ['{hash_key(GATEWAY_KEY)}']}}]\n"
SUBSCRIPTION = {"authorization": f"Bearer {OAUTH}", "x-foveate-key": GATEWAY_KEY}


@contextmanager
def subscription_gateway(
    folder: Path, settings: str = AGENTS
) -> Iterator[tuple[GatewayProcess, RunningSandbox]]:
    with running_sandbox() as sandbox:
        sandbox.clock.now = time.time()
        write_config(folder / "foveate.yaml", sandbox.url, settings)
        with gateway_process(folder) as gateway:
            yield gateway, sandbox


def send_request(url: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    default_headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    try:
        connection.request("POST", path, json.dumps(body), default_headers | headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def send_message(
    url: str, headers: dict[str, str], *, model: str = "claude-opus-5-5", stream: bool = False
) -> int:
    body = {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    return send_request(url, "/v1/messages", body, headers)[0]


def run_cost(folder: Path, *arguments: str) -> dict[str, Any]:
    outcome = spawn("cost", *arguments, "--json", env={"FOVEATE_HOME": str(folder)})
    assert outcome.code == 0, outcome.err
    report: dict[str, Any] = json.loads(outcome.out)
    return report


def wait_for(read: Callable[[], dict[str, Any]], is_ready: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while not is_ready(report := read()):
        assert time.monotonic() < deadline, report
        time.sleep(0.1)
    return report


def read_metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        text: str = response.read().decode()
        return text


def test_a_gateway_key_beside_a_subscription_is_not_forwarded(tmp_path: Path) -> None:
    with subscription_gateway(tmp_path) as (gateway, sandbox):
        assert send_message(gateway.url, SUBSCRIPTION) == 200
        assert send_message(gateway.url, SUBSCRIPTION | {"x-foveate-key": "fov-nobodys"}) == 401
        report = wait_for(lambda: run_cost(tmp_path, "--by", "agent"), lambda report: bool(report["rows"]))
        gateway.process.terminate()
        log = gateway.wait_for_exit()[1]

    (request,) = sandbox.requests
    assert request.headers["authorization"] == f"Bearer {OAUTH}"
    assert not [name for name in request.headers if name.startswith("x-foveate-")]
    assert [row["agent"] for row in report["rows"]] == ["ana"]
    assert GATEWAY_KEY not in log
    assert OAUTH not in log
    stored_bytes = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert GATEWAY_KEY.encode() not in stored_bytes
    assert OAUTH.encode() not in stored_bytes


@pytest.mark.parametrize("stream", [False, True])
def test_dollars_of_a_subscription_are_list_price_equivalents(tmp_path: Path, stream: bool) -> None:
    with subscription_gateway(tmp_path) as (gateway, _):
        assert send_message(gateway.url, SUBSCRIPTION, stream=stream) == 200
        assert send_message(gateway.url, {"x-api-key": KEY}, stream=stream) == 200
        report = wait_for(
            lambda: run_cost(tmp_path, "--by", "agent"), lambda report: report["total"]["calls"] == 2
        )
        outcome = spawn("cost", env={"FOVEATE_HOME": str(tmp_path)})
        metrics = read_metrics(gateway.url)

    rows = {row["agent"]: row for row in report["rows"]}
    subscription, api_key = rows["ana"], rows["default"]
    assert (subscription["subscription_calls"], api_key["subscription_calls"]) == (1, 0)
    assert Decimal(subscription["subscription_dollars"]) == Decimal(subscription["dollars"]) > 0
    assert Decimal(api_key["subscription_dollars"]) == 0
    assert report["total"]["subscription_dollars"] == subscription["subscription_dollars"]
    assert "of the cost is the list price of 1 call covered by a subscription" in outcome.err
    assert (
        'foveate_subscription_dollars_total{agent="ana",model="claude-opus-5-5",provider="anthropic"}'
        in metrics
    )
    assert 'foveate_subscription_dollars_total{agent="default"' not in metrics


def test_limits_of_a_subscription_are_shown(tmp_path: Path) -> None:
    with subscription_gateway(tmp_path) as (gateway, _):
        for _ in range(3):
            assert send_message(gateway.url, SUBSCRIPTION) == 200
        report = wait_for(
            lambda: run_cost(tmp_path),
            lambda report: [limit["used"] for limit in report["rate_limits"]] == [0.03, 0.003],
        )
        outcome = spawn("cost", env={"FOVEATE_HOME": str(tmp_path)})
        metrics = read_metrics(gateway.url)

    five_hours, week = report["rate_limits"]
    assert (five_hours["agent"], five_hours["provider"], five_hours["limit"]) == ("ana", "anthropic", "5h")
    assert (week["limit"], week["status"]) == ("7d", "allowed")
    assert five_hours["resets_at"] > time.time()
    assert "5h subscription limit of ana at anthropic: 3% used, resets 20" in outcome.err
    labels = 'agent="ana",limit="5h",provider="anthropic"'
    assert f"foveate_rate_limit_used_ratio{{{labels}}} 0.03" in metrics
    assert f"foveate_rate_limit_reset_timestamp_seconds{{{labels}}} " in metrics
    assert run_cost(tmp_path, "--agent", "nobody")["rate_limits"] == []


def test_a_subscription_to_chatgpt_is_recognised(tmp_path: Path) -> None:
    headers = {
        "authorization": "Bearer eyJhbGciOi.x.y",
        "chatgpt-account-id": "a1",
        "x-foveate-key": GATEWAY_KEY,
    }
    body = {"model": "gpt-6-sol", "input": "Hi", "max_output_tokens": 50}
    with subscription_gateway(tmp_path) as (gateway, _):
        assert send_request(gateway.url, "/v1/responses", body, headers)[0] == 200
        report = wait_for(
            lambda: run_cost(tmp_path),
            lambda report: bool(report["rate_limits"]) and report["total"]["calls"] == 1,
        )

    assert report["total"]["subscription_calls"] == 1
    assert [(limit["limit"], limit["used"]) for limit in report["rate_limits"]] == [("5h", 0.01), ("7d", 0.001)]


def test_a_plain_key_has_no_limits(tmp_path: Path) -> None:
    with subscription_gateway(tmp_path) as (gateway, _):
        assert send_message(gateway.url, {"x-api-key": KEY}) == 200
        report = wait_for(lambda: run_cost(tmp_path), lambda report: report["total"]["calls"] == 1)
        metrics = read_metrics(gateway.url)

    assert report["rate_limits"] == []
    assert "foveate_rate_limit_used_ratio{" not in metrics


def test_list_price_equivalents_count_against_caps(tmp_path: Path) -> None:
    cap = "cost: {caps: [{scope: day, agent: ana, dollars: 0.0001}]}\n"
    with subscription_gateway(tmp_path, AGENTS + cap) as (gateway, sandbox):
        assert send_message(gateway.url, SUBSCRIPTION) == 402

    assert not sandbox.requests


def test_charges_at_the_price_of_a_family_are_labelled(tmp_path: Path) -> None:
    with subscription_gateway(tmp_path) as (gateway, _):
        assert send_message(gateway.url, {"x-api-key": KEY}, model="claude-opus-9") == 200
        assert send_message(gateway.url, {"x-api-key": KEY}) == 200
        report = wait_for(
            lambda: run_cost(tmp_path, "--by", "model"), lambda report: report["total"]["calls"] == 2
        )
        outcome = spawn("cost", env={"FOVEATE_HOME": str(tmp_path)})
        exported = spawn("cost", "export", env={"FOVEATE_HOME": str(tmp_path)}).out.splitlines()
        sessions = json.loads(spawn("explain", "--json", env={"FOVEATE_HOME": str(tmp_path)}).out)
        metrics = read_metrics(gateway.url)

    rows = {row["model"]: row for row in report["rows"]}
    assert rows["claude-opus-9"]["inherited_calls"] == 1
    assert rows["claude-opus-9"]["inherited_dollars"] == rows["claude-opus-9"]["dollars"]
    assert rows["claude-opus-5-5"]["inherited_calls"] == 0
    assert "of the cost is an upper bound: 1 call to unlisted models" in outcome.err
    calls = csv.DictReader(exported)
    price_labels = {call["model"]: (call["is_inherited"], call["is_subscription"]) for call in calls}
    assert price_labels == {"claude-opus-9": ("true", "false"), "claude-opus-5-5": ("false", "false")}
    assert 'foveate_inherited_dollars_total{agent="default",model="claude-opus-9"' in metrics
    assert len(sessions["sessions"]) >= 1


def test_the_page_shows_limits_and_labels_dollars(browser: Browser, tmp_path: Path) -> None:
    with subscription_gateway(tmp_path) as (gateway, _):
        assert send_message(gateway.url, SUBSCRIPTION) == 200
        assert send_message(gateway.url, {"x-api-key": KEY}, model="claude-opus-9") == 200
        wait_for(
            lambda: run_cost(tmp_path),
            lambda report: report["total"]["calls"] == 2 and bool(report["rate_limits"]),
        )
        with open_page(browser, gateway.url) as page:
            page.goto("/")
            part = page.locator("[data-part=subscriptions]")
            row = part.locator("tbody > tr").first
            expect(row).to_contain_text("ana")
            expect(row).to_contain_text("5h")
            expect(row).to_contain_text("1%")
            expect(part).to_contain_text("shown at list prices")
            agents = page.locator("[data-part=agents]")
            expect(agents.locator("tr", has_text="ana")).to_contain_text("list price")
            expect(page.locator("[data-part=models] tr", has_text="claude-opus-9")).to_contain_text("inherited")
            page.goto("/-/sessions")
            expect(page.locator("tbody tr", has_text="claude-opus-9")).to_contain_text("inherited")
            page.locator("tbody tr", has_text="claude-opus-5-5").locator("a").first.click()
            expect(page.locator(".tiles")).to_contain_text("list price")


def test_without_subscriptions_the_page_has_no_such_part(browser: Browser, tmp_path: Path) -> None:
    with subscription_gateway(tmp_path) as (gateway, _):
        assert send_message(gateway.url, {"x-api-key": KEY}) == 200
        wait_for(lambda: run_cost(tmp_path), lambda report: report["total"]["calls"] == 1)
        with open_page(browser, gateway.url) as page:
            page.goto("/")
            expect(page.locator("[data-part=agents]")).to_be_visible()
            expect(page.locator("[data-part=subscriptions]")).to_have_count(0)
