"""`foveate assemble` as a user runs it, in this process or, if necessary, in its own."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

import foveate
from tests.support.processes.commands import spawn, write

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

RULES = "Answer in one word."
LOG = [
    "started the engine",
    "opened the valve",
    "read 41 degrees",
    "read 43 degrees",
    "closed the valve",
    "waiting for word",
]
UNCUT = "\n\n".join((RULES, "\n".join(LOG)))
TRUNCATED = f"{RULES}\n\nclosed the valve\nwaiting for word\n[...older entries truncated]"
SECTIONS = [
    {"name": "rules", "text": RULES, "priority": "required"},
    {"name": "log", "items": LOG, "priority": "low"},
]
UNKNOWN_MODEL = "a-model-of-next-year"


@pytest.fixture(autouse=True)
def _clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONTEXT_MAX_TOKENS", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sections(tmp_path: Path) -> Path:
    return write(tmp_path / "sections.json", SECTIONS)


@pytest.fixture
def small_budget(tmp_path: Path) -> Path:
    """A budget that is too small for the whole log."""
    return write(tmp_path / "budget.yaml", "total_tokens: 20\n")


def test_help_shows_the_options_and_an_example(run: Any) -> None:
    assert "assemble" in run("--help").out
    help_text = run("assemble", "--help").out

    assert "--show-budget" in help_text
    assert "foveate assemble --sections parts/ --budget budget.yaml" in help_text


def test_json_output_has_exactly_the_documented_keys(run: Any, sections: Path, small_budget: Path) -> None:
    outcome = run("assemble", "--sections", sections, "--budget", small_budget, "--json")
    output = json.loads(outcome.out)

    assert (outcome.code, outcome.err, outcome.out.count("\n")) == (0, "", 1)
    assert list(output) == [
        *("limit_tokens", "tokens", "text", "sections", "cuts", "count", "model", "limit_source", "unmatched")
    ]
    assert [list(section) for section in output["sections"]] == [
        ["name", "priority", "before", "after", "action"]
    ] * 2
    assert [list(cut) for cut in output["cuts"]] == [["section", "rung", "before", "after", "reason"]]
    assert output["limit_tokens"] == 20
    assert output["text"] == TRUNCATED
    assert output["tokens"] == foveate.count(output["text"]).tokens
    assert output["count"] == {"tokens": output["tokens"], "exact": True, "upper": output["tokens"]}
    assert (output["model"], output["limit_source"], output["unmatched"]) == ("gpt-4o", "call", [])
    rules, log = output["sections"]
    assert rules == {"name": "rules", "priority": "required", "before": 5, "after": 5, "action": "kept"}
    assert log == {"name": "log", "priority": "low", "before": 25, "after": 14, "action": "truncated"}
    (cut,) = output["cuts"]
    assert cut["reason"]
    assert {**cut, "reason": ""} == {
        "section": "log",
        "rung": "truncate_low_priority",
        "before": 25,
        "after": 14,
        "reason": "",
    }


def test_json_output_matches_the_library_result(run: Any) -> None:
    from foveate.config import load_budget, load_sections

    folder, budget = EXAMPLES / "night_watch", EXAMPLES / "budget.yaml"
    output = json.loads(run("assemble", "--sections", folder, "--budget", budget, "--json").out)
    prompt = foveate.assemble(load_sections(folder), load_budget(budget))

    assert output["text"] == prompt.text
    assert [section["name"] for section in output["sections"]] == [section.name for section in prompt.sections]
    assert [cut["reason"] for cut in output["cuts"]] == [cut.reason for cut in prompt.cuts]


def test_each_section_has_a_row_with_its_tokens(run: Any, sections: Path, small_budget: Path) -> None:
    outcome = run("assemble", "--sections", sections, "--budget", small_budget)
    heading, rules, log = outcome.out.splitlines()

    assert (outcome.code, outcome.err) == (0, "")
    assert heading == "19 of 20 tokens (95%), gpt-4o, exact"
    assert re.fullmatch(r"rules  required  █+ +5 of  5", rules)
    assert re.fullmatch(r"log    low       █+░+  14 of 25  truncated", log)


def test_a_folder_has_one_file_per_section_and_the_budget_refers_to_them_by_name(
    run: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "10-log.txt", "\n".join(LOG) + "\n")
    write(folder / "2-rules.md", RULES + "\n")
    budget = write(
        tmp_path / "budget.yaml",
        "total_tokens: 20\nsections:\n  rules: {priority: required}\n  log: {priority: low, keep: newest}\n",
    )
    output = json.loads(run("assemble", "--sections", folder, "--budget", budget, "--json").out)

    assert [(section["name"], section["priority"]) for section in output["sections"]] == [
        ("rules", "required"),
        ("log", "low"),
    ]
    assert output["text"] == TRUNCATED


@pytest.mark.process
@pytest.mark.parametrize(
    "content",
    [json.dumps(SECTIONS), f"- {{name: rules, text: {RULES}}}\n- name: log\n  items: [{', '.join(LOG)}]\n"],
    ids=["JSON", "YAML"],
)
def test_a_dash_reads_the_sections_from_standard_input(content: str) -> None:
    outcome = spawn("assemble", "--sections", "-", "--json", stdin=content.encode())

    assert outcome.code == 0
    assert json.loads(outcome.out)["text"] == UNCUT


@pytest.mark.process
def test_a_dash_reads_the_budget_from_standard_input(sections: Path) -> None:
    outcome = spawn("assemble", "--sections", sections, "--budget", "-", "--json", stdin=b"total_tokens: 20\n")

    assert outcome.code == 0
    assert json.loads(outcome.out)["text"] == TRUNCATED


def test_a_total_overrides_only_the_total_of_the_budget(
    run: Any, sections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXT_MAX_TOKENS", "200")
    budget = write(
        tmp_path / "budget.yaml",
        "total_tokens: 4000\noutput_reserve: 4\nladder: drop_low_priority\n",
    )
    without_file = json.loads(run("assemble", "--sections", sections, "--total-tokens", "20", "--json").out)
    with_file = json.loads(
        run("assemble", "--sections", sections, "--budget", budget, "--total-tokens", "24", "--json").out
    )

    assert (without_file["limit_tokens"], without_file["limit_source"], without_file["text"]) == (
        20,
        "call",
        TRUNCATED,
    )
    assert (with_file["limit_tokens"], with_file["limit_source"], with_file["text"]) == (20, "call", RULES)
    assert with_file["cuts"][0]["rung"] == "drop_low_priority"


def test_warnings_are_printed_next_to_the_chart_and_listed_in_json(
    run: Any, sections: Path, tmp_path: Path
) -> None:
    budget = write(tmp_path / "budget.yaml", "sections: {Log: {priority: low}, weather: {priority: low}}\n")
    arguments = ("assemble", "--sections", sections, "--budget", budget, "--model", UNKNOWN_MODEL)
    warnings = [
        f"foveate: the window of '{UNKNOWN_MODEL}' is unknown, assuming 16,384 tokens: "
        "set total_tokens in the budget",
        "foveate: the budget has a rule for 'Log', but no such section exists: did you mean 'log'?",
        "foveate: the budget has rules for 'weather', but no such section exists",
    ]
    as_json = run(*arguments, "--json")
    report = json.loads(as_json.out)

    assert run(*arguments).err.splitlines() == warnings[:2]
    assert run(*arguments, "--explain").err.splitlines() == warnings
    assert as_json.err == ""
    assert (report["limit_source"], report["unmatched"]) == ("default", ["Log", "weather"])


def test_every_cut_is_explained(run: Any, sections: Path, small_budget: Path) -> None:
    truncated = run("assemble", "--sections", sections, "--budget", small_budget, "--explain").out
    untruncated = run("assemble", "--sections", sections, "--explain").out

    assert re.search(r"\n\nlog  25 → 14  truncate_low_priority: \S.*\n", truncated)
    assert untruncated.endswith("\n\nno cuts\n")


def test_the_prompt_can_show_the_agent_its_budget(run: Any, sections: Path) -> None:
    report = json.loads(run("assemble", "--sections", sections, "--show-budget", "--json").out)

    assert f"\n\n## Context Budget\nUsing {report['tokens']}/128000 tokens (0%)\n- rules: 5\n" in report["text"]
    assert [section["name"] for section in report["sections"]] == ["rules", "log", "context_budget"]


def test_an_empty_list_gives_an_empty_prompt(run: Any, tmp_path: Path) -> None:
    empty = write(tmp_path / "sections.json", [])

    assert run("assemble", "--sections", empty).out == "0 of 128,000 tokens (0%), gpt-4o, exact\n"
    assert json.loads(run("assemble", "--sections", empty, "--json").out)["text"] == ""


def test_a_budget_can_name_a_ladder_unless_a_file_has_that_name(
    run: Any, sections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXT_MAX_TOKENS", "20")
    monkeypatch.chdir(tmp_path)
    arguments = ("assemble", "--sections", sections, "--budget", "drop_low_priority", "--json")
    report = json.loads(run(*arguments).out)
    write(tmp_path / "drop_low_priority", "total_tokens: 40\n")
    file = json.loads(run(*arguments).out)

    assert (report["limit_tokens"], report["text"]) == (20, RULES)
    assert (file["limit_tokens"], file["text"]) == (40, UNCUT)


def test_the_default_limit_is_from_the_environment_and_then_the_model_window(
    run: Any, sections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_total = write(tmp_path / "silent.yaml", "output_reserve: 4\n")
    with_total = write(tmp_path / "loud.yaml", "total_tokens: 300\n")

    def limit(*arguments: str | Path) -> int:
        return int(
            json.loads(run("assemble", "--sections", sections, "--json", *arguments).out)["limit_tokens"]
        )

    assert limit("--model", "gpt-4") == 8192
    assert limit("--model", UNKNOWN_MODEL) == 16_384
    monkeypatch.setenv("CONTEXT_MAX_TOKENS", "200")
    assert limit() == 200
    assert limit("--budget", without_total) == 196
    assert limit("--budget", with_total) == 300


def test_an_unknown_model_is_estimated_and_its_upper_bound_is_within_the_budget(
    run: Any, sections: Path, small_budget: Path
) -> None:
    arguments = ("assemble", "--sections", sections, "--budget", small_budget, "--model", UNKNOWN_MODEL)
    outcome = run(*arguments)
    count = json.loads(run(*arguments, "--json").out)["count"]

    assert re.match(
        rf"~\d+ of 20 tokens \(\d+%\), {UNKNOWN_MODEL}, estimated, upper bound \d+ \(\d+%\)\n", outcome.out
    )
    assert re.search(r"rules +required +█+ +~\d of +~", outcome.out)
    assert not count["exact"]
    assert count["tokens"] < count["upper"] <= 20


def test_a_custom_vocabulary_is_used_for_counting(run: Any, sections: Path, tmp_path: Path) -> None:
    ranks = tmp_path / "bytes-cl100k.tiktoken"
    ranks.write_bytes(b"\n".join(base64.b64encode(bytes([i])) + b" %d" % i for i in range(256)))
    report = json.loads(run("assemble", "--sections", sections, "--tokenizer", ranks, "--json").out)

    assert report["tokens"] == len(report["text"])
    assert report["count"]["exact"]


def test_the_prompt_is_written_to_a_file_and_the_chart_is_printed(
    run: Any, sections: Path, tmp_path: Path
) -> None:
    output_file = tmp_path / "prompt.txt"
    outcome = run("assemble", "--sections", sections, "--output", output_file)
    with_json = run("assemble", "--sections", sections, "-o", output_file, "--json")

    assert outcome.out.startswith("30 of 128,000 tokens")
    assert output_file.read_text(encoding="utf-8") == json.loads(with_json.out)["text"]


@pytest.mark.process
def test_the_prompt_goes_to_standard_output_and_the_chart_to_standard_error(sections: Path) -> None:
    outcome = spawn("assemble", "--sections", sections, "--output", "-", env={"PYTHONIOENCODING": "ascii"})

    assert outcome.out == UNCUT
    assert outcome.err.startswith("30 of 128,000 tokens")
    assert "##" in outcome.err


@pytest.mark.process
def test_a_lone_surrogate_is_written_as_the_replacement_character(tmp_path: Path) -> None:
    """A lone surrogate, which JSON can hold and UTF-8 cannot."""
    sections_file = write(
        tmp_path / "sections.json", r'[{"name": "cut", "text": "half \ud83d"}, {"name": "é", "text": "ü"}]'
    )
    outcome = spawn("assemble", "--sections", sections_file, "--output", "-")

    assert (outcome.code, outcome.out) == (0, "half �\n\nü")
    assert (
        json.loads(spawn("assemble", "--sections", sections_file, "--json").out)["text"] == "half \ud83d\n\nü"
    )


def test_each_of_a_thousand_sections_has_a_row(run: Any, tmp_path: Path) -> None:
    sections_file = write(
        tmp_path / "s.json", [{"name": f"part {i}", "text": "one two " * i} for i in range(1000)]
    )
    lines = run("assemble", "--sections", sections_file, "--model", "gpt-4.1").out.splitlines()

    assert len(lines) == 1001
    assert all(len(line) <= 80 for line in lines)
