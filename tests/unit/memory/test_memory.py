from pathlib import Path

import pytest

from foveate import Memory
from foveate.errors import BadOption, BudgetExceeded, UnreadableInput
from tests.support.scenarios.note_folders import write_files

WITH_ID = "* {}\n:PROPERTIES:\n:ID: {}\n:END:\n"


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    text = (
        f"{WITH_ID.format('One', 'first')}Text of one.\n* Two\n* Same\n* Same\n{WITH_ID.format('first', 'x')}"
    )
    return Memory.load(
        write_files(tmp_path, {"a.org": text, "b.md": "# Notes\n\n## Three\n\nText of three.\n"})
    )


def test_a_node_is_found_by_id_or_unique_title(memory: Memory) -> None:
    node = memory.node("Two")

    assert memory.node("first").title == "One"
    assert memory.node(node.id) is node
    assert memory.node("Notes").document.key == "b.md"


def test_an_ambiguous_title_is_an_error_that_lists_the_ids(memory: Memory) -> None:
    ids = [node.id for node in memory.nodes if node.title == "Same"]

    with pytest.raises(BadOption, match=f"2 nodes have the title 'Same'; use one of the ids: {', '.join(ids)}"):
        memory.node("Same")


def test_an_unknown_node_is_an_error_that_suggests_a_similar_title(memory: Memory) -> None:
    with pytest.raises(BadOption, match="no node 'Thre'; did you mean 'Three'"):
        memory.node("Thre")
    with pytest.raises(BadOption, match=r"no node 'zzzzzzzz'$"):
        memory.node("zzzzzzzz")


def test_a_private_title_is_never_suggested(tmp_path: Path) -> None:
    memory = Memory.load(write_files(tmp_path, {"a.org": "* Secret plan :private:\n* Other\n"}))

    with pytest.raises(BadOption) as error:
        memory.node("Secret pla")
    assert "did you mean" not in str(error.value)


def test_a_memory_needs_at_least_one_path(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="needs at least one"):
        Memory.load()
    with pytest.raises(UnreadableInput):
        Memory.load(tmp_path / "nowhere")
    with pytest.raises(BadOption, match="privacy tags must be a list"):
        Memory.load(tmp_path, private="log")


def test_an_empty_memory_is_an_empty_view(tmp_path: Path) -> None:
    memory = Memory.load(tmp_path)

    for view in (memory.render(), memory.render(query="anything"), memory.render(limit_tokens=None)):
        assert (view.text, view.tokens, view.nodes) == ("", 0, ())


def test_additional_privacy_tags_extend_the_defaults(tmp_path: Path) -> None:
    memory = Memory.load(
        write_files(tmp_path, {"a.org": "* A :log:\n* B :private:\n* C :@personal:\n* D\n"}), private=("log",)
    )

    assert [node.title for node in memory.nodes] == ["a", "D"]


@pytest.mark.parametrize("limit_tokens", [0, -1, True, 1.5, "2000"])
def test_an_invalid_limit_is_rejected(memory: Memory, limit_tokens: int) -> None:
    with pytest.raises(BadOption) as error:
        memory.render(limit_tokens=limit_tokens)
    assert error.value.path == ("limit_tokens",)


def test_an_unknown_format_is_rejected(memory: Memory) -> None:
    with pytest.raises(BadOption, match="format must be one of auto, org, markdown, not 'html'"):
        memory.render(format="html")  # pyrefly: ignore[bad-argument-type]


def test_a_focus_outside_the_scope_is_an_error(memory: Memory) -> None:
    with pytest.raises(BadOption, match="the focus first is not in the scope"):
        memory.render("first", scope="Notes")


def test_a_limit_below_the_title_of_the_focus_is_an_error_with_numbers(memory: Memory) -> None:
    with pytest.raises(BudgetExceeded, match="the title of the focus takes") as error:
        memory.render("first", limit_tokens=2)
    assert error.value.limit_tokens == 2


def test_a_blank_query_is_ignored(memory: Memory) -> None:
    assert memory.render(query=" \n") == memory.render()


def test_a_focus_can_be_given_as_a_node(memory: Memory) -> None:
    assert memory.render(memory.node("Three")) == memory.render("Three")


def test_a_refresh_shows_changes_and_changes_the_version(memory: Memory, tmp_path: Path) -> None:
    version, node = memory.version, memory.node("Three")
    write_files(tmp_path, {"a.org": "* Four\nA walrus was sighted.\n"})

    assert "Four" not in memory.render(limit_tokens=None).text
    changes = memory.refresh()
    assert changes.read == (str(tmp_path / "a.org"),)
    assert memory.version != version
    assert "A walrus was sighted." in memory.render(query="walrus", limit_tokens=100).text
    assert memory.node("Three") is node
    with pytest.raises(BadOption, match="no node 'first'"):
        memory.render("first")


def test_a_node_from_before_a_refresh_refers_to_the_current_one(memory: Memory, tmp_path: Path) -> None:
    before = memory.node("first")
    write_files(tmp_path, {"a.org": f"{WITH_ID.format('Uno', 'first')}Another text.\n"})
    memory.refresh()

    assert "** Uno <<first>>\nAnother text." in memory.render(before).text


def test_a_refresh_without_changes_changes_nothing(memory: Memory) -> None:
    version, nodes = memory.version, memory.nodes

    assert memory.refresh().removed == ()
    assert (memory.version, memory.nodes) == (version, nodes)


@pytest.mark.parametrize("setting", ["", "  ", "0.75", '"0.75"'])
def test_the_threshold_can_be_set_in_the_environment(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    default_view = memory.render("One", limit_tokens=None)
    monkeypatch.setenv("CONTEXT_SEMANTIC_THRESHOLD", setting)
    assert memory.render("One", limit_tokens=None) == default_view

    monkeypatch.setenv("CONTEXT_SEMANTIC_THRESHOLD", "0")
    assert {node.level for node in memory.render("One", limit_tokens=None).nodes} == {"full"}


@pytest.mark.parametrize("setting", ["high", "1.1", "-0.1", "nan"])
def test_an_invalid_threshold_is_an_error(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("CONTEXT_SEMANTIC_THRESHOLD", setting)

    with pytest.raises(BadOption, match="CONTEXT_SEMANTIC_THRESHOLD must be a number from 0 to 1"):
        memory.render()


def test_properties_are_shown_and_found(tmp_path: Path) -> None:
    """Regression: a number in a drawer was neither shown nor found."""
    org = "* Lena\n:PROPERTIES:\n:ID: lena\n:PHONE: 5550101\n:END:\nLikes plums.\n* Other\nNothing.\n"
    (tmp_path / "people.org").write_text(org, encoding="utf-8")
    (tmp_path / "bob.md").write_text("---\ntitle: Bob\nphone: 5550102\ntags: [friend]\n---\nLikes figs.\n")
    memory = Memory.load(tmp_path)

    assert "PHONE: 5550101\nLikes plums." in memory.render("Lena").text
    assert "PHONE: 5550102\nLikes figs." in memory.render(query="5550102").text
    assert [node.title for node in memory.query(text="5550101")] == ["Lena"]
    assert "ID: lena" not in memory.render("Lena").text
    assert "TAGS:" not in memory.render("Bob").text


def test_each_note_is_rendered_in_the_format_of_its_file(memory: Memory) -> None:
    text = memory.render().text
    notes, three = memory.node("Notes"), memory.node("Three")

    assert f"# Notes {{#{notes.id[:6]}}}\n## Three {{#{three.id[:6]}}}\nText of three." in text
    assert "* One <<first>>\nText of one." in text
    assert "* Notes" in memory.render(format="org").text
    assert "## One {#first}" in memory.render(format="markdown").text


def test_a_short_id_of_a_view_names_its_node(memory: Memory) -> None:
    three = memory.node("Three")

    assert memory.node(three.id[:6]) is three
    assert memory.render(three.id[:6]) == memory.render("Three")
    with pytest.raises(BadOption, match="no node"):
        memory.node(three.id[:5])


def test_the_repr_has_the_sizes(memory: Memory) -> None:
    assert repr(memory) == "<Memory: 2 files, 8 nodes>"
    assert repr(memory.render("Three", limit_tokens=1000)).startswith("<View: ")
    assert "<pre" in memory.render("Three")._repr_html_()
