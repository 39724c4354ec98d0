"""`foveate explain` as a user runs it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from foveate.store import open_store
from tests.e2e.command import CHAT, ESCAPE, REQUESTS, on_terminal, spawn, write
from tests.support.scenarios.cached_sessions import SESSIONS, changed, claude, next_turn
from tests.support.stores.records import TRACE

ROOT = Path(__file__).parents[2]
FIRST, SECOND = (ROOT / "examples" / "cache" / name for name in ("first.json", "second.json"))
STAMPED = ("It is 2026-11-15T10:00:00Z.", "It is 2026-11-15T10:00:09Z.")


def stamped(tmp_path: Path) -> tuple[Path, Path]:
    """Two requests with a timestamp at the start of their system prompts."""
    paths = tmp_path / "previous.json", tmp_path / "current.json"
    for path, stamp, body in zip(paths, STAMPED, (claude(), next_turn(claude())), strict=True):
        body["system"][0]["text"] = f"{stamp}\n{body['system'][0]['text']}"
        write(path, body)
    return paths


def test_the_cause_both_sides_and_the_loss_are_shown(run: Any, tmp_path: Path) -> None:
    outcome = run("explain", "--cache", *stamped(tmp_path), "--price", "3")
    lines = outcome.out.splitlines()

    assert outcome.code == 0
    assert lines[0] == "system[0]: a timestamp changed"
    assert lines[1] == "  before  system[0], bytes 6–26 of text"
    assert STAMPED[0] in lines[2]
    assert STAMPED[1] in lines[4]
    assert re.search(
        r"are paid again, which\s+costs as much as ~[\d,]+ uncached input tokens, \$0\.\d+", outcome.out
    )
    assert "claude-sonnet-4-6: the cache of claude-sonnet-4.6 at anthropic" in outcome.out
    assert not outcome.err


def test_without_a_price_no_dollars_are_shown(run: Any, tmp_path: Path) -> None:
    outcome = run("explain", "--cache", *stamped(tmp_path))

    assert "uncached input tokens" in " ".join(outcome.out.split())
    assert "$" not in outcome.out


def test_json_output_has_exactly_the_documented_keys(run: Any, tmp_path: Path) -> None:
    outcome = run("explain", "--cache", *stamped(tmp_path), "--json", "--price", "3")
    shown = json.loads(outcome.out)

    assert list(shown) == [
        "broken", "cause", "because", "place", "field", "before", "after", "same_tokens", "kept_tokens",
        "read_tokens", "lost_tokens", "lost_uncached_tokens", "lost_dollars", "also", "model", "exact", "rules",
    ]  # fmt: skip
    assert (shown["broken"], shown["cause"], shown["field"]) == (True, "timestamp", "text")
    assert shown["place"] == {"area": "system", "index": 0, "block": None}
    assert (shown["before"]["start_byte"], shown["before"]["end_byte"]) == (6, 26)
    assert re.fullmatch(r"0\.0\d+", shown["lost_dollars"])
    assert list(shown["rules"]) == ["provider", "family", "source", "as_of", "inherited"]
    assert outcome.out.count("\n") == 1


def test_an_unchanged_prefix_is_reported(run: Any, tmp_path: Path) -> None:
    paths = write(tmp_path / "one", claude()), write(tmp_path / "two", next_turn(claude()))
    outcome = run("explain", "--cache", *paths)
    shown = json.loads(run("explain", "--cache", *paths, "--json").out)

    assert outcome.code == 0
    assert outcome.out.startswith("the prefix holds\n")
    assert list(shown) == ["broken", "kept_tokens", "read_tokens", "remarks", "model", "exact", "rules"]
    assert shown["broken"] is False
    assert shown["kept_tokens"] == shown["read_tokens"] > 1000


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
    paths = write(tmp_path / "one", body), write(tmp_path / "two", changed(_turn_tools, body))

    assert json.loads(run("explain", "--cache", *paths, "--json").out)["cause"] == "tools_reordered"


def _turn_tools(body: dict[str, Any]) -> None:
    tools = body["tools"]
    (tools[0]["functionDeclarations"] if len(tools) == 1 else tools).reverse()


@pytest.mark.process
def test_one_of_the_two_requests_can_be_standard_input(tmp_path: Path) -> None:
    previous, current = stamped(tmp_path)
    for arguments, given in (((previous, "-"), current), (("-", current), previous)):
        outcome = spawn("explain", "--cache", *arguments, "--json", stdin=given.read_bytes())
        assert json.loads(outcome.out)["cause"] == "timestamp"


def test_one_model_can_be_set_for_both_requests(run: Any, tmp_path: Path) -> None:
    body = SESSIONS["openai-chat"]()
    paths = write(tmp_path / "one", body), write(tmp_path / "two", next_turn(body) | {"model": "gpt-5"})
    plain = json.loads(run("explain", "--cache", *paths, "--json").out)
    result = json.loads(run("explain", "--cache", *paths, "--json", "--model", "gpt-5").out)

    assert (plain["cause"], plain["field"]) == ("model", "model")
    assert result["broken"] is False


ANSWERS = {
    "anthropic": {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {}},
    "chat": {"object": "chat.completion", "choices": [], "usage": {}},
    "responses": {"object": "response", "output": [], "usage": {}},
    "gemini": {"candidates": [], "usageMetadata": {}},
    "a stream": 'event: message_start\ndata: {"type": "message_start"}\n\n',
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_response_given_as_a_request_is_reported(run: Any, tmp_path: Path, name: str) -> None:
    answer = write(tmp_path / "answer", ANSWERS[name])
    outcome = run("explain", "--cache", FIRST, answer)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"foveate: {answer}: this is an answer, and a request is expected\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "the request is not JSON: Input data was truncated"),
        ("no JSON", "the request is not JSON"),
        ("[]", "the request is JSON, but not an object"),
        ("{}", "no messages in the request"),
        ('{"model": "gpt-4o", "messages": 5}', "`messages` is a number, where a list is expected"),
    ],
)
def test_an_invalid_request_is_reported_in_one_line_with_its_file(
    run: Any, tmp_path: Path, content: str, reason: str
) -> None:
    path = write(tmp_path / "body", content)
    for arguments in ((path, SECOND), (FIRST, path)):
        outcome = run("explain", "--cache", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"foveate: {path}: {reason}")
        assert outcome.err.count("\n") == 1


def test_requests_of_two_formats_are_rejected_with_both_names(run: Any, tmp_path: Path) -> None:
    paths = write(tmp_path / "one", CHAT), write(tmp_path / "two", REQUESTS["anthropic"])
    outcome = run("explain", "--cache", *paths, "--json")

    assert outcome.code == 2
    assert json.loads(outcome.out)["error"]["code"] == "malformed_request"
    assert f"{paths[0]} (openai-chat) and {paths[1]} (anthropic) are of two formats" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((str(FIRST), str(SECOND)), "of request bodies only the cache can be explained: add --cache"),
        (("--cache", "-", "-"), "only one of the two can be standard input"),
        (("--cache", str(FIRST), str(SECOND), "--gap", "soon"), "--gap takes seconds"),
        (("--cache", str(FIRST), str(SECOND), "--gap=-5"), "--gap takes seconds"),
        (("--cache", str(FIRST), str(SECOND), "--price", "much"), "--price takes dollars"),
        (("--cache", str(FIRST), str(SECOND), "--price=-1"), "--price takes dollars"),
        (("--cache", str(FIRST), str(SECOND), "--price", "nan"), "--price takes dollars"),
        (("--cache", "missing.json", str(SECOND)), "missing.json: No such file or directory"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line(run: Any, arguments: tuple[str, ...], reason: str) -> None:
    outcome = run("explain", *arguments)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"foveate: {reason}")


@pytest.mark.process
def test_a_terminal_gets_colours_unless_disabled_and_lines_that_fit() -> None:
    arguments = ("explain", "--cache", str(FIRST), str(SECOND))
    plain = on_terminal(*arguments, columns=40, env={"NO_COLOR": "1"})

    assert f"{ESCAPE}[1m" in on_terminal(*arguments, columns=80)
    assert ESCAPE not in plain
    assert max(map(len, plain.splitlines())) <= 40
    assert "uncached" in plain


def test_control_sequences_are_escaped(run: Any, tmp_path: Path) -> None:
    one, other = claude(), next_turn(claude())
    other["messages"][0]["content"] = "\x1b[2Jgone"
    outcome = run("explain", "--cache", write(tmp_path / "one", one), write(tmp_path / "two", other))

    assert ESCAPE not in outcome.out
    assert "\\x1b[2Jgone" in outcome.out


def test_the_example_in_the_reference_matches_the_output(run: Any) -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    example = text.split("second.json --price 3\n")[1].split("\n\n")[0]
    shown = run("explain", "--cache", FIRST, SECOND, "--price", "3").out

    assert " ".join(example.split()) == " ".join(shown.split())


def test_an_unused_gateway_has_no_sessions_to_list(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOVEATE_HOME", str(tmp_path))
    listed, as_json = run("explain"), run("explain", "--json")
    assert run("explain", "--last", str(10**30)).code == 2, "more than a database can count to"

    assert (listed.code, listed.out) == (0, "")
    assert "`foveate serve` starts one" in listed.err
    assert (as_json.code, json.loads(as_json.out)) == (0, {"sessions": []})
    assert run("explain", "abc").code == 1


def test_the_command_reads_the_store_of_the_configuration(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the gateway used the store of foveate.yaml, and commands used another one."""

    async def keep() -> None:
        async with await open_store(f"sqlite:///{tmp_path}/kept.sqlite") as store:
            await store.traces.save([TRACE])

    asyncio.run(keep())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOVEATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FOVEATE_STORE", raising=False)
    write_text = (tmp_path / "foveate.yaml").write_text
    write_text(f"store: {{url: 'sqlite:///{tmp_path}/kept.sqlite'}}\n")

    assert json.loads(run("explain", "--json").out)["sessions"][0]["session_id"] == TRACE.session_id
    monkeypatch.setenv("FOVEATE_STORE", f"sqlite:///{tmp_path}/none.sqlite")
    assert json.loads(run("explain", "--json").out) == {"sessions": []}
    monkeypatch.delenv("FOVEATE_STORE")
    write_text("stroe: {}\n")
    assert "foveate.yaml:1" in run("explain").err
