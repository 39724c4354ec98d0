"""A conversation with a model: its turns, its context window and its charges.

Requests go to the gateway's ASGI app in the same process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import uuid4

from foveate.budget.model_limits import DEFAULT_TOKENS, find_context_window
from foveate.chat.costs import CallTotals, ChatObserver, is_main_call, sum_charges
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
from foveate.engine.steps.overflow import compaction_candidate
from foveate.gateway.app import Gateway
from foveate.gateway.request import REQUEST_ID_HEADER, AsgiApp, Receive, Scope
from foveate.model import Usage
from foveate.tokens.tokenizers.bpe import replace_surrogates

Message = MutableMapping[str, Any]
MAX_TOKENS = 4096
"""Default maximum length of an answer."""
# The answer gets at most one part in this many of a small window.
_MAX_OUTPUT_FRACTION = 4
# Text of the first turn in a preview before anything was said.
_PLACEHOLDER_TEXT = "Hello"
_EVENT_STREAM = "text/event-stream"
_LENGTH_STOP_REASONS = frozenset(("length", "max_tokens", "max_output_tokens"))


class GatewayResponse:
    """A response that is arriving. `is_stopped`: the user does not want the rest."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._disconnected = asyncio.Event()
        self._is_request_sent = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = self.is_stopped = False

    def stop(self) -> None:
        """Cancel the response. The provider is disconnected, and the part so far is charged."""
        self.is_stopped = True
        self.disconnect()

    def disconnect(self) -> None:
        self._disconnected.set()
        self.close()

    def close(self) -> None:
        self._messages.put_nowait(None)

    def create_receive(self, body: bytes) -> Receive:
        """Return an ASGI `receive` for the request, and later for the disconnect."""

        async def receive() -> Message:
            if self._is_request_sent:
                await self._disconnected.wait()
                return {"type": "http.disconnect"}
            self._is_request_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        return receive

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        self._messages.put_nowait(message)

    async def wait_for_head(self) -> None:
        """Wait for the head, or for the end."""
        while not self.status:
            if await self._messages.get() is None:
                self.close()
                return

    async def iterate_chunks(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None and not self.is_stopped:
            if message["type"] != "http.response.body":
                continue
            if chunk := message.get("body", b""):
                yield chunk
            if not message.get("more_body"):
                self.is_complete = True
                return


@asynccontextmanager
async def send_request(app: AsgiApp, scope: Scope, body: bytes) -> AsyncIterator[GatewayResponse]:
    """Send a request and yield its response. After the block nothing is running, and its charge is known."""
    response = GatewayResponse()
    serving_task = asyncio.ensure_future(app(scope, response.create_receive(body), response.send))
    serving_task.add_done_callback(lambda _: response.close())
    try:
        yield response
    finally:
        if not response.is_complete:
            response.disconnect()
        await asyncio.wait([serving_task])
    serving_task.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """The answer to a question. `is_stopped`: by the user. `is_truncated`: it reached its maximum length.

    `charge` is None if there is none.
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
        """No provider accepts a blank message, so a conversation cannot continue from one."""
        return bool(self.text.strip() or self.tool_calls)

    @property
    def usage(self) -> Usage | None:
        return self.charge.usage if self.charge is not None else None

    @property
    def dollars(self) -> Decimal | None:
        """None if the price is unknown."""
        return self.charge.dollars if self.charge is not None else None


class ChatConversation:
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
        self.message_count = 0
        """Messages sent in all sessions of this chat."""
        self.session = _new_session()
        self._engine_session_ids: set[str] = set()
        """The engine's ids of this session, which its charges have."""
        self._request_ids: set[str] = set()
        """Its requests. Without a store, the engine treats each as a session of its own."""

    @property
    def total_charges(self) -> CallTotals:
        return sum_charges(self.charges)

    @property
    def main_charges(self) -> CallTotals:
        """Charges of answers only, for the hit ratio."""
        return sum_charges(filter(is_main_call, self.charges))

    @property
    def chat_charges(self) -> CallTotals:
        """Charges of all sessions of this chat, including those before a reset."""
        return sum_charges(self._observer.all_charges)

    @property
    def charges(self) -> list[Charge]:
        return self._observer.charges_for(self._engine_session_ids | self._request_ids)

    @property
    def session_id(self) -> str:
        """The engine's id of this session; the requested one until the engine knows it."""
        return min(self._engine_session_ids, default=self.session)

    def take_notes(self) -> list[str]:
        return self._observer.take_notes()

    def max_tokens(self) -> int:
        if self._max_tokens is not None:
            return self._max_tokens
        configured = self._config.current_config().agents(self.agent).window_tokens
        model_window = find_context_window(self.target.model)
        window = configured or (model_window.tokens if model_window is not None else DEFAULT_TOKENS)
        return max(1, min(MAX_TOKENS, window // _MAX_OUTPUT_FRACTION))

    def switch_model(self, model: str) -> ModelTarget:
        """Use another model from now on, with the same conversation.

        Raises:
            BadOption: the model cannot be used; then nothing changes.
        """
        self.target = self._config.select_model(model)
        return self.target

    def reset(self) -> None:
        self._config.reset_compaction()
        self.turns = ()
        self.session = _new_session()
        self._engine_session_ids, self._request_ids = set(), set()

    def stop(self) -> None:
        """Cancel the running request or compaction, if any."""
        if self._pending_response is not None:
            self._pending_response.stop()
        if self._compaction_task is not None:
            self._compaction_task.cancel()

    async def ask(self, text: str, show: Callable[[ResponseFragment], None] = lambda _: None) -> ChatAnswer:
        """Ask a question, and show the answer as it arrives.

        An answer that was stopped or cut off is kept with its question. If there is no answer at all, neither
        is kept.
        """
        turns = (*self.turns, user_turn(replace_surrogates(text)))
        self.message_count += 1
        try:
            answer = await self._request_answer(turns, show)
        except Exception as error:  # noqa: BLE001 - outermost border: the conversation must not be lost
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

        def on_fragment(fragment: ResponseFragment) -> None:
            fragments.append(fragment)
            show(fragment)

        async with send_request(self._gateway, build_scope(target, self._identity()), body) as response:
            self._pending_response = response
            try:
                stream = await _read_response(response, target, on_fragment, has_history=len(turns) > 1)
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
        return replace(answer, failure=_find_failure(answer, stream, is_complete=response.is_complete))

    async def preview(self, *, focus: str = "") -> RequestPreview:
        """Prepare the next request, exactly as a question would be.

        Raises:
            FoveateError: it would be rejected.
        """
        return build_preview(await self._preview_exchange(focus), max_tokens=self.max_tokens())

    async def compact(self) -> CompactionResult | None:
        """Compact everything but the last exchange; None if that is not possible.

        Raises:
            FoveateError: the request would be rejected.
        """
        self._config.enable_compaction()
        context = (await self._preview_exchange()).context
        compact_now = self._gateway.engine.compact_now
        if (
            compact_now is None
            or context is None
            or context.session.chain is None
            or context.count.total is None
            or not self.turns
        ):
            return None
        options = context.options
        context.options = replace(
            options,
            compaction_options=replace(
                options.compaction_options, tail_keep_tokens=1, min_turns_between=0, extractive=True
            ),
            window_tokens=context.window_tokens or max(DEFAULT_TOKENS, 2 * context.count.total.tokens),
        )
        self._compaction_task = asyncio.ensure_future(
            compact_now(context, compaction_candidate(context, must_fit=True))
        )
        try:
            with self._observer.mute_compactions():
                return await self._compaction_task
        except asyncio.CancelledError:
            if not self._compaction_task.cancelled():
                raise
            return CompactionResult(outcome=CompactionOutcome.FAILED, reason="you cancelled it")
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
        if context is not None and context.session.match is not None:
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
    """Read a response; return its stream, None if it did not stream, or the failure."""
    await response.wait_for_head()
    if not 200 <= response.status < 300:
        body = b"".join([chunk async for chunk in response.iterate_chunks()])
        if response.is_stopped or not response.status:
            return ResponseStream(target.api_format)  # nothing arrived
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


def _find_failure(answer: ChatAnswer, stream: ResponseStream | None, *, is_complete: bool) -> Failure | None:
    if answer.is_stopped:
        return None
    error = None if stream is None else stream.reader.error
    if error is not None or not is_complete:
        return describe_interruption(error, has_content=answer.has_content)
    return None if answer.has_content else describe_empty_response()


def _join_text(fragments: list[ResponseFragment], kind: FragmentKind) -> str:
    return "".join(fragment.text for fragment in fragments if fragment.kind is kind)


def _new_session() -> str:
    return f"chat-{uuid4().hex}"
