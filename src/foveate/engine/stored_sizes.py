"""Sizes of conversations that a provider stores, learnt from the usage of the responses in them."""

from foveate.engine.calls import RoutedRequest
from foveate.tokens.memo import LruCache
from foveate.values import Format, Request, TokenCount, Usage
from foveate.wire.around import get_parameters
from foveate.wire.body import as_dict, as_text, parse_json

_MAX_CONVERSATIONS = 16_384
# The items of an output are framed as messages, with about 4 tokens each, which are not billed as output.
_FRAME_TOKENS = 64


class StoredConversationSizes:
    """Tokens of OpenAI's stored conversations, by the id of their latest response or of the conversation.

    What the next request reads of them is the input and output of the response before, and what frames its
    output as messages. Only responses that this process has relayed are known.
    """

    def __init__(self) -> None:
        self._tokens: LruCache[int] = LruCache(_MAX_CONVERSATIONS)

    def stored_tokens(self, incoming: RoutedRequest, request: Request) -> TokenCount | None:
        """Return the size of the conversation that a request continues, without its own messages."""
        if request.format is not Format.RESPONSES:
            return None
        response, conversation = _continued_ids(request)
        kind, name = ("response", response) if response else ("conversation", conversation)
        tokens = self._tokens.get((incoming.agent, incoming.upstream, kind, name))
        return None if tokens is None else TokenCount(tokens, False, tokens + tokens // 100 + _FRAME_TOKENS)

    def record(self, incoming: RoutedRequest, request: Request, response_id: str, usage: Usage) -> None:
        """Remember the size of a conversation after a response that is whole."""
        if request.format is not Format.RESPONSES:
            return
        tokens = usage.cache.input_tokens + usage.output_tokens
        for kind, name in (("response", response_id), ("conversation", _continued_ids(request)[1])):
            if name:
                self._tokens.put((incoming.agent, incoming.upstream, kind, name), tokens)

    def forget_conversation(self, agent: str, upstream: str, conversation_id: str) -> None:
        """Forget the size of a conversation whose items were changed otherwise than by a response."""
        self._tokens.remove((agent, upstream, "conversation", conversation_id))


def _continued_ids(request: Request) -> tuple[str, str]:
    """Return the ids of the response and of the conversation that a request continues, empty if none."""
    parameters = get_parameters(request)
    conversation_value = parse_json(parameters.get("conversation"))
    conversation = (
        as_dict(conversation_value).get("id") if isinstance(conversation_value, dict) else conversation_value
    )
    return as_text(parse_json(parameters.get("previous_response_id"))), as_text(conversation)
