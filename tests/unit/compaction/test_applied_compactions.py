import asyncio
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.compaction.applied_compactions import (
    ApplicationHistory,
    invalidate_history,
    load_application_history,
    record_applications,
)
from foveate.compaction.store import Compaction
from foveate.session.hash_chain import HashChain
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore
from tests.support.stores.records import COMPACTION, hash_word

MODEL = "claude-opus-5-5"
BOUNDARY = 4


def chain_to(*words: str) -> HashChain:
    hashes, boundary_hash = [], b""
    for word in words:
        boundary_hash = hash_word((boundary_hash, word))
        hashes.append(boundary_hash)
    return HashChain(leading_system_messages=0, hashes=tuple(hashes), spellings=b"")


class Sender:
    """Sends conversations with a store, and remembers the prefix of each response."""

    def __init__(self) -> None:
        self.store = InMemoryCompactionStore()
        self.compaction: Compaction | None = None

    def compact(self, words: list[str]) -> None:
        boundary_hash = chain_to(*words).hashes[BOUNDARY - 1]
        self.compaction = replace(
            COMPACTION, boundary=boundary_hash, messages=BOUNDARY, seen_messages=len(words)
        )

    def undo(self) -> None:
        if self.compaction is not None:
            self.compaction = replace(self.compaction, undone_at=1.0)

    async def send(self, words: list[str], *, fails: bool = False) -> tuple[bool, set[int]]:
        """Tell whether it was sent with the compaction, and which positions have another prefix."""
        chain = chain_to(*words)
        line = await load_application_history(
            chain, [self.compaction] if self.compaction else [], self.store, model=MODEL
        )
        if line is None:
            return False, set()
        assert isinstance(line, ApplicationHistory)
        is_applied = self.compaction is not None and self.compaction.undone_at is None and not fails
        invalid = {place for some in line.invalid_thinking_ranges() for place in some}
        await record_applications(line, self.store, is_applied=is_applied)
        return is_applied, invalid


ACTS = st.lists(
    st.sampled_from(["say", "say", "say", "fails", "undo", "fork", "doubt"]), min_size=1, max_size=25
)


@settings(max_examples=limit_examples(80))
@given(acts=ACTS)
def test_exactly_the_messages_after_another_prefix_are_found(
    acts: list[str],
) -> None:
    """For forks that never had the compaction, and unknown histories, more may be found."""

    async def check() -> None:
        sender = Sender()
        words = [str(number) for number in range(6)]
        behind: dict[str, bool] = dict.fromkeys(words, False)
        sender.compact(words)
        is_exact, number = True, 6
        for act in acts:
            if act == "undo":
                sender.undo()
                continue
            if act == "doubt":
                assert sender.compaction
                await invalidate_history(chain_to(*words), sender.compaction, sender.store)
                is_exact = False
                continue
            if act == "fork":
                words = words[: max(BOUNDARY + 1, len(words) - 3)]
                is_exact = False
            is_compacted, invalid = await sender.send(words, fails=act == "fails")
            wrong = {at for at, word in enumerate(words) if behind[word] is not is_compacted}
            if act != "fails":  # thinking could not be dropped if the compaction could not be applied
                assert wrong <= invalid
                if is_exact and sender.compaction and sender.compaction.undone_at is None:
                    assert wrong == invalid
            number += 1
            words = [*words, f"answer {number}", f"next {number}"]
            behind |= {f"answer {number}": is_compacted, f"next {number}": is_compacted}

    asyncio.run(check())


async def test_after_an_undo_only_messages_after_the_summary_are_found() -> None:
    sender = Sender()
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


async def test_without_a_recorded_start_all_messages_since_the_compaction_are_found() -> None:
    sender = Sender()
    words = [str(number) for number in range(6)]
    sender.compact(words)
    sender.undo()
    words += ["a", "b"]
    assert await sender.send(words) == (False, {6, 7})
    words += ["c", "d"]
    assert await sender.send(words) == (False, {6, 7})


async def test_changes_that_cannot_be_stored_are_found_again() -> None:
    sender = Sender()
    sender.store = InMemoryCompactionStore(unavailable=["used"])
    words = [str(number) for number in range(6)]
    sender.compact(words)
    for _ in range(3):
        assert await sender.send(words) == (True, set(range(len(words))))
        words += ["a", "b"]


async def test_nothing_is_loaded_for_models_that_do_not_bind_thinking() -> None:
    store = InMemoryCompactionStore(unavailable=["uses"])
    words = [str(number) for number in range(6)]
    compaction = replace(COMPACTION, boundary=chain_to(*words).hashes[3], messages=4)
    assert (
        await load_application_history(chain_to(*words), [compaction], store, model="claude-opus-4-5") is None
    )
    assert await load_application_history(chain_to(*words), [], store, model=MODEL) is None
