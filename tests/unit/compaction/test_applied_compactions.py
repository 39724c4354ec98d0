import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.applied_compactions import (
    ApplicationHistory,
    invalidate_history,
    load_application_history,
    record_applications,
)
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.session.hash_chain import HashChain
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore
from tests.support.stores.records import COMPACTION, hash_word

MODEL = "claude-opus-5-5"
BOUNDARY = 4


def compute_word_chain(*words: str) -> HashChain:
    hashes, boundary_hash = [], b""
    for word in words:
        boundary_hash = hash_word((boundary_hash, word))
        hashes.append(boundary_hash)
    return HashChain(leading_system_messages=0, hashes=tuple(hashes), spellings=b"")


class ConversationSender:
    """Sends conversations with a store, and remembers the prefix of each response."""

    def __init__(self) -> None:
        self.store = InMemoryCompactionStore()
        self.compaction: Compaction | None = None

    def compact(self, words: list[str]) -> None:
        boundary_hash = compute_word_chain(*words).hashes[BOUNDARY - 1]
        self.compaction = replace(
            COMPACTION, boundary=boundary_hash, messages=BOUNDARY, seen_messages=len(words)
        )

    def undo(self) -> None:
        if self.compaction is not None:
            self.compaction = replace(self.compaction, undone_at=1.0)

    async def send(self, words: list[str], *, has_failed: bool = False) -> tuple[bool, set[int]]:
        """Return whether the compaction was applied, and which positions have another prefix."""
        chain = compute_word_chain(*words)
        history = await load_application_history(
            chain, [self.compaction] if self.compaction else [], self.store, model=MODEL
        )
        if history is None:
            return False, set()
        assert isinstance(history, ApplicationHistory)
        is_applied = (
            self.compaction is not None
            and self.compaction.outcome is CompactionOutcome.OK
            and self.compaction.undone_at is None
            and not has_failed
        )
        invalid = {index for span in history.invalid_thinking_ranges() for index in span}
        await record_applications(history, self.store, is_applied=is_applied)
        return is_applied, invalid


ACTIONS = st.lists(
    st.sampled_from(["send", "send", "send", "fail", "undo", "fork", "doubt"]), min_size=1, max_size=25
)


@given(actions=ACTIONS)
def test_exactly_the_messages_after_another_prefix_are_found(
    actions: list[str],
) -> None:
    """For forks that never had the compaction, and unknown histories, more may be found."""

    async def check() -> None:
        sender = ConversationSender()
        words = [str(number) for number in range(6)]
        is_after_summary: dict[str, bool] = dict.fromkeys(words, False)
        sender.compact(words)
        is_exact, number = True, 6
        for action in actions:
            if action == "undo":
                sender.undo()
                continue
            if action == "doubt":
                assert sender.compaction
                await invalidate_history(compute_word_chain(*words), sender.compaction, sender.store)
                is_exact = False
                continue
            if action == "fork":
                words = words[: max(BOUNDARY + 1, len(words) - 3)]
                is_exact = False
            is_compacted, invalid = await sender.send(words, has_failed=action == "fail")
            expected = {index for index, word in enumerate(words) if is_after_summary[word] is not is_compacted}
            if action != "fail":  # thinking could not be dropped if the compaction could not be applied
                assert expected <= invalid
                if is_exact and sender.compaction and sender.compaction.undone_at is None:
                    assert expected == invalid
            number += 1
            words = [*words, f"answer {number}", f"next {number}"]
            is_after_summary |= {f"answer {number}": is_compacted, f"next {number}": is_compacted}

    asyncio.run(check())


async def test_after_an_undo_only_messages_after_the_summary_are_found() -> None:
    sender = ConversationSender()
    words = [str(number) for number in range(6)]
    await sender.send(words)
    sender.compact(words)
    words += ["a", "b"]
    assert await sender.send(words) == (True, set(range(8)))
    words += ["c", "d"]
    assert await sender.send(words) == (True, set(range(8)))
    words += ["e", "f"]
    sender.undo()
    assert await sender.send(words) == (False, {8, 9, 10, 11})
    words += ["g", "h"]
    assert await sender.send(words) == (False, {8, 9, 10, 11})


async def test_after_cleared_results_are_restored_only_messages_after_their_placeholders_are_found() -> None:
    sender = ConversationSender()
    words = [str(number) for number in range(6)]
    sender.compact(words)
    assert sender.compaction is not None
    sender.compaction = replace(sender.compaction, outcome=CompactionOutcome.RESULTS_CLEARED)
    words += ["a", "b"]
    assert await sender.send(words) == (False, set())
    sender.undo()
    words += ["c", "d"]
    assert await sender.send(words) == (False, {6, 7, 8, 9})
    words += ["e", "f"]
    assert await sender.send(words) == (False, {6, 7, 8, 9})


async def test_without_a_recorded_start_all_messages_since_the_compaction_are_found() -> None:
    sender = ConversationSender()
    words = [str(number) for number in range(6)]
    sender.compact(words)
    sender.undo()
    words += ["a", "b"]
    assert await sender.send(words) == (False, {6, 7})
    words += ["c", "d"]
    assert await sender.send(words) == (False, {6, 7})


async def test_changes_that_cannot_be_stored_are_found_again() -> None:
    sender = ConversationSender()
    sender.store = InMemoryCompactionStore(unavailable=["used"])
    words = [str(number) for number in range(6)]
    sender.compact(words)
    for _ in range(3):
        assert await sender.send(words) == (True, set(range(len(words))))
        words += ["a", "b"]


async def test_nothing_is_loaded_for_models_that_do_not_bind_thinking() -> None:
    store = InMemoryCompactionStore(unavailable=["uses"])
    words = [str(number) for number in range(6)]
    compaction = replace(COMPACTION, boundary=compute_word_chain(*words).hashes[3], messages=4)
    assert (
        await load_application_history(compute_word_chain(*words), [compaction], store, model="claude-opus-4-5")
        is None
    )
    assert await load_application_history(compute_word_chain(*words), [], store, model=MODEL) is None
