"""`foveate prices`: details of a model, and price files that running gateways use at once."""

import http.client
import json
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.commands import Outcome, spawn
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox

pytestmark = pytest.mark.process

HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}


def run_prices(folder: Path, *arguments: str | Path) -> Outcome:
    return spawn("prices", *arguments, env={"FOVEATE_HOME": str(folder)})


def write_price_file(folder: Path, output_dollars: int, model: str = "claude-opus-9") -> Path:
    """Write a price file in LiteLLM's format; output costs `output_dollars` per million tokens."""
    path = folder / "list.json"
    entry = {"litellm_provider": "anthropic", "mode": "chat", "input_cost_per_token": 1e-06}
    path.write_text(json.dumps({model: entry | {"output_cost_per_token": output_dollars / 1e6}}))
    return path


def test_a_model_is_shown_with_the_source_of_its_prices(tmp_path: Path) -> None:
    outcome = run_prices(tmp_path, "show", "claude-haiku-5-5")

    assert outcome.code == 0
    assert "claude-haiku-5-5 at anthropic" in outcome.out
    assert "Foveate's table, 2026-11-16" in outcome.out
    assert re.search(r"^above 100,000 tokens +0\.50 +0\.050 ", outcome.out, re.MULTILINE)
    assert "1,000,000 tokens" in outcome.out
    report = json.loads(run_prices(tmp_path, "show", "claude-opus-5-5", "--json").out)
    assert report["price"]["origin"].startswith("genai-prices ")
    assert report["price"]["inherited"] is False
    assert report["price"]["dollars_per_million"]["output"] == "20"
    assert report["window"]["tokens"] == 1_000_000
    assert report["cache"]["minimum_tokens"] == 512
    assert report["cache"]["binds_thinking"] is True


def test_inherited_prices_are_labelled(tmp_path: Path) -> None:
    outcome = run_prices(tmp_path, "show", "claude-opus-9")
    report = json.loads(run_prices(tmp_path, "show", "claude-opus-9", "--json").out)

    assert "inherited from claude-opus" in outcome.out
    assert (report["price"]["inherited"], report["price"]["family"]) == (True, "claude-opus")
    assert report["window"]["inherited"] is True
    assert report["cache"]["inherited"] is True
    unknown = run_prices(tmp_path, "show", "nobody-knows-it", "--json")
    assert (unknown.code, json.loads(unknown.out)["price"]) == (0, None)


def test_a_price_file_is_read_and_its_changes_are_shown(tmp_path: Path) -> None:
    outcome = run_prices(tmp_path, "update", write_price_file(tmp_path, 7), "--date", "2026-11-17", "--json")
    report = json.loads(outcome.out)

    assert outcome.code == 0
    assert (report["format"], report["as_of"], report["models"]) == ("litellm", "2026-11-17", 1)
    assert report["counts"] == {"new": 1, "changed": 0, "same": 0, "kept": 0}
    assert report["differences"][0]["after"]["dollars_per_million"]["output"] == "7"
    details = json.loads(run_prices(tmp_path, "show", "claude-opus-9", "--json").out)
    assert details["price"]["origin"] == "litellm file, 2026-11-17"
    second_outcome = run_prices(tmp_path, "update", write_price_file(tmp_path, 8), "--date", "2026-11-17")
    assert "0 new, 1 changed" in second_outcome.out
    assert "output 8" in second_outcome.out
    assert re.search(r"^change .* before$", second_outcome.out, re.MULTILINE)
    assert re.search(r"output 8  input 1.*output 7$", second_outcome.out, re.MULTILINE)


def test_prices_in_the_configuration_override_a_price_file(tmp_path: Path) -> None:
    run_prices(tmp_path, "update", write_price_file(tmp_path, 7), "--date", "2026-11-17")
    config = tmp_path / "foveate.yaml"
    config.write_text("cost: {prices: [{model: claude-opus-9, input: 1, output: 2}]}\n")

    report = json.loads(run_prices(tmp_path, "show", "claude-opus-9", "--config", config, "--json").out)

    assert report["price"]["source"] == "own"
    assert report["price"]["dollars_per_million"]["output"] == "2"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("{", ()),
        ('{"gpt-9": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": -1}}', ()),
        ("[1]", ()),
        ("", ()),
        (None, ()),
        ('{"x": {"litellm_provider": "openai"}}', ("--date", "soon")),
        ('{"x": {"litellm_provider": "openai"}}', ("--date", "2999-01-01")),
    ],
)
def test_a_bad_price_file_changes_nothing(tmp_path: Path, text: str | None, options: tuple[str, ...]) -> None:
    run_prices(tmp_path, "update", write_price_file(tmp_path, 7), "--date", "2026-11-17")
    before = (tmp_path / "prices.json").read_bytes()
    bad_file = tmp_path / "bad.json"
    if text is not None:
        bad_file.write_text(text)

    outcome = run_prices(tmp_path, "update", bad_file, *options, "--json")

    assert outcome.code == 2
    assert "error" in json.loads(outcome.out)
    assert "Traceback" not in outcome.err
    assert (tmp_path / "prices.json").read_bytes() == before


def test_a_price_file_that_cannot_be_stored_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "taken"
    home.write_text("a file, not a folder")

    outcome = run_prices(home, "update", write_price_file(tmp_path, 7), "--date", "2026-11-17")

    assert outcome.code == 1
    assert "prices.json" in outcome.err


def send_message(url: str, model: str = "claude-opus-9") -> int:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    body: dict[str, Any] = {"model": model, "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]}
    try:
        connection.request("POST", "/v1/messages", json.dumps(body), HEADERS)
        response = connection.getresponse()
        response.read()  # a client that disconnects earlier gets no usage
        return response.status
    finally:
        connection.close()


def export_calls(folder: Path, calls: int) -> list[dict[str, str]]:
    """Wait for this number of calls, and return them."""
    deadline = time.monotonic() + 30
    while True:
        out = spawn("cost", "export", env={"FOVEATE_HOME": str(folder)}).out
        lines = [line.split(",") for line in out.splitlines()]
        if len(lines) > calls or time.monotonic() > deadline:
            return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
        time.sleep(0.1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_running_gateway_uses_a_price_file_from_the_next_request(tmp_path: Path, workers: int) -> None:
    with running_sandbox() as sandbox:
        write_config(tmp_path / "foveate.yaml", sandbox.url, f"server: {{workers: {workers}}}\n")
        with gateway_process(tmp_path, forked=workers == 1) as gateway:
            assert send_message(gateway.url) == 200
            first_dollars = Decimal(export_calls(tmp_path, 1)[0]["dollars"])
            outcome = run_prices(tmp_path, "update", write_price_file(tmp_path, 90_000), "--date", "2026-11-17")
            assert outcome.code == 0
            count = 12
            assert {send_message(gateway.url) for _ in range(count)} == {200}
            calls = export_calls(tmp_path, 1 + count)

    assert len(calls) == 1 + count
    # Every worker uses the prices of the file: an output token costs 9 cents.
    assert all(Decimal(call["dollars"]) > 100 * first_dollars for call in calls[1:])


def test_an_unknown_model_of_a_known_family_passes_a_cap(tmp_path: Path) -> None:
    cap = "cost: {caps: [{scope: day, dollars: 5}]}\n"
    with running_sandbox() as sandbox:
        write_config(tmp_path / "foveate.yaml", sandbox.url, cap)
        with gateway_process(tmp_path) as gateway:
            assert send_message(gateway.url, "claude-opus-9") == 200
            assert send_message(gateway.url, "claude-fable-5-2") == 200
            calls = export_calls(tmp_path, 2)

    assert len(calls) == 2
    assert all(Decimal(call["dollars"]) > 0 for call in calls)
