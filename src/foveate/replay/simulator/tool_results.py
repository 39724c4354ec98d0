"""Simulated truncation of tool results before they are first sent."""

from msgspec.structs import replace

from foveate.compaction.tool_results import result_limit_tokens
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece
from foveate.replay.simulator.history import TOOL_RESULT_KINDS, HistoryNode, reattach_node
from foveate.replay.simulator.reconstruct import ExternalEntry, ReconstructedCall

_RESULT_KINDS = TOOL_RESULT_KINDS | {"functionResponse", "function_response", "function_call_output"}
_RESULT_ROLE = "tool"


class ResultTruncation:
    """Limits every tool result of a session to a share of the context window."""

    def __init__(self, tool_result_max_pct: float) -> None:
        self._max_pct = tool_result_max_pct
        # By limit and node. Holds the original node, so that its id cannot be reused.
        self._truncated: dict[tuple[int, int], tuple[HistoryNode, HistoryNode]] = {}

    def apply(self, call: ReconstructedCall, window_tokens: int | None) -> ReconstructedCall:
        """The call with truncated results; itself if none is too long, or the window is unknown."""
        if window_tokens is None:
            return call
        limit = result_limit_tokens(window_tokens, self._max_pct)
        last = self._truncate(call.last_node, limit)
        if last is call.last_node:
            return call
        entry = call.external_entry
        if entry is not None and entry.node is not None:
            entry = ExternalEntry(node=self._truncate(entry.node, limit))
        return replace(call, last_node=last, external_entry=entry)

    def _truncate(self, last: HistoryNode, limit: int) -> HistoryNode:
        new = []
        node: HistoryNode | None = last
        while node is not None and (limit, id(node)) not in self._truncated:
            new.append(node)
            node = node.previous
        previous = self._truncated[limit, id(node)][1] if node is not None else None
        for new_node in reversed(new):
            pieces = [_limit_piece(new_node, piece, limit) for piece in new_node.pieces]
            is_same = previous is new_node.previous and all(
                piece is original for piece, original in zip(pieces, new_node.pieces, strict=True)
            )
            previous = new_node if is_same else reattach_node(previous, new_node, pieces)
            self._truncated[limit, id(new_node)] = new_node, previous
        assert previous is not None
        return previous


def _limit_piece(node: HistoryNode, piece: PromptPiece, limit: int) -> PromptPiece:
    is_result = piece.kind in _RESULT_KINDS or node.role == _RESULT_ROLE
    return replace(piece, tokens=limit) if is_result and piece.tokens > limit else piece
