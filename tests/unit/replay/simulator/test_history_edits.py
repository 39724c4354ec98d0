"""Simulated compactions of recorded histories: each reads only what the previous one did not replace."""

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
from foveate.replay.simulator.history_edits import MessageReader, SimulatedCompaction, simulate_compaction
from foveate.replay.simulator.prompts import HistoryNode, append_node
from tests.support.harness.example_limits import limit_examples

OPTIONS = CompactionOptions()
TRIGGER_TOKENS = 3_000
STEP_MESSAGES = 9
# The next message: a question, a developer message, a model message, tool calls with results, a late result.
MESSAGE_KINDS = st.lists(
    st.tuples(st.sampled_from("qqsmmcccccl"), st.integers(10, 900)), min_size=20, max_size=90
)  # fmt: skip


def text_content(text: str) -> list[dict[str, object]]:
    return [{"type": "text", "text": text}]


def result_block(number: int) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": f"t{number}", "content": "found"}


def build_history(kinds: list[tuple[str, int]]) -> list[HistoryNode]:
    """Build the nodes of a history."""
    nodes: list[HistoryNode] = []
    late_results: list[int] = []

    def add_message(role: str, content: list[dict[str, object]], tokens: int) -> None:
        previous = nodes[-1] if nodes else None
        raw = json.dumps({"role": role, "content": content}).encode()
        depth = len(nodes)
        message = RecordedMessage(
            previous=previous.message if previous else None, role=role, raw=raw, depth=depth
        )
        piece = PromptPiece(
            digest=compute_digest(b"%d" % depth), tokens=tokens, kind="text", area=Area.MESSAGES
        )
        nodes.append(append_node(previous, (piece,), message=message, role=role))

    for number, (kind, tokens) in enumerate(kinds):
        if kind == "q":
            add_message("user", text_content(f"and now {number}?"), tokens)
        elif kind == "s":
            add_message("system", text_content("be brief"), tokens)
        elif kind == "m":
            add_message("assistant", text_content("so it is"), tokens)
        elif kind == "c":
            use: dict[str, object] = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {}}
            add_message("assistant", [use], tokens)
            if tokens % 7:
                add_message("user", [result_block(number)], tokens)
            else:
                late_results.append(number)
        elif late_results:
            add_message("user", [result_block(late_results.pop())], tokens)
    return nodes


def compact_whole_history(
    path: list[HistoryNode], reader: MessageReader, earlier: SimulatedCompaction | None
) -> tuple[int, int] | None:
    """Return the cut of a history that is read as a whole, and the limit of its summary."""
    messages = [reader.read(node) for node in path]
    tokens = [node.tokens for node in path]
    compacted_messages = earlier.last_compacted.depth + 1 if earlier is not None else 0
    cut = find_boundary(
        messages,
        tokens,
        tail_keep_tokens=OPTIONS.tail_keep_tokens,
        threshold_tokens=TRIGGER_TOKENS,
        compacted_messages=compacted_messages,
    )
    if not cut:
        return None
    structure = TurnStructure(messages)
    limit = compute_summary_limit(
        sum(tokens[index] for index in structure.replaced_messages(cut)),
        sum(tokens[index] for index in structure.replaced_messages(cut, compacted_messages=compacted_messages))
        + (earlier.summary_tokens if earlier is not None else 0),
        max_tokens=max_summary_tokens(TRIGGER_TOKENS),
        was_compacted=earlier is not None,
    )
    return cut, limit


@pytest.mark.slow
@settings(max_examples=limit_examples(40))
@given(kinds=MESSAGE_KINDS)
def test_a_second_compaction_always_equals_the_one_of_the_whole_history(
    kinds: list[tuple[str, int]],
) -> None:
    reader = MessageReader(Format.ANTHROPIC)
    nodes = build_history(kinds)
    earlier: SimulatedCompaction | None = None
    for last in nodes[::STEP_MESSAGES]:
        path = last.path()
        expected = compact_whole_history(path, reader, earlier)

        compaction = simulate_compaction(
            last,
            reader,
            trigger_tokens=TRIGGER_TOKENS,
            options=OPTIONS,
            earlier=earlier,
            drops_thinking=False,
        )

        assert expected == (
            (compaction.last_compacted.depth + 1, compaction.summary_tokens) if compaction is not None else None
        )
        if compaction is None:
            continue
        replaced_indexes = set(
            TurnStructure([reader.read(node) for node in path]).replaced_messages(
                compaction.last_compacted.depth + 1
            )
        )
        kept_messages = [
            node.message
            for index, node in enumerate(path[: compaction.last_compacted.depth + 1])
            if index not in replaced_indexes
        ]
        remaining_messages = [
            node.message for node in compaction.replacement.path() if node.message is not None
        ]
        assert sorted(map(id, remaining_messages)) == sorted(map(id, kept_messages))
        assert (
            list(accumulate(node.tokens for node in compaction.replacement.path()))[-1]
            == compaction.replacement.end_tokens
        )
        earlier = compaction
