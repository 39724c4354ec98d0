"""`foveate memory` on a small folder of notes: views, queries and outlines without private notes."""

import json
from pathlib import Path
from typing import Any

import pytest

import foveate
from tests.support.processes.commands import Outcome, spawn

PRIVATE = (
    "shed",
    "4711",
    "flowerpot",
    "Abernathy",
    "Spare",
    "Diary",
    "Ruth",
    "pear",
    "surprise",
    "Wrist",
    "doctor",
)
"""Words of the example notes that are private; the shed itself is mentioned elsewhere too."""


@pytest.fixture(scope="session")
def notes(root: Path) -> Path:
    return root / "examples" / "notes"


LEFT_OUT_MESSAGE = "foveate: notes with a privacy tag, or with something that may be one, are left out\n"


@pytest.mark.parametrize("command", ["render", "query", "outline"])
def test_hidden_notes_are_mentioned_without_details(run: Any, tmp_path: Path, command: str) -> None:
    """Regression: tagged items disappeared without a message."""
    note = tmp_path / "week.md"
    outcomes = []
    for private in ("", "- [ ] Set the repo #private on the forge\n", "- a #private\n- b #private\n"):
        note.write_text(f"# Week\n\n{private}- public\n", encoding="utf-8")
        outcomes.append(
            (run("memory", command, note).err, json.loads(run("memory", command, note, "--json").out))
        )
    (error_without_private, without_private), (error_with_one, with_private), (error_with_two, _) = outcomes

    assert LEFT_OUT_MESSAGE not in error_without_private
    assert error_with_one.startswith(LEFT_OUT_MESSAGE)
    assert error_with_one == error_with_two
    assert "week" not in error_with_one
    assert "forge" not in error_with_one
    assert (
        without_private["private_left_out"],
        with_private["private_left_out"],
        with_private["problems"],
    ) == (False, True, [])


def find_private_words(output: str) -> list[str]:
    public = output.replace("and a shed that leaks", "")
    return [word for word in PRIVATE if word in public]


def test_the_focus_is_shown_completely_with_its_ancestors_and_the_rest_as_an_outline(
    run: Any, notes: Path
) -> None:
    outcome = run("memory", "render", notes, "--focus", "order-glass", "--limit-tokens", "150")
    lines = outcome.out.splitlines()

    assert outcome.code == 0
    assert "*** TODO Order the glass <<order-glass>>" in lines
    assert "Horticultural glass from Weller's, who deliver on Thursdays. They cut to size for nothing." in lines
    assert "** TODO [#A] Mend the glasshouse <<glasshouse>> :project:" in lines
    assert foveate.count(outcome.out.rstrip("\n")).tokens <= 150
    assert outcome.err.startswith("foveate: ")
    assert " of 150 tokens, gpt-4o, exact; 20 nodes: " in outcome.err
    assert outcome.err.count("\n") == 2, "that something is left out, and how long it is"


def test_matches_of_a_query_are_shown_completely(run: Any, notes: Path) -> None:
    outcome = run("memory", "render", notes, "--query", "heater thermostat trips", "--limit-tokens", "200")

    assert "press the red button for five seconds" in outcome.out
    assert foveate.count(outcome.out.rstrip("\n")).tokens <= 200


def test_a_focus_can_be_given_by_its_title(run: Any, notes: Path) -> None:
    by_title = run("memory", "render", notes, "--focus", "Order the glass")

    assert by_title.out == run("memory", "render", notes, "--focus", "order-glass").out
    assert by_title.code == 0


def test_nothing_outside_a_scope_is_shown(run: Any, notes: Path) -> None:
    outcome = run("memory", "render", notes, "--scope", "beds", "--query", "glass for the broken panes")

    assert outcome.code == 0
    assert "Roses" in outcome.out
    assert not any(word in outcome.out for word in ("Weller", "Committee", "heater"))


def test_markdown_output_has_ids_too(run: Any, notes: Path) -> None:
    outcome = run("memory", "render", notes, "--focus", "roses", "--format", "markdown")

    assert "### Roses {#roses}\nNine bushes along the wall." in outcome.out


def test_without_a_limit_the_outline_has_two_levels_and_the_focus_is_complete(run: Any, notes: Path) -> None:
    outcome = run("memory", "render", notes, "--limit-tokens", "none", "--focus", "committee")
    lines = outcome.out.splitlines()

    assert any(line.startswith("*** Roses ") for line in lines)
    assert not any("Nine bushes" in line for line in lines)
    assert "tokens, gpt-4o, exact; 20 nodes: " in outcome.err


def test_json_has_the_text_and_every_node_with_its_score(run: Any, notes: Path) -> None:
    arguments = ("memory", "render", notes, "--query", "watering roses", "--limit-tokens", "300")
    outcome = run(*arguments, "--json")
    report = json.loads(outcome.out)

    assert (outcome.code, outcome.err) == (0, "")
    assert list(report)[:4] == ["tokens", "limit_tokens", "text", "nodes"]
    assert report["text"] == run(*arguments).out.removesuffix("\n")
    assert foveate.count(report["text"]).tokens == report["tokens"] <= report["limit_tokens"] == 300
    assert all(list(node) == ["id", "title", "level", "score", "tokens"] for node in report["nodes"])
    assert all(node["title"] in report["text"] for node in report["nodes"])
    # A short file that is shown whole is named once.
    assert all(node["id"] in report["text"] for node in report["nodes"] if node["level"] != "full")
    assert {node["level"] for node in report["nodes"]} <= {"full", "excerpt", "title"}
    nodes = {node["id"]: node for node in report["nodes"]}
    assert nodes["roses"]["level"] == "full"
    assert 1 >= nodes["roses"]["score"] > nodes["committee"]["score"] >= 0
    assert report["problems"] == []
    assert report["version"]


def test_the_id_of_a_focus_given_by_title_is_reported(run: Any, notes: Path) -> None:
    report = json.loads(run("memory", "render", notes, "--focus", "Order the glass", "--json").out)

    assert report["focus"] == "order-glass"
    assert next(node for node in report["nodes"] if node["id"] == "order-glass")["score"] == 1.0


def test_tokens_are_counted_for_the_model(run: Any, notes: Path) -> None:
    outcome = run("memory", "render", notes, "--limit-tokens", "200", "--model", "claude-sonnet-4-5", "--json")
    report = json.loads(outcome.out)
    count = foveate.count(report["text"], model="claude-sonnet-4-5")

    assert report["model"] == "claude-sonnet-4-5"
    assert report["count"] == {"tokens": count.tokens, "exact": False, "upper": count.upper}
    assert report["count"]["upper"] <= 200


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (("--tag", "project"), ["glasshouse", "order-glass", "spring-sowing"]),
        (("--type", "project"), ["glasshouse", "spring-sowing"]),
        (("--todo", "WAITING"), ["Borrow the long ladder"]),
        (("--todo", "done"), ["Measure the panes"]),
        (("--type", "skill"), ["Watering"]),
        (("--text", "seed bench"), ["glasshouse", "After the storm"]),
        (("--text", '"press the red button"'), ["The heater"]),
        (("--text", "november", "--since", "2026-11-05", "--until", "2026-11-05"), ["meeting-november"]),
        (("--tag", "nothing"), []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_query_finds_nodes_that_match_all_conditions(
    run: Any, notes: Path, query: tuple[str, ...], expected: list[str]
) -> None:
    """By id if they have their own."""
    outcome = run("memory", "query", notes, *query, "--json")
    nodes = json.loads(outcome.out)["nodes"]

    assert outcome.code == 0
    named = [node["id"] if node["id"] in expected else node["title"] for node in nodes]
    assert [name for name in named if name in expected] == expected
    assert len(named) == len(expected) or query == ("--tag", "project")


def test_a_query_prints_one_line_per_node(run: Any, notes: Path) -> None:
    outcome = run("memory", "query", notes, "--todo", "open", "--type", "project")

    assert outcome == Outcome(
        0,
        "glasshouse     TODO  Mend the glasshouse     :garden:project:  garden.org\n"
        "spring-sowing  TODO  Plan the spring sowing  :garden:project:  garden.org\n",
        outcome.err,
    )
    assert outcome.err.startswith(f"{LEFT_OUT_MESSAGE}foveate: 2 of ")


def test_found_nodes_are_printed_with_their_dates(run: Any, notes: Path) -> None:
    outcome = run("memory", "query", notes, "--text", "Horticultural", "--json")
    (node,) = json.loads(outcome.out)["nodes"]

    assert node == {
        "id": "order-glass",
        "title": "Order the glass",
        "type": "task",
        "todo": "TODO",
        "is_done": False,
        "priority": "",
        "tags": ["garden", "project"],
        "path": str(notes / "garden.org"),
        "parent": "glasshouse",
        "modified": "2026-11-02T00:00:00",
        "scheduled": None,
        "deadline": "2026-11-18T17:00",
    }


def test_an_outline_is_the_tree_with_ids_and_file_sizes(run: Any, notes: Path) -> None:
    outcome = run("memory", "outline", notes)
    lines = outcome.out.splitlines()

    assert (outcome.code, outcome.err) == (0, LEFT_OUT_MESSAGE)
    assert "  Beds  <<beds>>" in lines
    assert "    Roses  <<roses>>" in lines
    assert "  TODO [#A] Mend the glasshouse  <<glasshouse>>  :project:" in lines
    garden = next(line for line in lines if line.startswith("The garden  <<"))
    assert ">>  :garden:  garden.org  10 nodes, " in garden
    assert garden.endswith(" tokens")


def test_a_depth_limits_the_outline(run: Any, notes: Path) -> None:
    files = run("memory", "outline", notes, "--depth", "0").out.splitlines()
    first = run("memory", "outline", notes, "--depth", "1").out.splitlines()

    assert [line.split("  ")[0] for line in files] == ["The garden", "Glasshouse log", "Journal", "Watering"]
    assert set(files) < set(first)
    assert "    Roses  <<roses>>" not in first


def test_an_outline_as_json_has_the_depth_of_each_node(run: Any, notes: Path) -> None:
    outcome = run("memory", "outline", notes, "--json")
    outline = json.loads(outcome.out)
    nodes = {node["id"]: node for node in outline["nodes"]}

    assert nodes["order-glass"] == {
        "id": "order-glass",
        "title": "Order the glass",
        "depth": 2,
        "parent": "glasshouse",
        "todo": "TODO",
        "tags": [],
    }
    assert [Path(file["path"]).name for file in outline["files"]] == [
        "garden.org",
        "glasshouse.md",
        "journal.org",
        "watering.md",
    ]
    assert sum(file["nodes"] for file in outline["files"]) == len(nodes)
    assert all(file["tokens"] > 0 for file in outline["files"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("render", "--limit-tokens", "none"),
        ("render", "--query", "the key of the shed, the pear tree for Ruth, the doctor"),
        ("render", "--query", "Mrs Abernathy 4711 flowerpot", "--limit-tokens", "none"),
        ("render", "--focus", "The garden", "--format", "markdown"),
        ("query",),
        ("query", "--text", "4711"),
        ("query", "--tag", "private"),
        ("outline",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("json_option", [(), ("--json",)], ids=["lines", "json"])
def test_nothing_private_is_printed(
    run: Any, notes: Path, arguments: tuple[str, ...], json_option: tuple[str, ...]
) -> None:
    command, *options = arguments
    outcome = run("memory", command, notes, *options, *json_option)

    assert find_private_words(outcome.out + outcome.err) == []


@pytest.mark.parametrize("option", ["--focus", "--scope"])
@pytest.mark.parametrize("name", ["shed-key", "Spare key", "Diary", "Visit to the doctor"])
def test_private_notes_leave_no_trace(run: Any, notes: Path, option: str, name: str) -> None:
    private = run("memory", "render", notes, option, name)
    absent = run("memory", "render", notes, option, "never-there")

    assert (private.code, private.out) == (absent.code, absent.out) == (2, "")
    assert private.err.replace(name, "never-there") == absent.err


def test_additional_privacy_tags_extend_the_defaults(run: Any, notes: Path) -> None:
    repeated = run("memory", "outline", notes, "--private", "log", "--private", ":Project:")
    joined = run("memory", "outline", notes, "--private", "log,project")
    default = run("memory", "outline", notes)

    assert repeated.out == joined.out
    assert set(repeated.out.splitlines()) - set(default.out.splitlines()) == {
        line for line in repeated.out.splitlines() if line.startswith("The garden")
    }
    assert "Glasshouse log" not in repeated.out
    assert "Order the glass" not in repeated.out
    assert find_private_words(repeated.out) == []


@pytest.mark.process
def test_output_is_the_same_in_every_process(notes: Path) -> None:
    arguments = ("memory", "render", notes, "--query", "watering", "--limit-tokens", "400", "--json")

    outcomes = {spawn(*arguments, env={"PYTHONHASHSEED": seed}).out for seed in ("1", "2", "3")}
    assert len(outcomes) == 1
    assert json.loads(outcomes.pop())["nodes"]


def test_the_newest_lines_of_logs_are_printed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "watch.log"
    log.write_text("".join(f"line {number}\n" for number in range(30)))

    assert run("memory", "logs", str(log)).out.splitlines() == [f"line {number}" for number in range(10, 30)]
    assert run("memory", "logs", str(log), "--lines", "2").out.splitlines() == ["line 28", "line 29"]
    monkeypatch.setenv("CONTEXT_LOG_LIMIT", "1")
    assert json.loads(run("memory", "logs", str(log), "--json").out)["logs"][0]["lines"] == ["line 29"]
    monkeypatch.setenv("CONTEXT_LOG_LIMIT", "abc")
    assert "CONTEXT_LOG_LIMIT" in run("memory", "logs", str(log)).err
    assert run("memory", "logs", str(tmp_path / "none.log"), "--lines", "1").code == 1


def test_a_skill_is_printed_by_name(run: Any, notes: Path) -> None:
    outcome = run("memory", "skill", "WATERING", "--folder", str(notes / "skills"))

    assert outcome.code == 0
    assert "# Watering" in outcome.out
    assert "no skill is named" in run("memory", "skill", "none", "--folder", str(notes / "skills")).err
