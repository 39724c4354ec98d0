"""Sizes of conversations that a provider stores, learned from the usage of their responses."""

from foveate.caching import LruCache
from foveate.engine.request import IncomingRequest
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import as_dict, as_text, parse_json
from foveate.model import Format, Request, TokenCount, Usage

_MAX_CONVERSATIONS = 16_384
# Output items are framed as messages, with about 4 tokens each, which are not charged as output.
_FRAME_TOKENS = 64


class StoredConversationSizes:
    """Tokens of OpenAI's stored conversations, by the id of their latest response or of the conversation.

    The next request reads the input and output of the previous response, and the framing of its output
    as messages. Only responses relayed by this process are known.
    """

    def __init__(self) -> None:
        self._tokens: LruCache[int] = LruCache(_MAX_CONVERSATIONS)

    def stored_tokens(self, incoming: IncomingRequest, request: Request) -> TokenCount | None:
        """The size of the conversation that a request continues, without its own messages."""
        if request.format is not Format.RESPONSES:
            return None
        response, conversation = _continued_ids(request)
        kind, name = ("response", response) if response else ("conversation", conversation)
        tokens = self._tokens.get((incoming.agent, incoming.upstream, kind, name))
        return None if tokens is None else TokenCount(tokens, False, tokens + tokens // 100 + _FRAME_TOKENS)

    def record(self, incoming: IncomingRequest, request: Request, response_id: str, usage: Usage) -> None:
        if request.format is not Format.RESPONSES:
            return
        tokens = usage.cache.input_tokens + usage.output_tokens
        for kind, name in (("response", response_id), ("conversation", _continued_ids(request)[1])):
            if name:
                self._tokens.put((incoming.agent, incoming.upstream, kind, name), tokens)

    def forget_conversation(self, agent: str, upstream: str, conversation_id: str) -> None:
        """Forget a conversation whose items were changed by other means than a response."""
        self._tokens.remove((agent, upstream, "conversation", conversation_id))


def _continued_ids(request: Request) -> tuple[str, str]:
    """Ids of the response and of the conversation that a request continues, empty if none."""
    parameters = get_parameters(request)
    conversation_value = parse_json(parameters.get("conversation"))
    conversation = (
        as_dict(conversation_value).get("id") if isinstance(conversation_value, dict) else conversation_value
    )
    return as_text(parse_json(parameters.get("previous_response_id"))), as_text(conversation)
