"""`foveate prices`: details of a model, and price files that running gateways use at once."""

import http.client
import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import Outcome, spawn
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox

pytestmark = pytest.mark.process

HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}


def prices(folder: Path, *arguments: str | Path) -> Outcome:
    return spawn("prices", *arguments, env={"FOVEATE_HOME": str(folder)})


def price_list(folder: Path, output_dollars: int, model: str = "claude-opus-9") -> Path:
    """A price file as LiteLLM has it; output costs so many dollars for a million tokens."""
    path = folder / "list.json"
    entry = {"litellm_provider": "anthropic", "mode": "chat", "input_cost_per_token": 1e-06}
    path.write_text(json.dumps({model: entry | {"output_cost_per_token": output_dollars / 1e6}}))
    return path


def test_a_model_is_shown_with_the_source_of_its_prices(tmp_path: Path) -> None:
    shown = prices(tmp_path, "show", "claude-haiku-5-5")

    assert shown.code == 0
    assert "claude-haiku-5-5 at anthropic" in shown.out
    assert "Foveate's table, 2026-11-16" in shown.out
    assert "above 100,000: input 0.5" in shown.out
    assert "1,000,000 tokens" in shown.out
    found = json.loads(prices(tmp_path, "show", "claude-opus-5-5", "--json").out)
    assert found["price"]["origin"].startswith("genai-prices ")
    assert found["price"]["inherited"] is False
    assert found["price"]["dollars_per_million"]["output"] == "20"
    assert found["window"]["tokens"] == 1_000_000
    assert found["cache"]["minimum_tokens"] == 512
    assert found["cache"]["binds_thinking"] is True


def test_inherited_prices_are_labelled(tmp_path: Path) -> None:
    shown = prices(tmp_path, "show", "claude-opus-9")
    found = json.loads(prices(tmp_path, "show", "claude-opus-9", "--json").out)

    assert "inherited from claude-opus" in shown.out
    assert (found["price"]["inherited"], found["price"]["family"]) == (True, "claude-opus")
    assert found["window"]["inherited"] is True
    assert found["cache"]["inherited"] is True
    unknown = prices(tmp_path, "show", "nobody-knows-it", "--json")
    assert (unknown.code, json.loads(unknown.out)["price"]) == (0, None)


def test_a_price_file_is_read_and_its_changes_are_shown(tmp_path: Path) -> None:
    done = prices(tmp_path, "update", price_list(tmp_path, 7), "--date", "2026-11-17", "--json")
    found = json.loads(done.out)

    assert done.code == 0
    assert (found["format"], found["as_of"], found["models"]) == ("litellm", "2026-11-17", 1)
    assert found["counts"] == {"new": 1, "changed": 0, "same": 0, "kept": 0}
    assert found["differences"][0]["after"]["dollars_per_million"]["output"] == "7"
    shown = json.loads(prices(tmp_path, "show", "claude-opus-9", "--json").out)
    assert shown["price"]["origin"] == "litellm file, 2026-11-17"
    again = prices(tmp_path, "update", price_list(tmp_path, 8), "--date", "2026-11-17")
    assert "0 new, 1 changed" in again.out
    assert "output 8" in again.out
    assert "before: input 1" in again.out


def test_prices_in_the_configuration_override_a_price_file(tmp_path: Path) -> None:
    prices(tmp_path, "update", price_list(tmp_path, 7), "--date", "2026-11-17")
    config = tmp_path / "foveate.yaml"
    config.write_text("cost: {prices: [{model: claude-opus-9, input: 1, output: 2}]}\n")

    found = json.loads(prices(tmp_path, "show", "claude-opus-9", "--config", config, "--json").out)

    assert found["price"]["source"] == "own"
    assert found["price"]["dollars_per_million"]["output"] == "2"


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
    prices(tmp_path, "update", price_list(tmp_path, 7), "--date", "2026-11-17")
    before = (tmp_path / "prices.json").read_bytes()
    bad = tmp_path / "bad.json"
    if text is not None:
        bad.write_text(text)

    done = prices(tmp_path, "update", bad, *options, "--json")

    assert done.code == 2
    assert "error" in json.loads(done.out)
    assert "Traceback" not in done.err
    assert (tmp_path / "prices.json").read_bytes() == before


def test_a_price_file_that_cannot_be_stored_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "taken"
    home.write_text("a file, not a folder")

    done = prices(home, "update", price_list(tmp_path, 7), "--date", "2026-11-17")

    assert done.code == 1
    assert "prices.json" in done.err


def ask(url: str, model: str = "claude-opus-9") -> int:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    body: dict[str, Any] = {"model": model, "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]}
    try:
        connection.request("POST", "/v1/messages", json.dumps(body), HEADERS)
        answer = connection.getresponse()
        answer.read()  # who leaves before its end has no bill
        return answer.status
    finally:
        connection.close()


def rows(folder: Path, calls: int) -> list[dict[str, str]]:
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
        with gateway_process(tmp_path, forked=workers == 1) as served:
            assert ask(served.url) == 200
            first = Decimal(rows(tmp_path, 1)[0]["dollars"])
            done = prices(tmp_path, "update", price_list(tmp_path, 90_000), "--date", "2026-11-17")
            assert done.code == 0
            count = 12
            assert {ask(served.url) for _ in range(count)} == {200}
            found = rows(tmp_path, 1 + count)

    assert len(found) == 1 + count
    # Each of the workers prices by the file: every output token costs 9 cents.
    assert all(Decimal(row["dollars"]) > 100 * first for row in found[1:])


def test_an_unknown_model_of_a_known_family_passes_a_cap(tmp_path: Path) -> None:
    cap = "cost: {caps: [{scope: day, dollars: 5}]}\n"
    with running_sandbox() as sandbox:
        write_config(tmp_path / "foveate.yaml", sandbox.url, cap)
        with gateway_process(tmp_path) as served:
            assert ask(served.url, "claude-opus-9") == 200
            assert ask(served.url, "claude-fable-5-2") == 200
            found = rows(tmp_path, 2)

    assert len(found) == 2
    assert all(Decimal(row["dollars"]) > 0 for row in found)
