import os
from itertools import pairwise
from pathlib import Path

import pytest

from foveate import Memory
from foveate.memory.views.view import DetailLevel, View
from tests.support.scenarios.note_folders import write_files

ROSES = (
    "#+TITLE: Roses\n* Pruning\nPrune the roses in March.\n** Tools\nSharp shears.\n"
    "*** Shears\nOiled.\n**** Oil\nLinseed.\n***** Tin\nBlue.\n"
)
KITCHEN = "#+TITLE: Kitchen\n* Bread\nFlour, water and salt.\n* Pruning roses\nPrune the roses in March.\n"
FILLER = "The committee went on about the hedge and the gate and the parking of cars near the pond.\n"


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory.load(write_files(tmp_path, {"a.org": ROSES, "b.org": KITCHEN}))


def levels_by_title(view: View) -> dict[str, DetailLevel]:
    return {node.title: node.level for node in view.nodes}


def titles_at(level: DetailLevel, view: View) -> list[str]:
    return [node.title for node in view.nodes if node.level is level]


def test_without_a_limit_titles_are_shown_two_levels_below_the_files(memory: Memory) -> None:
    view = memory.render(limit_tokens=None)

    assert levels_by_title(view) == dict.fromkeys(
        ["Roses", "Pruning", "Tools", "Kitchen", "Bread", "Pruning roses"], DetailLevel.TITLE
    )
    assert len(view.text.splitlines()) == 6


def test_without_a_limit_a_deep_focus_is_complete_with_titles_of_ancestors_and_children(memory: Memory) -> None:
    view = memory.render("Shears", limit_tokens=None)

    assert titles_at(DetailLevel.FULL, view) == ["Shears"]
    assert "\nOiled.\n***** Oil <<" in view.text
    assert "Tin" not in levels_by_title(view)
    assert list(levels_by_title(view))[:5] == ["Roses", "Pruning", "Tools", "Shears", "Oil"]


def test_without_a_limit_depth_is_counted_from_the_scope(memory: Memory) -> None:
    view = memory.render(limit_tokens=None, scope="Tools")

    assert list(levels_by_title(view)) == ["Tools", "Shears", "Oil"]


def test_nodes_similar_to_the_focus_are_complete_with_their_score(memory: Memory) -> None:
    view = memory.render("Pruning", limit_tokens=None)

    assert titles_at(DetailLevel.FULL, view) == ["Pruning", "Pruning roses"]
    node = memory.node("Pruning roses")
    start = f"** Pruning roses\n:PROPERTIES:\n:ID: {node.id}\n:SEMANTIC_SCORE: 0."
    _, score_and_content = view.text.split(start)
    assert score_and_content[2:] == "\n:END:\nPrune the roses in March."
    assert score_and_content[:2].isdigit()
    assert view.text.count(":SEMANTIC_SCORE:") == 1


def test_nodes_similar_to_a_query_have_scores_in_markdown_in_braces(memory: Memory) -> None:
    view = memory.render(query="Prune the roses in March", limit_tokens=None, format="markdown")

    assert titles_at(DetailLevel.FULL, view) == ["Pruning", "Pruning roses"]
    assert view.text.count(" score=0.") == 2
    assert "## Bread {#" in view.text


def test_the_similarity_threshold_is_a_setting(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_SEMANTIC_THRESHOLD", "1")

    assert titles_at(DetailLevel.FULL, memory.render("Pruning", limit_tokens=None)) == ["Pruning"]


def test_the_best_match_is_shown_even_if_little_else_fits(tmp_path: Path) -> None:
    texts = {
        "fees": "Fees stay at forty a year, payable to the treasurer.",
        "hose": "A timer for the hose was agreed on, up to sixty.",
        "frost": "Water is off until the frosts are over.",
    }
    memory = Memory.load(
        write_files(tmp_path, {f"{name}.org": f"* On {name}\n{text}\n" for name, text in texts.items()})
    )

    for query, name in (("what do fees cost a year", "fees"), ("a timer for the hose", "hose")):
        view = memory.render(query=query, limit_tokens=75)
        assert f"On {name}" in titles_at(DetailLevel.FULL, view)
        assert texts[name] in view.text


def test_a_short_matching_file_is_shown_completely_under_one_id(tmp_path: Path) -> None:
    other = {f"{number}.org": f"* Meeting {number}\n{FILLER * 20}" for number in range(5)}
    text = (
        "#+TITLE: Heater\nIn the glasshouse.\n* Thermostat\nIt trips.\n** Button\nRed.\n* Fuse\nTen amperes.\n"
    )
    memory = Memory.load(write_files(tmp_path, {**other, "h.org": text}))
    view = memory.render(query="glasshouse heater thermostat", limit_tokens=200)

    assert {"Heater", "Thermostat", "Button", "Fuse"} <= set(titles_at(DetailLevel.FULL, view))
    assert [memory.node(title).id in view.text for title in ("Heater", "Thermostat", "Button", "Fuse")] == [
        True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.org", "* Minutes\nDEADLINE: <2026-11-20 Fri>\n{}"),
        ("a.md", "# Notes\n\n## Minutes\n**Deadline:** 2026-11-20\n\n{}"),
    ],
)
def test_a_long_node_is_shown_by_its_best_lines_and_deadline(tmp_path: Path, name: str, text: str) -> None:
    body = FILLER * 100 + "The walrus was sighted at noon.\n" + FILLER * 100
    memory = Memory.load(write_files(tmp_path, {name: text.format(body)}))
    view = memory.render(query="walrus sighted", limit_tokens=200)

    assert levels_by_title(view)["Minutes"] is DetailLevel.EXCERPT
    assert "The walrus was sighted at noon." in view.text
    assert "2026-11-20" in view.text
    assert view.text.index("2026-11-20") < view.text.index("walrus")


def test_a_long_focus_is_shown_by_its_start_and_deadline(tmp_path: Path) -> None:
    text = f"* Minutes\nDEADLINE: <2026-11-20 Fri>\nFirst of all.\n{FILLER * 100}"
    view = Memory.load(write_files(tmp_path, {"a.org": text})).render("Minutes", limit_tokens=100)

    assert levels_by_title(view)["Minutes"] is DetailLevel.EXCERPT
    assert "\nDEADLINE: <2026-11-20 Fri>\nFirst of all.\n" in view.text
    assert view.tokens > 60


PARAGRAPH = " ".join(f"On day {day} we walk to the mill." for day in range(40))


@pytest.mark.parametrize("limit_tokens", [40, 100, 200, 300, 400])
def test_a_focus_of_one_long_line_is_cut_inside_the_line(tmp_path: Path, limit_tokens: int) -> None:
    """Regression: only the title was shown, and the budget went to irrelevant titles."""
    others = {f"{number}.org": f"* Other {number}\nWords.\n" for number in range(50)}
    memory = Memory.load(write_files(tmp_path, {**others, "plan.org": f"* Plan\n{PARAGRAPH}\n"}))
    view = memory.render("Plan", limit_tokens=limit_tokens)

    assert levels_by_title(view)["Plan"] is DetailLevel.EXCERPT
    assert limit_tokens - 8 <= view.tokens <= limit_tokens
    assert set(levels_by_title(view)) == {"plan", "Plan"}
    assert "\nOn day 0 we walk" in view.text
    assert view.text.endswith("\n[...truncated]")


def test_a_focus_that_just_fits_is_complete_and_with_a_token_less_keeps_its_deadline(
    tmp_path: Path,
) -> None:
    """Regression: one token too many was counted per line, and only the title was shown."""
    text = "#+TITLE: House\n* Roof\n** TODO Tiles\nDEADLINE: <2026-11-20 Fri>\nForty of them, red.\n"
    memory = Memory.load(write_files(tmp_path, {"a.org": text}))
    complete = memory.render("Tiles", limit_tokens=None)
    assert "Forty of them, red." in complete.text

    assert levels_by_title(memory.render("Tiles", limit_tokens=complete.tokens))["Tiles"] is DetailLevel.FULL
    assert memory.render("Tiles", limit_tokens=complete.tokens).text == complete.text
    for missing_tokens in (1, 4):
        view = memory.render("Tiles", limit_tokens=complete.tokens - missing_tokens)
        assert levels_by_title(view)["Tiles"] is DetailLevel.EXCERPT
        assert "DEADLINE: <2026-11-20 Fri>" in view.text


def test_planning_is_shown_as_far_as_it_fits(tmp_path: Path) -> None:
    lines = "DEADLINE: <2026-11-20 Fri>\nSCHEDULED: <2026-11-10 Tue>\n"
    memory = Memory.load(write_files(tmp_path, {"a.md": f"# Notes\n\n## Tiles\n{lines}\nForty of them.\n"}))
    view = memory.render("Tiles", limit_tokens=40)

    assert levels_by_title(view)["Tiles"] is DetailLevel.EXCERPT
    assert "DEADLINE: <2026-11-20 Fri>" in view.text


def test_a_node_whose_lines_are_all_shown_has_no_truncation_marker(tmp_path: Path) -> None:
    """Regression: a node that seemed too long was an excerpt of all its lines."""
    body = "\n\n".join(f"{'walrus ' * 20}\n{'=' * 64}" for _ in range(6))
    memory = Memory.load(write_files(tmp_path, {"a.org": f"* Sea\n{body}\n", "b.org": "* Land\nNothing.\n"}))
    view = memory.render(query="walrus", limit_tokens=420)

    assert levels_by_title(view)["Sea"] is DetailLevel.FULL
    assert body in view.text
    assert "truncated" not in view.text


@pytest.mark.parametrize("limit_tokens", [None, 40, 2000])
@pytest.mark.parametrize("query", [None, "flour and salt for bread"])
@pytest.mark.parametrize("focus", [None, "Oil", "Tools"])
def test_nothing_outside_a_scope_is_shown(
    memory: Memory, limit_tokens: int | None, query: str | None, focus: str | None
) -> None:
    view = memory.render(focus, query, limit_tokens, scope="Tools")

    assert set(levels_by_title(view)) <= {"Tools", "Shears", "Oil", "Tin"}
    assert view.nodes


def test_without_focus_and_query_titles_are_shown_by_depth_and_age(tmp_path: Path) -> None:
    for day in range(1, 31):
        write_files(tmp_path, {f"{day:02}.org": f"#+TITLE: Day {day}\n{FILLER}* Inside {day}\n"})
        os.utime(tmp_path / f"{day:02}.org", (day * 86_400, day * 86_400))
    memory = Memory.load(tmp_path)
    small_view, large_view = memory.render(limit_tokens=100), memory.render(limit_tokens=450)

    titles = [title for title in levels_by_title(small_view) if title.startswith("Day")]
    assert 3 < len(titles) < 30
    assert titles == [f"Day {day}" for day in range(31 - len(titles), 31)]
    assert {f"Day {day}" for day in range(1, 31)} < set(levels_by_title(large_view))
    assert "Inside 30" in levels_by_title(large_view)
    assert "Inside 1" not in levels_by_title(large_view)


def test_without_focus_and_query_the_start_of_one_long_line_is_shown(tmp_path: Path) -> None:
    view = Memory.load(write_files(tmp_path, {"a.org": f"* Plan\n{PARAGRAPH}\n"})).render(limit_tokens=100)

    assert levels_by_title(view)["Plan"] is DetailLevel.EXCERPT
    assert "\nOn day 0 we walk" in view.text


def test_nodes_nearest_to_the_focus_come_first(tmp_path: Path) -> None:
    branch = "* {0}\n** {0} one\n*** {0} one deep\n** {0} two\n** {0} three\n"
    text = "".join(branch.format(name) for name in ("Apple", "Berry", "Cherry", "Damson"))
    memory = Memory.load(write_files(tmp_path, {"a.org": f"#+TITLE: Fruit\n{text}"}))
    distance = {"Fruit": 2, "Cherry": 1, "Cherry two": 0, "Cherry one": 2, "Cherry three": 2}
    distance |= {"Apple": 3, "Berry": 3, "Damson": 3, "Cherry one deep": 3}

    sizes = set()
    for limit_tokens in range(40, 130, 5):
        levels = levels_by_title(memory.render("Cherry two", limit_tokens=limit_tokens))
        sizes.add(len(levels))
        max_distance = max(distance.get(title, 4) for title in levels)
        assert {title for title, steps in distance.items() if steps < max_distance} <= levels.keys()
    assert len(sizes) > 5


def test_everything_is_shown_if_it_fits(memory: Memory) -> None:
    for view in (memory.render(), memory.render("Bread"), memory.render(query="flour")):
        assert titles_at(DetailLevel.FULL, view) == [node.title for node in memory.nodes]


def test_moving_the_focus_to_the_next_heading_leaves_other_files_unchanged(tmp_path: Path) -> None:
    """Nothing in them is similar enough to either heading."""
    about = {
        "File a": "anchor basket copper dolphin ember falcon harvest island jacket kettle lantern",
        "File b": "marble needle orchid pepper quarry river saddle timber umbrella violet walnut",
        "File c": "zephyr bishop cactus drum eagle fiddle goblet hammer igloo jungle kitten",
        "File d": "ladder mirror nutmeg oyster piano quilt ribbon sponge tunnel velvet wagon",
    }
    texts = {
        title: "".join(f"* {word}\n" + f"About the {word}.\n" * 8 for word in words.split())
        for title, words in about.items()
    }
    memory = Memory.load(
        write_files(tmp_path, {f"{title}.org": f"#+TITLE: {title}\n{text}" for title, text in texts.items()})
    )

    def parts(focus: str) -> dict[str, str]:
        text = memory.render(focus, limit_tokens=350).text
        return {part[:6]: part for part in f"\n{text}".split("\n* ")[1:]}

    for heading, other in pairwise(about["File c"].split()):
        first, second = parts(heading), parts(other)
        assert f"\nAbout the {heading}." in first["File c"]
        assert f"\nAbout the {other}." in second["File c"]
        assert first.keys() == second.keys() == about.keys()
        assert {name for name in about if first[name] != second[name]} == {"File c"}


def test_focus_and_query_matches_are_shown_together(tmp_path: Path) -> None:
    files = {f"{number}.org": f"* Heading {number}\n{FILLER * 5}" for number in range(20)}
    memory = Memory.load(write_files(tmp_path, {**files, "x.org": "* Sea\nThe walrus was sighted at noon.\n"}))
    view = memory.render("Heading 3", "walrus sighted", 250)

    assert {"Heading 3", "Sea"} <= set(titles_at(DetailLevel.FULL, view))
    assert list(levels_by_title(view)).index("Heading 3") < list(levels_by_title(view)).index("Sea")


def test_of_equal_matches_the_nearest_to_the_focus_is_shown(tmp_path: Path) -> None:
    branch = "* {0} branch\n** {0} notes\nThe kettle whistles at noon.\n** {0} other\nNothing of the kind.\n"
    filler = "".join(f"* Filler {number}\nwords that fill the file, line by line\n" for number in range(200))
    (tmp_path / "a.org").write_text(filler + branch.format("First") + branch.format("Second"), encoding="utf-8")
    memory = Memory.load(tmp_path)

    for focus, other in (("First", "Second"), ("Second", "First")):
        view = memory.render(f"{focus} other", "when does the kettle whistle?", 130)
        scores = {node.title: node.score for node in view.nodes}
        assert scores[f"{focus} notes"] > scores[f"{other} notes"] > scores["a"]

        view = memory.render(f"{focus} other", "when does the kettle whistle?", 80)
        assert f"{focus} notes" in titles_at(DetailLevel.FULL, view)
        assert f"{other} notes" not in levels_by_title(view)
