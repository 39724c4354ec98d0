"""A conversation with a model: its turns, its context window and its charges.

Requests go through a gateway in the same process, without a server.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Set
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from uuid import uuid4

from foveate import formats
from foveate.budget.model_limits import DEFAULT_TOKENS, find_context_window
from foveate.chat.models import ChatConfig
from foveate.chat.requests import (
    ChatTurn,
    ModelTarget,
    SessionIdentity,
    assistant_turn,
    build_body,
    build_scope,
    user_turn,
)
from foveate.chat.responses import (
    Failure,
    FragmentKind,
    ResponseFragment,
    ResponseStream,
    classify_failure,
    describe_empty_response,
    describe_internal_error,
    describe_interruption,
    read_response,
)
from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.admission import Settlement, SettlementOutcome
from foveate.cost.ledger import Category, Charge
from foveate.cost.pricing.rates import EXACT, ZERO
from foveate.engine.background.tracing import SUMMARY, break_down_window
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver, SessionCacheMiss
from foveate.engine.relay import ResponseChunk, ResponseEvent, ResponseFinished, ResponseStarted
from foveate.engine.request import IncomingRequest, StepFailure
from foveate.engine.request_context import RequestContext
from foveate.engine.steps import SECTIONS
from foveate.engine.steps.history import compaction_candidate
from foveate.errors import FoveateError
from foveate.formats.response.errors import error_body
from foveate.gateway.app import Gateway
from foveate.gateway.request import parse_request
from foveate.gateway.response import build_error_response
from foveate.model import InsertParts, Text, TokenCount, Usage
from foveate.tokens.tokenizers.bpe import replace_surrogates

# A charge is recorded within this time, or waits in the outbox.
_CHARGE_TIMEOUT_SECONDS = 5.0
_MAX_NOTES = 100
_SETTLEMENT_TEXTS = {
    SettlementOutcome.RECORDED: "recorded",
    SettlementOutcome.ALREADY_RECORDED: "recorded already",
    SettlementOutcome.WAITING: "waiting to be recorded",
    SettlementOutcome.LOST: "lost",
}
_SECTION_REASON = re.compile(r"section ([^,]+),")
MAX_TOKENS = 4096
"""Default maximum length of an answer."""
# The answer gets at most one part in this many of a small window.
_MAX_OUTPUT_FRACTION = 4
# Text of the first turn in a preview before anything was said.
_PLACEHOLDER_TEXT = "Hello"
_EVENT_STREAM = "text/event-stream"
_LENGTH_STOP_REASONS = frozenset(("length", "max_tokens", "max_output_tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTotals:
    """`dollars` covers calls with a known price; `unknown_calls` have none."""

    model: str = ""
    category: str = ""
    calls: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    completion_tokens: int = 0
    dollars: Decimal = ZERO
    unknown_calls: int = 0
    partial_calls: int = 0
    saved_dollars: Decimal | None = None
    """Savings compared with the same requests without Foveate; None if unknown, negative for a loss."""

    @property
    def hit_ratio(self) -> float | None:
        """The share of prompt tokens read from the provider's cache; None without prompts."""
        return self.read_tokens / self.prompt_tokens if self.prompt_tokens else None


def sum_charges(charges: Iterable[Charge], *, model: str = "", category: str = "") -> CallTotals:
    all_charges = list(charges)
    known_dollars = [charge.dollars for charge in all_charges if charge.dollars is not None]
    known_savings = [saved for charge in all_charges if (saved := charge.savings.total) is not None]
    return CallTotals(
        model=model,
        category=category,
        calls=len(all_charges),
        prompt_tokens=sum(charge.usage.cache.input_tokens for charge in all_charges),
        read_tokens=sum(charge.usage.cache.read for charge in all_charges),
        completion_tokens=sum(charge.usage.output_tokens for charge in all_charges),
        dollars=reduce(EXACT.add, known_dollars, ZERO),
        unknown_calls=len(all_charges) - len(known_dollars),
        partial_calls=sum(charge.is_partial for charge in all_charges),
        saved_dollars=reduce(EXACT.add, known_savings, ZERO) if known_savings else None,
    )


def sum_charges_by_model(charges: Iterable[Charge]) -> list[CallTotals]:
    """Sum charges by model and category, in the order of their first calls."""
    groups: dict[tuple[str, str], list[Charge]] = {}
    for charge in charges:
        groups.setdefault((charge.call.model, charge.call.category.value), []).append(charge)
    return [sum_charges(group, model=model, category=category) for (model, category), group in groups.items()]


class ChatObserver(NullObserver):
    def __init__(self) -> None:
        self._charges: list[Charge] = []
        self._finished: dict[str, asyncio.Event] = {}
        self._notes: deque[str] = deque(maxlen=_MAX_NOTES)
        self._notes_compactions = True
        self.last_exchange: Exchange | None = None
        """The last exchange that ended."""

    @property
    def all_charges(self) -> list[Charge]:
        return list(self._charges)

    def charges_for(self, sessions: Set[str]) -> list[Charge]:
        return [charge for charge in self._charges if charge.call.session_id in sessions]

    def on_charge(self, charge: Charge, settlement: Settlement) -> None:
        self._charges.append(charge)
        if settlement.problem:
            self.add_note(
                f"the charge of the last call is {_SETTLEMENT_TEXTS[settlement.outcome]}: {settlement.problem}"
            )

    def on_finished(self, exchange: Exchange) -> None:
        self.last_exchange = exchange
        self._event(exchange.incoming.id).set()

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        """Note the step that a request was sent without."""
        del incoming
        self.add_note(f"the request was sent without the step {problem.step}: {problem.reason}")

    def on_compaction(self, agent: str, result: CompactionResult) -> None:
        del agent
        compaction = result.compaction
        if not self._notes_compactions:
            return
        if result.outcome is CompactionOutcome.OK and compaction is not None:
            self.add_note(
                f"compacted {compaction.messages} messages from {compaction.tokens_before:,} to "
                f"{compaction.tokens_after:,} tokens"
            )
        elif result.outcome is CompactionOutcome.FAILED:
            self.add_note(f"the history could not be compacted: {result.reason}")

    @contextmanager
    def mute_compactions(self) -> Iterator[None]:
        """Add no notes about compactions until the end of the block; the caller reports its own."""
        self._notes_compactions = False
        try:
            yield
        finally:
            self._notes_compactions = True

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        """Do nothing: `foveate explain` shows it."""

    async def wait_for_charge(self, request_id: str) -> None:
        """Wait until a call has ended, and its charge is in the ledger or the outbox."""
        try:
            async with asyncio.timeout(_CHARGE_TIMEOUT_SECONDS):
                await self._event(request_id).wait()
        except TimeoutError:
            self.add_note("the charge of the last call is not recorded yet")
        self._finished.clear()  # there is only one request at a time

    def take_notes(self) -> list[str]:
        """Return and clear the notes, without duplicates."""
        notes = list(dict.fromkeys(self._notes))
        self._notes.clear()
        return notes

    def add_note(self, text: str) -> None:
        self._notes.append(text)

    def _event(self, request_id: str) -> asyncio.Event:
        return self._finished.setdefault(request_id, asyncio.Event())


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionPreview:
    name: str
    tokens: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreview:
    """The next request as it would be sent.

    `window_tokens` is None if the model's window is unknown, and `count` if nothing is counted. `parts` is
    everything in the window by name. `sections` are injected, with at most `sections_limit` tokens together.
    """

    model: str
    count: TokenCount | None
    window_tokens: int | None
    output_reserve: int
    sections: tuple[SectionPreview, ...] = ()
    parts: tuple[tuple[str, int], ...] = ()
    sections_limit: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return self.count.tokens if self.count is not None else 0

    @property
    def is_compacted(self) -> bool:
        return any(name == SUMMARY for name, _ in self.parts)

    @property
    def token_budget(self) -> int:
        return max(1, (self.window_tokens or DEFAULT_TOKENS) - self.output_reserve)

    @property
    def share(self) -> float:
        return self.tokens / self.token_budget


def build_preview(exchange: Exchange, *, max_tokens: int) -> RequestPreview:
    """Build the preview of a prepared request.

    Raises:
        MalformedRequest: it cannot be parsed.
    """
    context = exchange.context
    if context is None:
        problems = tuple(problem.reason for problem in exchange.upstream_request.problems)
        return RequestPreview(
            model="", count=None, window_tokens=None, output_reserve=max_tokens, problems=problems
        )
    sections = context.options.sections
    context.sent_history = formats.message_history(context.request)
    return RequestPreview(
        model=context.model,
        count=context.count.total,
        window_tokens=context.window_tokens,
        output_reserve=context.output_reserve_tokens,
        sections=tuple(_list_injected_sections(context)),
        parts=tuple((part.name, part.tokens) for part in break_down_window(context)),
        sections_limit=None if sections is None else sections.total_tokens,
        problems=tuple(f"{problem.step}: {problem.reason}" for problem in context.problems),
    )


def _list_injected_sections(context: RequestContext) -> list[SectionPreview]:
    """List the injected sections, whose names are in the reasons of their edits."""
    sections = []
    for applied_edit in context.applied_edits:
        edit = applied_edit.edit
        if applied_edit.step != SECTIONS or not isinstance(edit, InsertParts):
            continue
        name = _SECTION_REASON.match(edit.reason)
        text = "\n".join(part.text for part in edit.parts if isinstance(part, Text))
        sections.append(
            SectionPreview(name=name[1] if name else "said before", tokens=-edit.saved_tokens, text=text)
        )
    return sections


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
        self._answer_task: asyncio.Task[None] | None = None
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
        return sum_charges(filter(_is_main_call, self.charges))

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
        if self._answer_task is not None:
            self._answer_task.cancel()
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
        client_request = parse_request(build_scope(target, self._identity()))
        answer = _AnswerReader(target, show)
        task = self._answer_task = asyncio.ensure_future(answer.read(self._gateway.send(client_request, body)))
        try:
            await asyncio.wait([task])
        finally:
            self._answer_task = None
            if task.cancel():  # this call itself was cancelled
                await asyncio.wait([task])
        is_stopped = task.cancelled()
        if not is_stopped:
            task.result()
        request_id = client_request.id
        if answer.has_error and not is_stopped:
            failure = classify_failure(
                answer.status, answer.headers, answer.body, target, has_history=len(turns) > 1
            )
            return ChatAnswer(failure=failure, request_id=request_id)
        self._request_ids.add(request_id)
        await self._observer.wait_for_charge(request_id)
        self._remember_session(self._observer.last_exchange)
        chat_answer = ChatAnswer(
            text=_join_text(answer.fragments, FragmentKind.TEXT),
            thinking=_join_text(answer.fragments, FragmentKind.THINKING),
            tool_calls=tuple(
                fragment.text for fragment in answer.fragments if fragment.kind is FragmentKind.TOOL_CALL
            ),
            is_stopped=is_stopped,
            is_truncated=answer.stream is not None and answer.stream.reader.stop_reason in _LENGTH_STOP_REASONS,
            charge=next((charge for charge in self.charges if charge.call.id == request_id), None),
            request_id=request_id,
        )
        return replace(
            chat_answer, failure=_find_failure(chat_answer, answer.stream, is_complete=answer.is_complete)
        )

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
        request = parse_request(build_scope(self.target, self._identity(focus)))
        exchange = await self._gateway.preview(request, body)
        self._remember_session(exchange)
        return exchange

    def _remember_session(self, exchange: Exchange | None) -> None:
        context = exchange.context if exchange is not None else None
        if context is not None and context.session.match is not None:
            self._engine_session_ids.add(context.session_id)

    def _identity(self, focus: str = "") -> SessionIdentity:
        return SessionIdentity(agent=self.agent, session=self.session, focus=focus)


def _is_main_call(charge: Charge) -> bool:
    """Summaries, counts and keep-alive requests are not main calls."""
    return charge.call.category is Category.MAIN


class _AnswerReader:
    """Reads a response and shows its fragments as they arrive. `stream` is None if it did not stream."""

    def __init__(self, target: ModelTarget, show: Callable[[ResponseFragment], None]) -> None:
        self._target = target
        self._show = show
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.stream: ResponseStream | None = None
        self.fragments: list[ResponseFragment] = []
        self.is_complete = False

    @property
    def has_error(self) -> bool:
        return not 200 <= self.status < 300

    async def read(self, sending: Awaitable[AsyncGenerator[ResponseEvent]]) -> None:
        try:
            async with aclosing(await sending) as events:
                async for event in events:
                    self._read_event(event)
        except FoveateError as error:
            if not self.status:
                error_response = build_error_response(error, self._target.api_format)
                self.status = error_response.status
                self.body = error_body(self._target.api_format, error_response, "")

    def _read_event(self, event: ResponseEvent) -> None:
        match event:
            case ResponseStarted():
                self.status = event.status
                self.headers = {
                    name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers
                }
                if not self.has_error and self.headers.get("content-type", "").startswith(_EVENT_STREAM):
                    self.stream = ResponseStream(self._target.api_format)
            case ResponseChunk(data):
                self._read_chunk(data)
            case ResponseFinished(data):
                self._read_chunk(data)
                self.is_complete = True
                if self.stream is not None:
                    self._add_fragments(self.stream.end())
                elif not self.has_error:
                    self._add_fragments(read_response(self._target.api_format, self.body))

    def _read_chunk(self, chunk: bytes) -> None:
        if self.stream is None:
            self.body += chunk
        else:
            self._add_fragments(self.stream.feed(chunk))

    def _add_fragments(self, fragments: Iterable[ResponseFragment]) -> None:
        for fragment in fragments:
            self.fragments.append(fragment)
            self._show(fragment)


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
