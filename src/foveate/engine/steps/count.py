"""The step that counts the tokens of a request."""

from foveate.engine.counting import CountReader
from foveate.engine.steps.names import COUNT
from foveate.engine.stored_sizes import StoredConversationSizes
from foveate.engine.work import RequestContext
from foveate.session.counting import TurnCounter, count_in_thread
from foveate.session.turns import SessionStore
from foveate.values import Format


class CountTokens:
    """How many tokens would be sent."""

    name = COUNT

    def __init__(
        self,
        session_store: SessionStore,
        reader: CountReader,
        stored_sizes: StoredConversationSizes | None = None,
    ) -> None:
        """`sizes`: what is known of conversations that providers store."""
        self._counts = TurnCounter(session_store)
        self._reader = reader
        self._stored_sizes = stored_sizes or StoredConversationSizes()

    async def apply(self, context: RequestContext) -> None:
        """Count what would be sent by now. Unknown: the size of what continues an unknown conversation."""
        if not context.options.token_counter:
            return
        if context.request.continues_stored_conversation:
            await self._count_with_stored(context)
            return
        if await self._reader.count_remotely(context):
            return
        if (
            context.request is context.original
            and context.chain is not None
            and context.session_match is not None
        ):
            agent = context.incoming.agent
            turn_counts = await self._counts.count_without_saving(
                agent,
                context.request,
                context.chain,
                context.counter,
                known=context.session_match.known_messages,
            )
            if turn_counts.new:
                context.pending_writes.append(self._counts.make_pending_write(agent, turn_counts))
            raw_count = turn_counts.count
        else:
            raw_count = await count_in_thread(context.request, context.counter)
        self._reader.use_raw_count(context, raw_count)

    async def _count_with_stored(self, context: RequestContext) -> None:
        """Count a request together with the messages that the provider stores, if their size is known."""
        context.has_unexplained_input = True
        stored = self._stored_sizes.stored_tokens(context.incoming, context.original)
        if stored is not None:
            raw_count = await count_in_thread(context.request, context.counter)
            context.token_count = stored + raw_count.total
        elif context.request.format is Format.RESPONSES:
            context.token_count = await self._reader.count_stored(context)
        context.count_includes_stored = context.token_count is not None

    async def confirm(self, context: RequestContext) -> None:
        """Be sure of it where it can be had, since a decision hangs on it."""
        await self._reader.confirm(context)
