"""The step that counts the tokens of a request, with corrections by calibration or by the upstream's count.

The size of a conversation that a provider stores is learned from the usage of its responses.
"""

from dataclasses import replace

from foveate.caching import LruCache
from foveate.engine.counting.calibration import Calibrations, calibrate, calibration_key
from foveate.engine.counting.remote_counter import RemoteCounter
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.steps import COUNT
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import as_dict, as_text, parse_json
from foveate.model import Format, Request, TokenCount, Usage
from foveate.session.counting import TurnCounter, count_in_thread
from foveate.session.store import SessionStore
from foveate.tokens import RequestCount

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


class CountCorrector:
    """Turns raw counts into those that decisions use: calibrated, or counted by the upstream if allowed."""

    def __init__(self, calibrations: Calibrations, remote_counter: RemoteCounter | None = None) -> None:
        self._calibrations = calibrations
        self._remote_counter = remote_counter

    async def count_remotely(self, context: RequestContext) -> bool:
        """Let the upstream count, if the options want that for every request. Returns whether it did."""
        if self._remote_counter is None:
            return False
        total, is_unsupported = await self._remote_counter.count_always(context)
        context.count.is_fallback = total is None and not is_unsupported
        if total is None:
            return False
        context.count.total, context.count.raw = total, None
        context.count.has_unexplained_input = bool(context.request.unexplained)
        return True

    async def count_stored(self, context: RequestContext) -> TokenCount | None:
        """Ask OpenAI for the size of a request with the conversation it continues; None if not allowed."""
        if self._remote_counter is None or context.incoming.provider != "openai":
            return None
        return await self._remote_counter.count_for_decision(context)

    def use_raw_count(self, context: RequestContext, raw_count: RequestCount) -> None:
        context.count.raw, context.count.has_unexplained_input = raw_count, bool(raw_count.unexplained)
        total = raw_count.total
        if context.count.is_fallback:
            # It replaces an endpoint that is failing. Exact and estimated counts must not be mixed.
            total = replace(total, exact=False)
        context.count.total = self._calibrations.correct(calibration_key(context), total)

    async def confirm(self, context: RequestContext) -> None:
        """Replace an estimate by the upstream's count, if allowed, since a decision depends on it."""
        if context.count.raw is None and context.count.total is not None:
            # The upstream has counted the request. Its messages are measured by our counter.
            context.count.raw = await count_in_thread(context.request, context.counter)
            calibrate(self._calibrations, context, context.count.total.tokens)
        if self._remote_counter is None or context.count.total is None or context.count.total.exact:
            return
        total = await self._remote_counter.count_for_decision(context)
        if total is not None:
            context.count.total = total
            calibrate(self._calibrations, context, total.tokens)

    async def recount(self, context: RequestContext) -> None:
        """Let the upstream count a request that is only displayed, if the options allow it."""
        if (
            self._remote_counter is None
            or context.count.total is None
            or context.count.total.exact
            or context.request.continues_stored_conversation
        ):
            return
        total = await self._remote_counter.count_if_allowed(context)
        if total is not None:
            context.count.total = total


class CountTokens:
    name = COUNT

    def __init__(
        self,
        session_store: SessionStore,
        reader: CountCorrector,
        stored_sizes: StoredConversationSizes | None = None,
    ) -> None:
        """`stored_sizes`: known sizes of conversations that providers store."""
        self._counts = TurnCounter(session_store)
        self._reader = reader
        self._stored_sizes = stored_sizes or StoredConversationSizes()

    async def apply(self, context: RequestContext) -> None:
        """Leave the size of a request that continues an unknown conversation unknown."""
        if not context.options.token_counter:
            return
        if context.request.continues_stored_conversation:
            await self._count_with_stored(context)
            return
        if await self._reader.count_remotely(context):
            return
        if (
            context.request is context.original
            and context.session.chain is not None
            and context.session.match is not None
        ):
            agent = context.incoming.agent
            turn_counts = await self._counts.count_without_saving(
                agent,
                context.request,
                context.session.chain,
                context.counter,
                known=context.session.match.known_messages,
            )
            if turn_counts.new:
                context.pending_writes.append(self._counts.make_pending_write(agent, turn_counts))
            raw_count = turn_counts.count
        else:
            raw_count = await count_in_thread(context.request, context.counter)
        self._reader.use_raw_count(context, raw_count)

    async def _count_with_stored(self, context: RequestContext) -> None:
        context.count.has_unexplained_input = True
        stored = self._stored_sizes.stored_tokens(context.incoming, context.original)
        if stored is not None:
            raw_count = await count_in_thread(context.request, context.counter)
            context.count.total = stored + raw_count.total
        elif context.request.format is Format.RESPONSES:
            context.count.total = await self._reader.count_stored(context)
        context.count.includes_stored = context.count.total is not None

    async def confirm(self, context: RequestContext) -> None:
        await self._reader.confirm(context)
