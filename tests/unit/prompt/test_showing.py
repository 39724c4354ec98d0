"""The context of a prompt from a memory on disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from foveate import Memory
from foveate.prompt import PromptParts, context_inputs, showing


@pytest.fixture
def garden(tmp_path: Path) -> Path:
    path = tmp_path / "garden.org"
    path.write_text(
        "* Roses\nThey need water.\n** Thorns\nMind them.\n"
        "* Diary :private:\nA secret.\n* Shed\nThe key is under the mat.\n",
        encoding="utf-8",
    )
    return tmp_path


def test_the_context_is_a_view_and_is_made_anew_only_when_the_memory_changes(garden: Path) -> None:
    memory, parts = Memory.load(garden), PromptParts()
    inputs = context_inputs(memory, agent="ana", focus="Roses")
    build = showing(memory)

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

    text = PromptParts().context("tool", inputs, showing(memory)).sections[0].text

    assert "Thorns" in text
    assert "Shed" not in text


def test_what_is_to_be_hidden_and_was_not_when_the_memory_was_read_hides_all_of_it(garden: Path) -> None:
    memory = Memory.load(garden)
    inputs = replace(context_inputs(memory, agent="ana"), privacy_tags=frozenset({"private", "work"}))

    built = PromptParts().context("user", inputs, showing(memory))

    assert built.sections[0].text == "[Awareness not available]"
    assert "without hiding work" in str(built.warnings[0])


def test_a_focus_that_is_gone_is_a_placeholder_and_a_warning(garden: Path) -> None:
    memory = Memory.load(garden)

    built = PromptParts().context("user", context_inputs(memory, agent="ana", focus="Diary"), showing(memory))

    assert built.sections[0].text == "[Awareness not available]"
    assert "there is no node 'Diary'" in str(built.warnings[0])
