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

from foveate.config.live import CHECK_INTERVAL_SECONDS
from foveate.session.request_archive import ArchivedRequest
from foveate.store import open_store
from tests.e2e.command import Outcome
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox

pytestmark = pytest.mark.process

RULES = "You are a careful engineer. " * 400
ON = "keep_requests: {enabled: true, days: 3, most_bytes: 1000000}\n"


@dataclass
class StoredRequests:
    """A folder in which a gateway stored requests, some of them sent before storing was enabled."""

    folder: Path
    requests: list[ArchivedRequest]


@pytest.fixture
def explain(stored: StoredRequests, run: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run `foveate explain` with the store of that gateway."""
    monkeypatch.setenv("FOVEATE_HOME", str(stored.folder))

    def call(*arguments: str, cache: bool = True) -> Outcome:
        return run("explain", *(["--cache"] if cache else []), *arguments)  # type: ignore[no-any-return]

    return call


def ask(client: anthropic.Anthropic, second: int, messages: list[Any]) -> None:
    system = f"{RULES}\nIt is 2026-11-15T12:00:{second:02}Z."
    reply = client.messages.create(model="claude-sonnet-5", max_tokens=99, system=system, messages=messages)
    messages += [
        {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
        {"role": "user", "content": "Go on."},
    ]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredRequests]:
    folder = tmp_path_factory.mktemp("home")
    config = folder / "foveate.yaml"
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url)
        with gateway_process(folder, "--config", str(config)) as served:
            with anthropic.Anthropic(base_url=served.url, api_key=KEY, max_retries=0) as client:
                messages: list[Any] = [{"role": "user", "content": "Find the slow parser."}]
                ask(client, 1, messages)
                wait_for_requests(folder, 1)
                write_config(config, sandbox.url, ON)
                time.sleep(CHECK_INTERVAL_SECONDS)
                for second in (1, 1, 2, 2):
                    ask(client, second, messages)
                wait_for_requests(folder, 5, stored=4)
                write_config(config, sandbox.url)
                time.sleep(CHECK_INTERVAL_SECONDS)
                ask(client, 3, messages)
            yield StoredRequests(folder, wait_for_requests(folder, 6, stored=4))


def wait_for_requests(folder: Path, calls: int, *, stored: int = 0) -> list[ArchivedRequest]:
    """Wait until this many calls are charged and this many requests stored; return the requests."""

    async def found() -> tuple[int, list[ArchivedRequest]]:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            entries = [one async for one in store.ledger.list_charges()]
            session_id = entries[0].call.session_id if entries else ""
            traced = await store.traces.list_traces(limit=9, session_id=session_id)
            return min(len(entries), len(traced)), list(
                await store.request_archive.find_by_session(session_id, limit=9)
            )

    deadline = time.monotonic() + 20
    while True:
        booked, requests = asyncio.run(found())
        if booked >= calls and len(requests) >= stored:
            return requests
        assert time.monotonic() < deadline, f"{booked} booked, {len(requests)} kept"
        time.sleep(0.05)


def test_requests_are_stored_with_usage_and_without_keys_while_storing_is_enabled(
    stored: StoredRequests,
) -> None:
    assert len(stored.requests) == 4
    for one in stored.requests:
        assert one.usage is not None
        assert b"cache_control" in one.request_body
        assert one.original_body is not None
        assert b"cache_control" not in one.original_body
        assert KEY.encode() not in one.request_body
    for path in stored.folder.glob("foveate.sqlite*"):
        assert KEY.encode() not in path.read_bytes()


def test_the_last_cache_break_of_a_stored_session_is_explained_by_its_id(
    stored: StoredRequests, explain: Callable[..., Outcome]
) -> None:
    newest, after, before, _ = stored.requests
    done = explain(newest.session_id[:12])

    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert f"session {newest.session_id}" in lines[0]
    assert "a timestamp changed" in done.out
    assert "2026-11-15T12:00:01Z" in done.out
    assert "$0.0" in done.out

    shown = json.loads(explain(newest.session_id, "--json").out)
    assert (shown["request_id"], shown["previous_id"]) == (after.id, before.id)
    assert (shown["broken"], shown["cause"]) == (True, "timestamp")
    assert shown["lost_dollars"]


def test_one_request_is_explained_by_its_own_id(
    stored: StoredRequests, explain: Callable[..., Outcome]
) -> None:
    newest, after, *_, first = stored.requests

    assert json.loads(explain(newest.id, "--json").out)["broken"] is False
    assert json.loads(explain(after.id, "--json").out)["cause"] == "timestamp"
    done = explain(first.id)
    assert (done.code, "nothing is kept before" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.json"], "no kept session or request whose id begins with 'nowhere.json'"),
        ([""], "the id of a session or of a request is expected"),
        (["-"], "two requests are compared"),
        (["x", "--gap", "5m"], "--gap and --model are for files"),
    ],
)
def test_invalid_cache_arguments_are_reported(
    explain: Callable[..., Outcome], arguments: list[str], reason: str
) -> None:
    done = explain(*arguments)

    assert done.code == 2
    assert reason in " ".join(done.err.split())


def test_sessions_requests_and_edits_are_shown_without_stored_bodies(
    explain: Callable[..., Outcome],
) -> None:
    """Also of requests that were sent while `keep_requests` was off."""
    (session,) = json.loads(explain("--json", cache=False).out)["sessions"]
    assert (session["requests"], session["agent"]) == (6, "default")
    short = session["session_id"][:8]
    listed = explain(short, cache=False)
    assert listed.code == 0, listed.err
    assert "broke: timestamp" in listed.out
    assert "6 requests, $0.0" in listed.out
    assert "window: ~" in listed.out

    one = json.loads(explain(short, "--request", "2", "--json", cache=False).out)
    assert sum(section["tokens"] for section in one["sections"]) == one["tokens"]
    assert {section["name"] for section in one["sections"]} == {"system", "user", "assistant"}
    assert one["bill"]["cache"]["read"] > 0
    assert all(edit["reason"] and edit["place"] for edit in one["edits"])
    assert any(edit["does"].startswith("mark") and edit["dollars"] for edit in one["edits"])
    shown = explain(one["id"], cache=False).out
    assert f"request {one['id']}, number 2 of session" in shown
    assert f"{len(one['edits'])} edits" in shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "nothing is known of a session or request whose id begins with 'nowhere'"),
        ([""], "the id of a session or of a request is expected"),
        (["-"], "add --cache"),
        (["x", "--gap", "5m"], "--gap, --price and --model go with --cache"),
        (["--request", "2"], "--request needs the id of a session"),
    ],
)
def test_invalid_arguments_are_reported(
    explain: Callable[..., Outcome], arguments: list[str], reason: str
) -> None:
    done = explain(*arguments, cache=False)

    assert done.code == 2
    assert reason in " ".join(done.err.split())


def test_a_request_number_out_of_range_is_reported(
    stored: StoredRequests, explain: Callable[..., Outcome]
) -> None:
    done = explain(stored.requests[0].session_id, "--request", "7", cache=False)

    assert (done.code, "--request takes 1 to 6" in done.err) == (2, True)
