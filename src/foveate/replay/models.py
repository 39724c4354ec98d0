"""A recording as another model would have read it."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from foveate.replay.marking import rules_at
from foveate.replay.recordings import RecordedMessage
from foveate.replay.sent import ExternalEntry, ReconstructedCall
from foveate.replay.sizes import MessageSizer, tokenizer_name
from foveate.replay.stretches import HistoryNode, PromptFront, reattach_node
from foveate.values import Format


def convert_to_model(
    calls: Sequence[ReconstructedCall], model: str, api_format: Format
) -> list[ReconstructedCall]:
    """The same calls to `model`: each message as many times as long as its counter finds it.

    What the recording does not show, and what was answered, grows as all messages together do. Where both
    models count alike, all sizes stay.
    """
    return list(map(_ModelConverter(calls, model, api_format).convert, calls))


class _ModelConverter:
    def __init__(self, calls: Sequence[ReconstructedCall], model: str, api_format: Format) -> None:
        self._model = model
        self._spoken = api_format
        self._sizers: dict[str, MessageSizer] = {}
        self._ratios: dict[int, float] = {}
        self._converted_nodes: dict[int, tuple[HistoryNode, HistoryNode]] = {}
        self._converted_fronts: dict[int, tuple[PromptFront, PromptFront]] = {}
        self._overall_ratio = self._compute_overall_ratio(calls)

    def convert(self, call: ReconstructedCall) -> ReconstructedCall:
        """One call."""
        recorded_model = call.call.model
        external_entry = call.external_entry
        if external_entry is not None and external_entry.node is not None:
            external_entry = ExternalEntry(node=self._convert_node(external_entry.node, recorded_model))
        return msgspec.structs.replace(
            call,
            call=replace(call.call, model=self._model),
            rules=rules_at(self._model, call.call.at),
            front=self._convert_front(call.front),
            last_node=self._convert_node(call.last_node, recorded_model),
            output_tokens=round(call.output_tokens * self._overall_ratio),
            external_entry=external_entry,
        )

    def _sizer(self, model: str) -> MessageSizer:
        name = tokenizer_name(model)
        if name not in self._sizers:
            self._sizers[name] = MessageSizer(model, self._spoken)
        return self._sizers[name]

    def _message_ratio(self, message: RecordedMessage, recorded_model: str) -> float:
        if tokenizer_name(recorded_model) == tokenizer_name(self._model):
            return 1.0
        known = self._ratios.get(id(message))
        if known is None:
            before, after = (
                self._sizer(model).count_message(message.raw) for model in (recorded_model, self._model)
            )
            known = self._ratios[id(message)] = after / before if before else 1.0
        return known

    def _compute_overall_ratio(self, calls: Sequence[ReconstructedCall]) -> float:
        """How many times as long all messages are together."""
        seen: set[int] = set()
        before = after = 0.0
        for call in calls:
            node: HistoryNode | None = call.last_node
            while node is not None and node.message is not None and id(node.message) not in seen:
                seen.add(id(node.message))
                before += node.tokens
                after += node.tokens * self._message_ratio(node.message, call.call.model)
                node = node.previous
        return after / before if before else 1.0

    def _convert_node(self, last: HistoryNode, recorded_model: str) -> HistoryNode:
        new = []
        node: HistoryNode | None = last
        while node is not None and id(node) not in self._converted_nodes:
            new.append(node)
            node = node.previous
        previous = self._converted_nodes[id(node)][1] if node is not None else None
        for new_node in reversed(new):
            ratio = (
                self._message_ratio(new_node.message, recorded_model) if new_node.message is not None else 1.0
            )
            pieces = [
                msgspec.structs.replace(piece, tokens=round(piece.tokens * ratio)) for piece in new_node.pieces
            ]
            previous = reattach_node(previous, new_node, pieces)
            self._converted_nodes[id(new_node)] = (
                new_node,
                previous,
            )  # the first is held, so that no other has its id
        assert previous is not None
        return previous

    def _convert_front(self, front: PromptFront) -> PromptFront:
        if id(front) not in self._converted_fronts:
            pieces = tuple(
                msgspec.structs.replace(piece, tokens=round(piece.tokens * self._overall_ratio))
                for piece in front.pieces
            )
            tokens = sum(piece.tokens for piece in pieces)
            converted = replace(front, model=self._model, pieces=pieces, tokens=tokens)
            self._converted_fronts[id(front)] = front, converted
        return self._converted_fronts[id(front)][1]
