"""A conversation: what was said, to which model, what fills its window, and what it has cost."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from uuid import uuid4

from foveate.budget.model_limits import DEFAULT_TOKENS, find_context_window
from foveate.chat.client import GatewayResponse, send_request
from foveate.chat.costs import ChargeTotals, ChatObserver, is_main_call, sum_charges
from foveate.chat.failures import (
    Failure,
    classify_failure,
    describe_empty_response,
    describe_internal_error,
    describe_interruption,
)
from foveate.chat.models import ChatConfig
from foveate.chat.preview import RequestPreview, build_preview
from foveate.chat.requests import (
    ChatTurn,
    ModelTarget,
    SessionIdentity,
    assistant_turn,
    build_body,
    build_scope,
    user_turn,
)
from foveate.chat.responses import FragmentKind, ResponseFragment, ResponseStream, read_response
from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.ledger import Charge
from foveate.engine.exchange import Exchange
from foveate.engine.steps.overflow import compaction_subject
from foveate.gateway.app import Gateway
from foveate.gateway.request import REQUEST_ID_HEADER
from foveate.model import Usage
from foveate.tokens.tokenizers.bpe import replace_surrogates

MAX_TOKENS = 4096
"""How long an answer may be, unless somebody says otherwise."""

# Of a small window, so much is for the answer at most.
_MAX_OUTPUT_FRACTION = 4
# Stands where nothing was said yet, so that it can be seen what goes with the first words.
_PLACEHOLDER_TEXT = "Hello"
_EVENT_STREAM = "text/event-stream"
_LENGTH_STOP_REASONS = frozenset(("length", "max_tokens", "max_output_tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """What a question came to. `is_stopped`: by the user; `is_cut_short`: it was as long as it might be.

    `entry` is its bill, None where there is none.
    """

    text: str = ""
    thinking: str = ""
    tool_calls: tuple[str, ...] = ()
    is_stopped: bool = False
    is_truncated: bool = False
    failure: Failure | None = None
    charge: Charge | None = None
    request_id: str = ""

    @property
    def has_content(self) -> bool:
        """Whether there is something in it to go on from; no provider takes an answer of blanks."""
        return bool(self.text.strip() or self.tool_calls)

    @property
    def usage(self) -> Usage | None:
        """What was billed."""
        return self.charge.usage if self.charge is not None else None

    @property
    def dollars(self) -> Decimal | None:
        """What it cost; None where that is not known."""
        return self.charge.dollars if self.charge is not None else None


class ChatConversation:
    """A conversation with one model at a time, as one agent."""

    def __init__(
        self,
        gateway: Gateway,
        config: ChatConfig,
        observer: ChatObserver,
        target: ModelTarget,
        *,
        agent: str,
        max_tokens: int | None = None,
    ) -> None:
        self._gateway = gateway
        self._config = config
        self._observer = observer
        self._max_tokens = max_tokens
        self._pending_response: GatewayResponse | None = None
        self._compaction_task: asyncio.Task[CompactionResult | None] | None = None
        self.target = target
        self.agent = agent
        self.turns: tuple[ChatTurn, ...] = ()
        self.session = _new_session()
        self._engine_session_ids: set[str] = set()
        """What the engine calls this session, by which its bills are found."""
        self._request_ids: set[str] = set()
        """Its requests; each is a session by itself to the engine where the store is away."""

    @property
    def total_charges(self) -> ChargeTotals:
        """What this session has cost so far."""
        return sum_charges(self.charges)

    @property
    def main_charges(self) -> ChargeTotals:
        """The same of its answers alone, of whose prompts the hit ratio tells."""
        return sum_charges(filter(is_main_call, self.charges))

    @property
    def charges(self) -> list[Charge]:
        """Every bill of this session."""
        return self._observer.charges_for(self._engine_session_ids | self._request_ids)

    @property
    def session_id(self) -> str:
        """What the engine calls this session; what it is asked by, as long as it has not heard of it."""
        return min(self._engine_session_ids, default=self.session)

    def take_notes(self) -> list[str]:
        """What is to be told of the last requests."""
        return self._observer.take_notes()

    def max_tokens(self) -> int:
        """How long the next answer may be."""
        if self._max_tokens is not None:
            return self._max_tokens
        configured = self._config.current_config().agents(self.agent).window_tokens
        known = find_context_window(self.target.model)
        window = configured or (known.tokens if known is not None else DEFAULT_TOKENS)
        return max(1, min(MAX_TOKENS, window // _MAX_OUTPUT_FRACTION))

    def switch_model(self, model: str) -> ModelTarget:
        """Talk to another model from now on; what was said goes along.

        Raises:
            BadOption: it cannot be reached; then all stays as it is.
        """
        self.target = self._config.select_model(model)
        return self.target

    def reset(self) -> None:
        """Begin anew: another session, in which nothing was said."""
        self._config.reset_compaction()
        self.turns = ()
        self.session = _new_session()
        self._engine_session_ids, self._request_ids = set(), set()

    def stop(self) -> None:
        """Stop what is under way, if anything is."""
        if self._pending_response is not None:
            self._pending_response.stop()
        if self._compaction_task is not None:
            self._compaction_task.cancel()

    async def ask(self, text: str, show: Callable[[ResponseFragment], None] = lambda _: None) -> ChatAnswer:
        """The answer to a question, shown as it comes; with a failure in it, the question is not kept.

        What came of an answer that was stopped or broke off is kept, and so is its question.
        """
        turns = (*self.turns, user_turn(replace_surrogates(text)))
        try:
            answer = await self._request_answer(turns, show)
        except Exception as error:  # noqa: BLE001 - the border of a conversation: nothing said in it may be lost
            return ChatAnswer(failure=describe_internal_error(error))
        if answer.has_content:
            is_cut = answer.is_stopped or answer.failure is not None
            content = (
                answer.text
                if answer.text.strip()
                else "".join(f"[called {name}]" for name in answer.tool_calls)
            )
            self.turns = (*turns, assistant_turn(content, is_cut=is_cut))
        return answer

    async def _request_answer(
        self, turns: tuple[ChatTurn, ...], show: Callable[[ResponseFragment], None]
    ) -> ChatAnswer:
        target = self.target
        body = build_body(turns, target, max_tokens=self.max_tokens())
        fragments: list[ResponseFragment] = []

        def hear(fragment: ResponseFragment) -> None:
            fragments.append(fragment)
            show(fragment)

        async with send_request(self._gateway, build_scope(target, self._identity()), body) as response:
            self._pending_response = response
            try:
                stream = await _read_response(response, target, hear, has_history=len(turns) > 1)
            finally:
                self._pending_response = None
        request_id = response.headers.get(REQUEST_ID_HEADER, "")
        if isinstance(stream, Failure):
            return ChatAnswer(failure=stream, request_id=request_id)
        if request_id:
            self._request_ids.add(request_id)
            await self._observer.wait_for_charge(request_id)
            self._remember_session(self._observer.last_exchange)
        answer = ChatAnswer(
            text=_join_text(fragments, FragmentKind.TEXT),
            thinking=_join_text(fragments, FragmentKind.THINKING),
            tool_calls=tuple(
                fragment.text for fragment in fragments if fragment.kind is FragmentKind.TOOL_CALL
            ),
            is_stopped=response.is_stopped and not response.is_complete,
            is_truncated=stream is not None and stream.reader.stop_reason in _LENGTH_STOP_REASONS,
            charge=next((charge for charge in self.charges if charge.call.id == request_id), None),
            request_id=request_id,
        )
        return replace(answer, failure=_find_failure(answer, stream, is_whole=response.is_complete))

    async def preview(self, *, focus: str = "") -> RequestPreview:
        """What would be sent next, by the same way that a question goes.

        Raises:
            FoveateError: it would be refused.
        """
        return build_preview(await self._preview_exchange(focus), max_tokens=self.max_tokens())

    async def compact(self) -> CompactionResult | None:
        """What became of folding all but the last exchange; None where it is not one to fold.

        Raises:
            FoveateError: it would be refused.
        """
        self._config.enable_compaction()
        context = (await self._preview_exchange()).context
        compact_now = self._gateway.engine.compact_now
        if (
            compact_now is None
            or context is None
            or context.chain is None
            or context.token_count is None
            or not self.turns
        ):
            return None
        options = context.options
        context.options = replace(
            options,
            compaction_options=replace(
                options.compaction_options, tail_keep_tokens=1, min_turns_between=0, extractive=True
            ),
            window_tokens=context.window_tokens or max(DEFAULT_TOKENS, 2 * context.token_count.tokens),
        )
        self._compaction_task = asyncio.ensure_future(
            compact_now(context, compaction_subject(context, must_fit=True))
        )
        try:
            with self._observer.mute_compactions():
                return await self._compaction_task
        except asyncio.CancelledError:
            if not self._compaction_task.cancelled():
                raise
            return CompactionResult(outcome=CompactionOutcome.FAILED, reason="it was stopped")
        finally:
            self._compaction_task = None

    async def _preview_exchange(self, focus: str = "") -> Exchange:
        turns = self.turns or (user_turn(_PLACEHOLDER_TEXT),)
        body = build_body(turns, self.target, max_tokens=self.max_tokens())
        exchange = await self._gateway.preview(build_scope(self.target, self._identity(focus)), body)
        self._remember_session(exchange)
        return exchange

    def _remember_session(self, exchange: Exchange | None) -> None:
        context = exchange.context if exchange is not None else None
        if context is not None and context.session_match is not None:
            self._engine_session_ids.add(context.session_id)

    def _identity(self, focus: str = "") -> SessionIdentity:
        return SessionIdentity(agent=self.agent, session=self.session, focus=focus)


async def _read_response(
    response: GatewayResponse,
    target: ModelTarget,
    on_fragment: Callable[[ResponseFragment], None],
    *,
    has_history: bool,
) -> ResponseStream | Failure | None:
    """What an answer told of itself by its end; None of one that did not stream, and why, where it is none."""
    await response.wait_for_head()
    if not 200 <= response.status < 300:
        body = b"".join([chunk async for chunk in response.iterate_chunks()])
        if response.is_stopped or not response.status:
            return ResponseStream(target.api_format)  # nothing of it came
        return classify_failure(response.status, response.headers, body, target, has_history=has_history)
    if not response.headers.get("content-type", "").startswith(_EVENT_STREAM):
        body = b"".join([chunk async for chunk in response.iterate_chunks()])
        for fragment in read_response(target.api_format, body):
            on_fragment(fragment)
        return None
    stream = ResponseStream(target.api_format)
    async for chunk in response.iterate_chunks():
        for fragment in stream.feed(chunk):
            on_fragment(fragment)
    for fragment in stream.end():
        on_fragment(fragment)
    return stream


def _find_failure(answer: ChatAnswer, stream: ResponseStream | None, *, is_whole: bool) -> Failure | None:
    if answer.is_stopped:
        return None
    error = None if stream is None else stream.reader.error
    if error is not None or not is_whole:
        return describe_interruption(error, has_words=answer.has_content)
    return None if answer.has_content else describe_empty_response()


def _join_text(fragments: list[ResponseFragment], kind: FragmentKind) -> str:
    return "".join(fragment.text for fragment in fragments if fragment.kind is kind)


def _new_session() -> str:
    return f"chat-{uuid4().hex}"
