"""Every setting changes what a user can see: each test changes one setting of a running gateway.

`SETTINGS` in `tests/e2e/setting_tests.py` names the test of each setting.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sandboxes import KEY, RunningSandbox, running_sandbox
from tests.served import serving
from tests.support.embedding_server import embedding_server

pytestmark = pytest.mark.process

CLAUDE, GPT = "claude-sonnet-4-6", "gpt-4.1"
LONG = "A line that is long enough to be worth keeping in a cache. " * 400


@dataclass
class Place:
    """A gateway before a sandbox, whose configuration each test writes anew."""

    folder: Path
    url: str
    sandbox: RunningSandbox
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def configure(self, text: str = "", *, upstreams: str = "", openai: str = "/v1") -> None:
        """Write the configuration; it holds from the next request on."""
        url = self.sandbox.url
        known = f"  anthropic: {{base_url: '{url}'}}\n  openai: {{base_url: '{url}{openai}'}}\n"
        fresh = self.folder / "fresh.yaml"
        fresh.write_text(f"upstreams:\n{known}{upstreams}{text}")
        fresh.replace(self.folder / "foveate.yaml")

    def new_words(self) -> str:
        """Words that no other conversation begins with."""
        return f"Question {next(self.numbers)}: when does bed 7 get water?"

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        """Send a request to the gateway."""
        shown = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "authorization": f"Bearer {KEY}"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"{self.url}{path}", json=body, headers={**shown, **named}, timeout=60)

    def ask(self, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        """Send a message to Claude, and return what arrives at the provider."""
        said = {"model": CLAUDE, "max_tokens": 100, "messages": self.messages(), **(body or {})}
        response = self.post("/v1/messages", said, **headers)
        assert response.status_code == 200, response.text
        return self.sent()

    def messages(self, *more: str) -> list[dict[str, Any]]:
        """A conversation of the user's, with an answer between any two of `more`."""
        said = [self.new_words(), *more]
        roles = ("user", "assistant")
        return [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]

    def sent(self) -> dict[str, Any]:
        """The body that arrived at the provider last."""
        found: dict[str, Any] = json.loads(self.sandbox.heard[-1].body)
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_sandbox() as sandbox:
        starting = Place(folder, "", sandbox)
        starting.configure()
        with serving(folder, EMBEDDINGS_KEY="key-of-embeddings") as gateway:
            yield Place(folder, gateway.url, sandbox)


def breakpoints(sent: dict[str, Any]) -> list[dict[str, Any]]:
    """All values of `cache_control` in a body."""
    found = []
    stack: list[Any] = [sent]
    while stack:
        match stack.pop():
            case dict() as value:
                found += [value["cache_control"]] if value.get("cache_control") else []
                stack += value.values()
            case list() as value:
                stack += value
    return found


CACHED: dict[str, Any] = {"system": [{"type": "text", "text": LONG}]}


@pytest.mark.parametrize(
    ("providers", "lives"), [("[anthropic, vertex]", "1h"), ("[]", "5m"), ("[vertex]", "5m")]
)
def test_an_hour_is_asked_for_only_of_long_ttl_providers(place: Place, providers: str, lives: str) -> None:
    place.configure(f"context_optimization: {{prompt_cache: {{ttl: 1h, long_ttl_providers: {providers}}}}}\n")

    found = [one for _ in range(2) for one in breakpoints(place.ask(CACHED))]

    assert found
    assert {one.get("ttl", "5m") for one in found} == {lives}


def conversation(place: Place, turns: int) -> list[dict[str, Any]]:
    """A conversation of so many questions."""
    said = [text for number in range(1, turns) for text in (f"Answer {number}.", f"Question {number}, again?")]
    return place.messages(*said)


def test_turns_beyond_max_turns_are_left_out_in_batches(place: Place) -> None:
    place.configure("agents: [{id: ana, max_turns: 8}]\n")
    whole = conversation(place, 15)
    beginnings = []
    for turns in range(7, 16):
        sent = place.ask({"messages": whole[: 2 * turns - 1]}, x_foveate_agent="ana")["messages"]
        questions = [one for one in sent if one["role"] == "user"]
        assert len(questions) <= 8 + 1  # the placeholder stands among them
        beginnings.append(json.dumps(sent[:4]))
        assert ("[left out: " in json.dumps(sent)) is (turns > 8)
        assert whole[2 * turns - 2]["content"] in json.dumps(sent[-1])

    assert beginnings[2] == beginnings[3] != beginnings[4] == beginnings[5]
    unlimited = place.ask({"messages": whole}, x_foveate_agent="bob")["messages"]
    assert len(unlimited) == len(whole)


@pytest.mark.parametrize("end", ["", "/v1", "/v1/"])
def test_an_upstreams_base_url_is_where_requests_go_with_or_without_a_version(place: Place, end: str) -> None:
    place.configure(openai=end)
    heard = len(place.sandbox.heard)

    response = place.post("/v1/chat/completions", {"model": GPT, "messages": place.messages()})

    assert response.status_code == 200, response.text
    assert [ask.path for ask in place.sandbox.heard[heard:]] == ["/v1/chat/completions"]


def notes(place: Place, **texts: str) -> Path:
    """A folder of notes, each a file with a heading."""
    folder = place.folder / f"notes-{next(place.numbers)}"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.org").write_text(f"* {name.capitalize()}\n{text}\n")
    return folder


def injected(sent: dict[str, Any]) -> str:
    """What stands behind the user's words."""
    return json.dumps(sent["messages"][-1])


def test_active_projects_are_shown_and_finished_ones_are_not(place: Place) -> None:
    folder = notes(place, beds="Roses.\n* TODO Pump :project:\nMend it.\n* DONE Shed :project:\nIt is built.\n")
    place.configure(f"agents: [{{id: ana, sections: {{memory: {{paths: ['{folder}']}}}}}}]\n")

    shown = injected(place.ask(x_foveate_agent="ana"))
    focused = injected(place.ask(x_foveate_agent="ana", x_foveate_focus="Shed"))

    assert "Project [TODO]: Pump" in shown
    assert "Roses." in shown
    assert "Shed" not in shown
    assert "It is built." not in shown
    assert "It is built." in focused


def test_missing_notes_are_told_by_a_placeholder_and_empty_ones_are_no_failure(place: Place) -> None:
    folder = notes(place)
    place.configure(f"agents: [{{id: ana, sections: {{memory: {{paths: ['{folder}']}}}}}}]\n")
    assert "No active projects found." in injected(place.ask(x_foveate_agent="ana"))
    assert httpx.get(f"{place.url}/health").json()["status"] == "ok"

    place.configure(f"agents: [{{id: ana, sections: {{memory: {{paths: ['{folder}/none.org']}}}}}}]\n")
    assert "[Awareness not available]" in injected(place.ask(x_foveate_agent="ana"))


def test_notes_are_compared_by_the_embeddings_endpoint_that_is_set(place: Place) -> None:
    beds = {f"bed{number}": f"Row {number} has plants. " * 20 for number in range(8)}
    folder = notes(place, **beds)
    memory = f"paths: ['{folder}'], limit_tokens: 200"
    with embedding_server(
        lambda text: [1.0, 0.0] if "Row 5" in text or "zebra" in text else [0.0, 1.0]
    ) as server:
        plain = f"agents: [{{id: ana, sections: {{memory: {{{memory}}}}}}}]\n"
        place.configure(plain)
        messages = [{"role": "user", "content": "Which plants has the zebra?"}]
        before = json.dumps(place.ask({"messages": messages}, x_foveate_agent="ana"))
        endpoint = f"{{url: '{server.url}', model: tiny, key_variable: EMBEDDINGS_KEY, dimensions: 2}}"
        place.configure(f"agents: [{{id: ana, sections: {{memory: {{{memory}, embeddings: {endpoint}}}}}}}]\n")
        after = json.dumps(place.ask({"messages": messages}, x_foveate_agent="ana"))

    path, key, body = server.heard[0]
    assert (path, key) == ("/v1/embeddings", "Bearer key-of-embeddings")
    assert (body["model"], body["dimensions"]) == ("tiny", 2)
    assert "Row 5 has plants" not in before
    assert "Row 5 has plants" in after


def test_the_newest_lines_of_logs_are_shown(place: Place) -> None:
    log = place.folder / "watch.log"
    log.write_text("".join(f"line {number} of the log\n" for number in range(40)))
    place.configure(f"agents: [{{id: ana, sections: {{logs: ['{log}']}}}}]\n")

    shown = injected(place.ask(x_foveate_agent="ana"))

    assert [number for number in range(40) if f"line {number} of" in shown] == list(range(20, 40))
    assert "of the log" not in injected(place.ask())
