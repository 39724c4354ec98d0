"""Sizes of conversations that a provider stores, learnt from the usage of the responses in them."""

from foveate.engine.calls import Incoming
from foveate.tokens.memo import Memo
from foveate.values import Format, Request, TokenCount, Usage
from foveate.wire.around import parameters_of
from foveate.wire.body import as_record, as_text, value

_MAX_CONVERSATIONS = 16_384
# The items of an output are framed as messages, with about 4 tokens each, which are not billed as output.
_FRAME_TOKENS = 64


class StoredSizes:
    """Tokens of OpenAI's stored conversations, by the id of their latest response or of the conversation.

    What the next request reads of them is the input and output of the response before, and what frames its
    output as messages. Only responses that this process has relayed are known.
    """

    def __init__(self) -> None:
        self._tokens: Memo[int] = Memo(_MAX_CONVERSATIONS)

    def size_of(self, incoming: Incoming, request: Request) -> TokenCount | None:
        """Return the size of the conversation that a request continues, without its own messages."""
        if request.format is not Format.RESPONSES:
            return None
        response, conversation = _continued(request)
        kind, name = ("response", response) if response else ("conversation", conversation)
        tokens = self._tokens.get((incoming.agent, incoming.upstream, kind, name))
        return None if tokens is None else TokenCount(tokens, False, tokens + tokens // 100 + _FRAME_TOKENS)

    def record(self, incoming: Incoming, request: Request, response_id: str, usage: Usage) -> None:
        """Remember the size of a conversation after a response that is whole."""
        if request.format is not Format.RESPONSES:
            return
        tokens = usage.cache.input_tokens + usage.output_tokens
        for kind, name in (("response", response_id), ("conversation", _continued(request)[1])):
            if name:
                self._tokens.put((incoming.agent, incoming.upstream, kind, name), tokens)

    def forget_conversation(self, agent: str, upstream: str, conversation_id: str) -> None:
        """Forget the size of a conversation whose items were changed otherwise than by a response."""
        self._tokens.forget((agent, upstream, "conversation", conversation_id))


def _continued(request: Request) -> tuple[str, str]:
    """Return the ids of the response and of the conversation that a request continues, empty if none."""
    parameters = parameters_of(request)
    said = value(parameters.get("conversation"))
    conversation = as_record(said).get("id") if isinstance(said, dict) else said
    return as_text(value(parameters.get("previous_response_id"))), as_text(conversation)
