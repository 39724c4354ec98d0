"""The context of a prompt from a memory on disk."""

from dataclasses import replace
from pathlib import Path

import pytest

import foveate
from foveate import Memory
from foveate.context import PromptParts, context_inputs, memory_context_builder
from foveate.tokens import counter_for
from foveate.tokens.text_meter import TextCounter


@pytest.fixture
def garden(tmp_path: Path) -> Path:
    path = tmp_path / "garden.org"
    path.write_text(
        "* Roses\nThey need water.\n** Thorns\nMind them.\n"
        "* Diary :private:\nA secret.\n* Shed\nThe key is under the mat.\n",
        encoding="utf-8",
    )
    return tmp_path


def test_the_context_is_rendered_again_only_if_the_memory_changes(garden: Path) -> None:
    memory, parts = Memory.load(garden), PromptParts()
    inputs = context_inputs(memory, agent="ana", focus="Roses")
    build = memory_context_builder(memory)

    first = parts.context("user", inputs, build)
    again = parts.context("user", context_inputs(memory, agent="ana", focus="Roses"), build)
    (garden / "garden.org").write_text("* Roses\nThey have water.\n", encoding="utf-8")
    memory.refresh()
    changed = parts.context("user", context_inputs(memory, agent="ana", focus="Roses"), build)

    assert "They need water." in first.sections[0].text
    assert "secret" not in first.sections[0].text
    assert (first.fresh, again.fresh, changed.fresh) == (True, False, True)
    assert "They have water." in changed.sections[0].text


def test_nothing_outside_the_scope_is_in_the_context(garden: Path) -> None:
    memory = Memory.load(garden)
    inputs = context_inputs(memory, agent="ana", scope="Roses", query="the key of the shed")

    text = PromptParts().context("tool", inputs, memory_context_builder(memory)).sections[0].text

    assert "Thorns" in text
    assert "Shed" not in text


def test_nothing_is_shown_if_the_memory_was_loaded_without_hiding_a_tag(garden: Path) -> None:
    memory = Memory.load(garden)
    inputs = replace(context_inputs(memory, agent="ana"), privacy_tags=frozenset({"private", "work"}))

    built = PromptParts().context("user", inputs, memory_context_builder(memory))

    assert built.sections[0].text == "[Awareness not available]"
    assert "without hiding work" in str(built.warnings[0])


def test_a_missing_focus_is_a_placeholder_and_a_warning(garden: Path) -> None:
    memory = Memory.load(garden)

    built = PromptParts().context(
        "user", context_inputs(memory, agent="ana", focus="Diary"), memory_context_builder(memory)
    )

    assert built.sections[0].text == "[Awareness not available]"
    assert "the memory has no node 'Diary'" in str(built.warnings[0])


def long_notes(folder: Path) -> Memory:
    text = "".join(f"* Bed {number}\nРозы, 薔薇 and {number * 7919} more of them.\n" for number in range(200))
    (folder / "beds.org").write_text(text, encoding="utf-8")
    return Memory.load(folder)


@pytest.mark.parametrize("models", [("gpt-4o", "claude-sonnet-4-5"), ("claude-sonnet-4-5", "gpt-4o")])
def test_switching_models_shows_what_fits_the_new_one(tmp_path: Path, models: tuple[str, str]) -> None:
    """Regression: a context cached for one model was used for another, whose limit it exceeded."""
    memory, parts = long_notes(tmp_path), PromptParts()
    for model in (*models, models[0]):
        inputs = context_inputs(memory, agent="ana", query="薔薇", limit_tokens=1000, model=model)

        (section,) = parts.context("user", inputs, memory_context_builder(memory)).sections

        assert section.text == memory.render(None, "薔薇", 1000, model=model).text
        assert foveate.count(section.text, model=model).upper <= 1000


def test_a_custom_counter_is_chosen_by_model(garden: Path) -> None:
    memory, requested = Memory.load(garden), list[str]()

    def counters(model: str) -> TextCounter:
        requested.append(model)
        return counter_for("gpt-4o")

    PromptParts().context(
        "user",
        context_inputs(memory, agent="ana", model="mine"),
        memory_context_builder(memory, counters=counters),
    )

    assert requested == ["mine"]


def test_another_threshold_renders_the_context_again(garden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, parts = Memory.load(garden), PromptParts()
    texts = []
    for threshold in ("0.01", "1", "0.01"):
        monkeypatch.setenv("CONTEXT_SEMANTIC_THRESHOLD", threshold)
        inputs = context_inputs(memory, agent="ana", focus="Roses", limit_tokens=None)
        texts.append(parts.context("user", inputs, memory_context_builder(memory)).sections[0].text)

    assert texts[0] == texts[2] != texts[1]
