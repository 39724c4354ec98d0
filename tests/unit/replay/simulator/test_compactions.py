"""Simulated compactions of recorded histories: each reads only what the previous one left."""

import json
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.compaction.boundary import TurnStructure, find_boundary
from foveate.compaction.plan import CompactionOptions, compute_summary_limit, max_summary_tokens
from foveate.model import Area, Format
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, compute_digest
from foveate.replay.recording import RecordedMessage
from foveate.replay.simulator.compactions import MessageReader, SimulatedCompaction, simulate_compaction
from foveate.replay.simulator.history import HistoryNode, append_node
from tests.support.harness.example_limits import limit_examples

OPTIONS = CompactionOptions()
TRIGGER_TOKENS = 3_000
STEP_MESSAGES = 9
# The next message: a question, a developer message, a model message, tool calls with results, a late result.
KINDS = st.lists(
    st.tuples(st.sampled_from("qqsmmcccccl"), st.integers(10, 900)), min_size=20, max_size=90
)  # fmt: skip


def text(said: str) -> list[dict[str, object]]:
    return [{"type": "text", "text": said}]


def result(number: int) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": f"t{number}", "content": "found"}


def history(kinds: list[tuple[str, int]]) -> list[HistoryNode]:
    """The nodes of a history."""
    found: list[HistoryNode] = []
    late: list[int] = []

    def say(role: str, content: list[dict[str, object]], tokens: int) -> None:
        before = found[-1] if found else None
        raw = json.dumps({"role": role, "content": content}).encode()
        depth = len(found)
        said = RecordedMessage(previous=before.message if before else None, role=role, raw=raw, depth=depth)
        piece = PromptPiece(
            digest=compute_digest(b"%d" % depth), tokens=tokens, kind="text", area=Area.MESSAGES
        )
        found.append(append_node(before, (piece,), message=said, role=role))

    for number, (kind, tokens) in enumerate(kinds):
        if kind == "q":
            say("user", text(f"and now {number}?"), tokens)
        elif kind == "s":
            say("system", text("be brief"), tokens)
        elif kind == "m":
            say("assistant", text("so it is"), tokens)
        elif kind == "c":
            use: dict[str, object] = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {}}
            say("assistant", [use], tokens)
            if tokens % 7:
                say("user", [result(number)], tokens)
            else:
                late.append(number)
        elif late:
            say("user", [result(late.pop())], tokens)
    return found


def places(
    way: list[HistoryNode], reading: MessageReader, earlier: SimulatedCompaction | None
) -> tuple[int, int] | None:
    """The cuts of a history that is read as a whole, and the sizes of its summaries."""
    messages = [reading.read(node) for node in way]
    tokens = [node.tokens for node in way]
    beyond = earlier.last_compacted.depth + 1 if earlier is not None else 0
    place = find_boundary(
        messages,
        tokens,
        tail_keep_tokens=OPTIONS.tail_keep_tokens,
        threshold_tokens=TRIGGER_TOKENS,
        compacted_messages=beyond,
    )
    if not place:
        return None
    whole = TurnStructure(messages)
    limit = compute_summary_limit(
        sum(tokens[at] for at in whole.replaced_messages(place)),
        sum(tokens[at] for at in whole.replaced_messages(place, compacted_messages=beyond))
        + (earlier.summary_tokens if earlier is not None else 0),
        max_tokens=max_summary_tokens(TRIGGER_TOKENS),
        was_compacted=earlier is not None,
    )
    return place, limit


@pytest.mark.slow
@settings(max_examples=limit_examples(40), deadline=None)
@given(kinds=KINDS)
def test_a_second_compaction_always_equals_the_one_of_the_whole_history(
    kinds: list[tuple[str, int]],
) -> None:
    reading = MessageReader(Format.ANTHROPIC)
    found = history(kinds)
    earlier: SimulatedCompaction | None = None
    for last in found[::STEP_MESSAGES]:
        way = last.path()
        whole = places(way, reading, earlier)

        made = simulate_compaction(
            last,
            reading,
            trigger_tokens=TRIGGER_TOKENS,
            options=OPTIONS,
            earlier=earlier,
            drops_thinking=False,
        )

        assert whole == ((made.last_compacted.depth + 1, made.summary_tokens) if made is not None else None)
        if made is None:
            continue
        replaced = set(
            TurnStructure([reading.read(one) for one in way]).replaced_messages(made.last_compacted.depth + 1)
        )
        kept = [
            one.message for at, one in enumerate(way[: made.last_compacted.depth + 1]) if at not in replaced
        ]
        stands = [one.message for one in made.replacement.path() if one.message is not None]
        assert sorted(map(id, stands)) == sorted(map(id, kept))
        assert (
            list(accumulate(one.tokens for one in made.replacement.path()))[-1] == made.replacement.end_tokens
        )
        earlier = made
