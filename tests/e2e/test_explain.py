"""`foveate explain` as a user runs it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from foveate.store import open_store
from tests.support.processes.commands import ESCAPE, on_terminal, spawn, write
from tests.support.scenarios.cached_sessions import SESSIONS, change_next_turn, claude, next_turn
from tests.support.scenarios.hello_requests import CHAT, REQUESTS
from tests.support.stores.records import TRACE

ROOT = Path(__file__).parents[2]
FIRST_FILE, SECOND_FILE = (ROOT / "examples" / "cache" / name for name in ("first.json", "second.json"))
TIMESTAMPED_PROMPTS = ("It is 2026-11-15T10:00:00Z.", "It is 2026-11-15T10:00:09Z.")


def write_timestamped_requests(tmp_path: Path) -> tuple[Path, Path]:
    """Write two requests with a timestamp at the start of their system prompts."""
    paths = tmp_path / "previous.json", tmp_path / "current.json"
    for path, system, body in zip(paths, TIMESTAMPED_PROMPTS, (claude(), next_turn(claude())), strict=True):
        body["system"][0]["text"] = f"{system}\n{body['system'][0]['text']}"
        write(path, body)
    return paths


def test_the_cause_both_sides_and_the_loss_are_shown(run: Any, tmp_path: Path) -> None:
    outcome = run("explain", "--cache", *write_timestamped_requests(tmp_path), "--price", "3")
    lines = outcome.out.splitlines()

    assert outcome.code == 0
    assert lines[0] == "system[0]: a timestamp changed"
    assert lines[1] == "  before: system[0], bytes 6–26 of text"
    assert TIMESTAMPED_PROMPTS[0] in lines[2]
    assert TIMESTAMPED_PROMPTS[1] in lines[4]
    assert re.search(
        r"are paid again\.\s+Extra\s+cost:\s+the\s+price\s+of\s+~[\d,]+\s+uncached input tokens \(\$0\.\d+\)",
        outcome.out,
    )
    assert "claude-sonnet-4-6: cache rules of claude-sonnet-4.6 at anthropic" in outcome.out
    assert not outcome.err


def test_without_a_price_no_dollars_are_shown(run: Any, tmp_path: Path) -> None:
    outcome = run("explain", "--cache", *write_timestamped_requests(tmp_path))

    assert "uncached input tokens" in " ".join(outcome.out.split())
    assert "$" not in outcome.out


def test_json_output_has_exactly_the_documented_keys(run: Any, tmp_path: Path) -> None:
    outcome = run("explain", "--cache", *write_timestamped_requests(tmp_path), "--json", "--price", "3")
    output = json.loads(outcome.out)

    assert list(output) == [
        "broken", "cause", "because", "place", "field", "before", "after", "same_tokens", "kept_tokens",
        "read_tokens", "lost_tokens", "lost_uncached_tokens", "lost_dollars", "also", "model", "exact", "rules",
    ]  # fmt: skip
    assert (output["broken"], output["cause"], output["field"]) == (True, "timestamp", "text")
    assert output["place"] == {"area": "system", "index": 0, "block": None}
    assert (output["before"]["start_byte"], output["before"]["end_byte"]) == (6, 26)
    assert re.fullmatch(r"0\.0\d+", output["lost_dollars"])
    assert list(output["rules"]) == ["provider", "family", "source", "as_of", "inherited"]
    assert outcome.out.count("\n") == 1


def test_an_unchanged_prefix_is_reported(run: Any, tmp_path: Path) -> None:
    paths = write(tmp_path / "one", claude()), write(tmp_path / "two", next_turn(claude()))
    outcome = run("explain", "--cache", *paths)
    output = json.loads(run("explain", "--cache", *paths, "--json").out)

    assert outcome.code == 0
    assert outcome.out.startswith("no cache miss: the prefix is unchanged\n")
    assert list(output) == ["broken", "kept_tokens", "read_tokens", "remarks", "model", "exact", "rules"]
    assert output["broken"] is False
    assert output["kept_tokens"] == output["read_tokens"] > 1000


@pytest.mark.parametrize(
    ("gap", "cause"), [("400", "expired"), ("6.5m", "expired"), ("2h", "expired"), ("4m", None)]
)
def test_a_gap_can_be_given_in_seconds_or_with_a_unit(
    run: Any, tmp_path: Path, gap: str, cause: str | None
) -> None:
    paths = write(tmp_path / "one", claude()), write(tmp_path / "two", next_turn(claude()))

    assert json.loads(run("explain", "--cache", *paths, "--gap", gap, "--json").out).get("cause") == cause


@pytest.mark.parametrize("name", SESSIONS)
def test_every_format_is_explained(run: Any, tmp_path: Path, name: str) -> None:
    body = SESSIONS[name]()
    paths = write(tmp_path / "one", body), write(tmp_path / "two", change_next_turn(_turn_tools, body))

    assert json.loads(run("explain", "--cache", *paths, "--json").out)["cause"] == "tools_reordered"


def _turn_tools(body: dict[str, Any]) -> None:
    tools = body["tools"]
    (tools[0]["functionDeclarations"] if len(tools) == 1 else tools).reverse()


@pytest.mark.process
def test_one_of_the_two_requests_can_be_standard_input(tmp_path: Path) -> None:
    previous, current = write_timestamped_requests(tmp_path)
    for arguments, stdin_file in (((previous, "-"), current), (("-", current), previous)):
        outcome = spawn("explain", "--cache", *arguments, "--json", stdin=stdin_file.read_bytes())
        assert json.loads(outcome.out)["cause"] == "timestamp"


def test_one_model_can_be_set_for_both_requests(run: Any, tmp_path: Path) -> None:
    body = SESSIONS["openai-chat"]()
    paths = write(tmp_path / "one", body), write(tmp_path / "two", next_turn(body) | {"model": "gpt-5"})
    default_output = json.loads(run("explain", "--cache", *paths, "--json").out)
    output = json.loads(run("explain", "--cache", *paths, "--json", "--model", "gpt-5").out)

    assert (default_output["cause"], default_output["field"]) == ("model", "model")
    assert output["broken"] is False


RESPONSES = {
    "anthropic": {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {}},
    "chat": {"object": "chat.completion", "choices": [], "usage": {}},
    "responses": {"object": "response", "output": [], "usage": {}},
    "gemini": {"candidates": [], "usageMetadata": {}},
    "a stream": 'event: message_start\ndata: {"type": "message_start"}\n\n',
}


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_given_as_a_request_is_reported(run: Any, tmp_path: Path, name: str) -> None:
    response_file = write(tmp_path / "answer", RESPONSES[name])
    outcome = run("explain", "--cache", FIRST_FILE, response_file)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"foveate: {response_file}: this is a response, but a request is expected\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "the request is not JSON: Input data was truncated"),
        ("no JSON", "the request is not JSON"),
        ("[]", "the request is JSON, but not an object"),
        ("{}", "no messages in the request"),
        ('{"model": "gpt-4o", "messages": 5}', "`messages` must be a list, not a number"),
    ],
)
def test_an_invalid_request_is_reported_in_one_line_with_its_file(
    run: Any, tmp_path: Path, content: str, reason: str
) -> None:
    path = write(tmp_path / "body", content)
    for arguments in ((path, SECOND_FILE), (FIRST_FILE, path)):
        outcome = run("explain", "--cache", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"foveate: {path}: {reason}")
        assert outcome.err.count("\n") == 1


def test_requests_of_two_formats_are_rejected_with_both_names(run: Any, tmp_path: Path) -> None:
    paths = write(tmp_path / "one", CHAT), write(tmp_path / "two", REQUESTS["anthropic"])
    outcome = run("explain", "--cache", *paths, "--json")

    assert outcome.code == 2
    assert json.loads(outcome.out)["error"]["code"] == "malformed_request"
    assert f"{paths[0]} (openai-chat) and {paths[1]} (anthropic) have different formats" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((str(FIRST_FILE), str(SECOND_FILE)), "request bodies can only be explained with --cache: add it"),
        (("--cache", "-", "-"), "only one of the two requests can be standard input"),
        (("--cache", str(FIRST_FILE), str(SECOND_FILE), "--gap", "soon"), "--gap takes seconds"),
        (("--cache", str(FIRST_FILE), str(SECOND_FILE), "--gap=-5"), "--gap takes seconds"),
        (("--cache", str(FIRST_FILE), str(SECOND_FILE), "--price", "much"), "--price takes dollars"),
        (("--cache", str(FIRST_FILE), str(SECOND_FILE), "--price=-1"), "--price takes dollars"),
        (("--cache", str(FIRST_FILE), str(SECOND_FILE), "--price", "nan"), "--price takes dollars"),
        (("--cache", "missing.json", str(SECOND_FILE)), "missing.json: No such file or directory"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line(run: Any, arguments: tuple[str, ...], reason: str) -> None:
    outcome = run("explain", *arguments)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"foveate: {reason}")


@pytest.mark.process
def test_a_terminal_gets_colours_unless_disabled_and_lines_that_fit() -> None:
    arguments = ("explain", "--cache", str(FIRST_FILE), str(SECOND_FILE))
    uncoloured = on_terminal(*arguments, columns=40, env={"NO_COLOR": "1"})

    assert f"{ESCAPE}[1m" in on_terminal(*arguments, columns=80)
    assert ESCAPE not in uncoloured
    assert max(map(len, uncoloured.splitlines())) <= 40
    assert "uncached" in uncoloured


def test_control_sequences_are_escaped(run: Any, tmp_path: Path) -> None:
    previous, current = claude(), next_turn(claude())
    current["messages"][0]["content"] = "\x1b[2Jgone"
    outcome = run("explain", "--cache", write(tmp_path / "one", previous), write(tmp_path / "two", current))

    assert ESCAPE not in outcome.out
    assert "\\x1b[2Jgone" in outcome.out


def test_the_example_in_the_guide_matches_the_output(run: Any) -> None:
    text = (ROOT / "docs" / "guides" / "cache-misses.md").read_text(encoding="utf-8")
    example = text.split("second.json --price 3\n")[1].split("\n\n")[0]
    output = run("explain", "--cache", FIRST_FILE, SECOND_FILE, "--price", "3").out

    assert " ".join(example.split()) == " ".join(output.split())


def test_an_unused_gateway_has_no_sessions_to_list(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOVEATE_HOME", str(tmp_path))
    outcome, json_outcome = run("explain"), run("explain", "--json")
    assert run("explain", "--last", str(10**30)).code == 2, "more than a database can count to"

    assert (outcome.code, outcome.out) == (0, "")
    assert "start a gateway with `foveate serve`" in outcome.err
    assert (json_outcome.code, json.loads(json_outcome.out)) == (0, {"sessions": []})
    assert run("explain", "abc").code == 1


def test_the_command_reads_the_store_of_the_configuration(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the gateway used the store of foveate.yaml, and commands used another one."""

    async def fill() -> None:
        async with await open_store(f"sqlite:///{tmp_path}/other.sqlite") as store:
            await store.traces.save([TRACE])

    asyncio.run(fill())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOVEATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FOVEATE_STORE", raising=False)
    write_config = (tmp_path / "foveate.yaml").write_text
    write_config(f"store: {{url: 'sqlite:///{tmp_path}/other.sqlite'}}\n")

    assert json.loads(run("explain", "--json").out)["sessions"][0]["session_id"] == TRACE.session_id
    monkeypatch.setenv("FOVEATE_STORE", f"sqlite:///{tmp_path}/none.sqlite")
    assert json.loads(run("explain", "--json").out) == {"sessions": []}
    monkeypatch.delenv("FOVEATE_STORE")
    write_config("stroe: {}\n")
    assert "foveate.yaml:1" in run("explain").err
