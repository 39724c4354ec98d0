"""Explanations of requests that a gateway sent, with and without stored bodies."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import pytest

from foveate.config.live_settings import CHECK_INTERVAL_SECONDS
from foveate.session.store import ArchivedRequest
from foveate.store import open_store
from tests.support.processes.commands import Outcome
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox

pytestmark = pytest.mark.process

RULES = "You are a careful engineer. " * 400
ARCHIVE_CONFIG = "keep_requests: {enabled: true, days: 3, most_bytes: 1000000}\n"


@dataclass
class StoredRequests:
    """A folder in which a gateway stored requests, some of them sent before storing was enabled."""

    folder: Path
    requests: list[ArchivedRequest]


@pytest.fixture
def explain(
    stored_requests: StoredRequests, run: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Run `foveate explain` with the store of that gateway."""
    monkeypatch.setenv("FOVEATE_HOME", str(stored_requests.folder))

    def call(*arguments: str, cache: bool = True) -> Outcome:
        outcome: Outcome = run("explain", *(["--cache"] if cache else []), *arguments)
        return outcome

    return call


def send_turn(client: anthropic.Anthropic, second: int, messages: list[Any]) -> None:
    system = f"{RULES}\nIt is 2026-11-15T12:00:{second:02}Z."
    reply = client.messages.create(model="claude-sonnet-5", max_tokens=99, system=system, messages=messages)
    messages += [
        {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
        {"role": "user", "content": "Go on."},
    ]


@pytest.fixture(scope="module")
def stored_requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredRequests]:
    folder = tmp_path_factory.mktemp("home")
    config = folder / "foveate.yaml"
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url)
        with gateway_process(folder, "--config", str(config)) as gateway:
            with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
                messages: list[Any] = [{"role": "user", "content": "Find the slow parser."}]
                send_turn(client, 1, messages)
                wait_for_requests(folder, 1)
                write_config(config, sandbox.url, ARCHIVE_CONFIG)
                time.sleep(CHECK_INTERVAL_SECONDS)
                for second in (1, 1, 2, 2):
                    send_turn(client, second, messages)
                wait_for_requests(folder, 5, stored=4)
                write_config(config, sandbox.url)
                time.sleep(CHECK_INTERVAL_SECONDS)
                send_turn(client, 3, messages)
            yield StoredRequests(folder, wait_for_requests(folder, 6, stored=4))


def wait_for_requests(folder: Path, calls: int, *, stored: int = 0) -> list[ArchivedRequest]:
    """Wait until this many calls are charged and this many requests stored; return the requests."""

    async def read() -> tuple[int, list[ArchivedRequest]]:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            entries = [charge async for charge in store.ledger.list_charges()]
            session_id = entries[0].call.session_id if entries else ""
            traces = await store.traces.list_traces(limit=9, session_id=session_id)
            return min(len(entries), len(traces)), list(
                await store.request_archive.find_by_session(session_id, limit=9)
            )

    deadline = time.monotonic() + 60
    while True:
        charged, requests = asyncio.run(read())
        if charged >= calls and len(requests) >= stored:
            return requests
        assert time.monotonic() < deadline, f"{charged} calls charged, {len(requests)} requests stored"
        time.sleep(0.05)


def test_requests_are_stored_with_usage_and_without_keys_while_storing_is_enabled(
    stored_requests: StoredRequests,
) -> None:
    assert len(stored_requests.requests) == 4
    for request in stored_requests.requests:
        assert request.usage is not None
        assert b"cache_control" in request.request_body
        assert request.original_body is not None
        assert b"cache_control" not in request.original_body
        assert KEY.encode() not in request.request_body
    for path in stored_requests.folder.glob("foveate.sqlite*"):
        assert KEY.encode() not in path.read_bytes()


def test_the_last_cache_miss_of_a_stored_session_is_explained_by_its_id(
    stored_requests: StoredRequests, explain: Callable[..., Outcome]
) -> None:
    newest, after, before, _ = stored_requests.requests
    outcome = explain(newest.session_id[:12])

    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert f"session {newest.session_id}" in lines[0]
    assert "a timestamp changed" in outcome.out
    assert "2026-11-15T12:00:01Z" in outcome.out
    assert "$0.0" in outcome.out

    report = json.loads(explain(newest.session_id, "--json").out)
    assert (report["request_id"], report["previous_id"]) == (after.id, before.id)
    assert (report["broken"], report["cause"]) == (True, "timestamp")
    assert report["lost_dollars"]


def test_one_request_is_explained_by_its_own_id(
    stored_requests: StoredRequests, explain: Callable[..., Outcome]
) -> None:
    newest, after, *_, first = stored_requests.requests

    assert json.loads(explain(newest.id, "--json").out)["broken"] is False
    assert json.loads(explain(after.id, "--json").out)["cause"] == "timestamp"
    outcome = explain(first.id)
    assert (outcome.code, "the store has no request before" in outcome.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.json"], "no file has the name 'nowhere.json', and no stored session or request has an id"),
        ([""], "the id of a session or request is missing"),
        (["-"], "--cache compares two requests"),
        (["x", "--gap", "5m"], "--gap and --model apply only to files"),
    ],
)
def test_invalid_cache_arguments_are_reported(
    explain: Callable[..., Outcome], arguments: list[str], reason: str
) -> None:
    outcome = explain(*arguments)

    assert outcome.code == 2
    assert reason in " ".join(outcome.err.split())


def test_sessions_requests_and_edits_are_shown_without_stored_bodies(
    explain: Callable[..., Outcome],
) -> None:
    """This includes requests that were sent while `keep_requests` was off."""
    (session,) = json.loads(explain("--json", cache=False).out)["sessions"]
    assert (session["requests"], session["agent"]) == (6, "default")
    short_id = session["session_id"][:8]
    outcome = explain(short_id, cache=False)
    assert outcome.code == 0, outcome.err
    assert "cache miss: timestamp" in outcome.out
    assert "6 requests, $0.0" in outcome.out
    assert "window: ~" in outcome.out

    request = json.loads(explain(short_id, "--request", "2", "--json", cache=False).out)
    assert sum(section["tokens"] for section in request["sections"]) == request["tokens"]
    assert {section["name"] for section in request["sections"]} == {"system", "user", "assistant"}
    assert request["bill"]["cache"]["read"] > 0
    assert all(edit["reason"] and edit["place"] for edit in request["edits"])
    assert any(edit["does"].startswith("mark") and edit["dollars"] for edit in request["edits"])
    output = explain(request["id"], cache=False).out
    assert f"request {request['id']}, number 2 of session" in output
    assert f"{len(request['edits'])} edits" in output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "no session or request in the store has an id that starts with 'nowhere'"),
        ([""], "the id of a session or request is missing"),
        (["-"], "request bodies can only be explained with --cache"),
        (["x", "--gap", "5m"], "--gap, --price and --model require --cache"),
        (["--request", "2"], "--request needs the id of a session"),
    ],
)
def test_invalid_arguments_are_reported(
    explain: Callable[..., Outcome], arguments: list[str], reason: str
) -> None:
    outcome = explain(*arguments, cache=False)

    assert outcome.code == 2
    assert reason in " ".join(outcome.err.split())


def test_a_request_number_out_of_range_is_reported(
    stored_requests: StoredRequests, explain: Callable[..., Outcome]
) -> None:
    outcome = explain(stored_requests.requests[0].session_id, "--request", "7", cache=False)

    assert (outcome.code, "--request takes 1 to 6" in outcome.err) == (2, True)
