"""Summaries by a model over HTTP, in the client's API format: Messages, chat completions or Responses.

If the agent's own model writes the summary, the request is sent again with one instruction appended, so that
the provider's cache serves all of it but the instruction. Otherwise the model is shown the messages as data, in
chunks if its window is too small, each with the summary of the chunks before it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Protocol

import msgspec

from foveate import formats
from foveate.budget.model_limits import find_context_window
from foveate.compaction.summarize import prompts
from foveate.compaction.summarize.summarizer import Summary, SummaryFailure, SummaryInput, UsageLog
from foveate.compaction.summarize.verify import check_relevance, find_problem
from foveate.errors import BadOption, MalformedRequest, UpstreamError, UpstreamStatus
from foveate.formats.json_text.parse import as_dict, parse_fields, parse_json, parse_object, select_fields
from foveate.formats.response.usage import find_usage
from foveate.http import JsonClient, JsonReply
from foveate.model import Area, Edit, Format, InsertParts, Message, Place, ReplaceMessages, Request, Text, Usage
from foveate.prompt_cache.rules import CachingMode, rules_for
from foveate.tokens import counter_for

# Anthropic's stop reasons: platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (read November
# 2026).
_TRUNCATED_REASONS = frozenset(("max_tokens", "length", "model_context_window_exceeded", "max_output_tokens"))
_REFUSAL_REASONS = frozenset(("refusal", "content_filter"))
_TOOL_CALL_REASONS = frozenset(("tool_use", "tool_calls", "function_call", "pause_turn"))
# Local models put their thinking into the text if the server does not separate it. Some templates open the
# block in the prompt, so that the response contains only its end: ggml-org/llama.cpp#11861,
# vllm-project/vllm#13125 (2025).
_THINKING_BLOCK = re.compile(r"\s*<(think|thinking)>.*?(</\1>|\Z)", re.DOTALL)
_THINKING_END = re.compile(r"^[^\S\n]*</(think|thinking)>[ \t]*$", re.MULTILINE)
_REASON_DECODER = msgspec.json.Decoder(str | None)
_NULL = msgspec.Raw(b"null")
RETRY_DELAYS_SECONDS = (1.0, 4.0, 16.0)
_DEFAULT_WINDOW_TOKENS = 16_384
# The prompt asks for a number of words. The response may be longer, and truncated text is lost.
_OUTPUT_FACTOR = 2
_MAX_OUTPUT_TOKENS = 8_192
# A client with a shorter timeout is meant for counting tokens.
_MIN_TIMEOUT_SECONDS = 2.0
_MAX_SUMMARY_TOKENS = 6_000
# For models that think by default, which counts as output.
_THINKING_TOKENS = 4_096
# Smaller chunks would make too many summaries of summaries.
_MIN_CHUNK_TOKENS = 512
_TRANSIENT_STATUSES = frozenset((408, 409, 425, 429))  # the same request may succeed a little later
_REJECTED_STATUSES = frozenset((400, 413, 422))  # another request may succeed
_UNFORCED_TOOL_CHOICES = frozenset(("", "auto", "none"))
_THINKING_OFF = frozenset(("", "disabled", "none"))
# These fields are not part of the cached prefix, and each would prevent a single complete text.
_DROPPED_FIELDS = frozenset(
    ("stream", "stream_options", "stop", "stop_sequences", "n", "logprobs", "top_logprobs", "prediction",
     "max_tokens", "max_completion_tokens", "max_output_tokens", "logit_bias", "modalities", "audio",
     "background")
)  # fmt: skip
# Fields that force an output format, besides OpenAI's: vLLM's names (docs.vllm.ai, structured outputs) and
# llama.cpp's (tools/server/README.md), read November 2026.
_OUTPUT_FORMAT_FIELDS = frozenset(
    ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag", "structured_outputs",
     "grammar", "json_schema")
)  # fmt: skip
Sleep = Callable[[float], Awaitable[None]]
_OUTPUT_LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryResponse:
    text: str
    usage: Usage | None
    problem: str | None = None
    has_tool_calls: bool = False
    is_truncated: bool = False


class _AnthropicBlock(msgspec.Struct):
    type: str = ""
    text: str = ""


class _ChatMessage(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None  # the deprecated form of tool_calls


class _ResponsesItem(msgspec.Struct):
    """An item of a response; content is read only from messages."""

    type: str = ""
    content: list["_ResponsesContent"] | None = None


class _ResponsesContent(msgspec.Struct):
    type: str = ""
    text: str = ""


class _IncompleteDetails(msgspec.Struct):
    reason: str | None = None


class _ChatChoice(msgspec.Struct):
    message: _ChatMessage = msgspec.field(default_factory=_ChatMessage)
    finish_reason: str | None = None


_BLOCKS_DECODER = msgspec.json.Decoder(list[_AnthropicBlock])
_CHOICES_DECODER = msgspec.json.Decoder(list[_ChatChoice])
_OUTPUT_DECODER = msgspec.json.Decoder(list[_ResponsesItem])
_INCOMPLETE_DECODER = msgspec.json.Decoder(_IncompleteDetails | None)


def parse_response(api_format: Format, reply: JsonReply) -> SummaryResponse:
    try:
        usage = find_usage(api_format, reply)
    except MalformedRequest:
        usage = None
    try:
        if api_format is Format.RESPONSES:
            return _parse_responses(reply, usage)
        return _parse_anthropic(reply, usage) if api_format is Format.ANTHROPIC else _parse_chat(reply, usage)
    except msgspec.MsgspecError:
        return SummaryResponse(text="", usage=usage, problem="the response has an unexpected format")


def _parse_anthropic(reply: JsonReply, usage: Usage | None) -> SummaryResponse:
    if "content" not in reply:
        return SummaryResponse(text="", usage=usage, problem="the response has no content")
    blocks = _BLOCKS_DECODER.decode(reply["content"])
    reason = _REASON_DECODER.decode(reply.get("stop_reason", msgspec.Raw(b"null"))) or ""
    text = "".join(block.text for block in blocks if block.type == "text")
    return _build_response(
        text, usage, reason, has_tool_calls=any(block.type.endswith("tool_use") for block in blocks)
    )


def _parse_chat(reply: JsonReply, usage: Usage | None) -> SummaryResponse:
    choices = _CHOICES_DECODER.decode(reply.get("choices", msgspec.Raw(b"[]")))
    if not choices:
        return SummaryResponse(text="", usage=usage, problem="the response has no choices")
    message = choices[0].message
    reason = "refusal" if message.refusal else choices[0].finish_reason or ""
    return _build_response(
        message.content or "", usage, reason, has_tool_calls=bool(message.tool_calls or message.function_call)
    )


def _parse_responses(reply: JsonReply, usage: Usage | None) -> SummaryResponse:
    status = _REASON_DECODER.decode(reply.get("status", _NULL)) or "completed"
    if status not in ("completed", "incomplete"):
        return SummaryResponse(text="", usage=usage, problem=f"the response has the status {status}")
    items = _OUTPUT_DECODER.decode(reply.get("output", msgspec.Raw(b"[]")))
    parts = [part for item in items if item.type == "message" for part in item.content or ()]
    if not items:
        return SummaryResponse(text="", usage=usage, problem="the response has no output")
    incomplete = _INCOMPLETE_DECODER.decode(reply.get("incomplete_details", _NULL))
    reason = (incomplete.reason if incomplete is not None else None) or ""
    if any(part.type == "refusal" for part in parts):
        reason = "refusal"
    text = "".join(part.text for part in parts if part.type == "output_text")
    return _build_response(
        text, usage, reason, has_tool_calls=any(item.type.endswith("_call") for item in items)
    )


def _build_response(text: str, usage: Usage | None, reason: str, *, has_tool_calls: bool) -> SummaryResponse:
    problem = None
    has_tool_calls = has_tool_calls or reason in _TOOL_CALL_REASONS
    is_truncated = not has_tool_calls and reason in _TRUNCATED_REASONS
    if has_tool_calls:
        problem = "the response calls a tool instead of summarizing"
    elif reason in _REFUSAL_REASONS:
        problem = "the response is a refusal, not a summary"
    elif is_truncated:
        problem = "the summary was cut off"
    return SummaryResponse(
        text=_strip_thinking(text),
        usage=usage,
        problem=problem,
        has_tool_calls=has_tool_calls,
        is_truncated=is_truncated,
    )


def _strip_thinking(text: str) -> str:
    thinking = _THINKING_BLOCK.match(text) or _THINKING_END.search(text)
    return text[thinking.end() :].strip() if thinking else text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarizerEndpoint:
    """Full URL, API format and headers, including the key, of a summarizing model.

    `model` is the endpoint's name of the client's own model if it differs, such as an Azure deployment. The
    query of `url` can contain a key. Without `reuse_connection`, each call opens its own connection.
    """

    url: str = field(repr=False)
    api_format: Format
    headers: Mapping[str, str] = field(repr=False)
    model: str = ""
    reuse_connection: bool = True


class _BodyWriter(Protocol):
    def __call__(self, *, more_output: bool) -> bytes: ...


class _NextStep(Enum):
    RETRY = auto()
    MORE_OUTPUT = auto()
    RETRY_ONCE = auto()  # a second unrelated text will not be followed by a summary
    AS_DATA = auto()  # show the messages as data instead
    GIVE_UP = auto()


_FINAL_STEPS = frozenset((_NextStep.AS_DATA, _NextStep.GIVE_UP))


@dataclass(frozen=True, slots=True)
class _Attempt:
    text: str
    problem: str | None = None
    next_step: _NextStep = _NextStep.RETRY


class LlmSummarizer:
    """Implements `Summarizer`. Without `model`, the agent's own model at the same provider."""

    def __init__(
        self,
        client: JsonClient,
        endpoint: SummarizerEndpoint,
        *,
        model: str = "",
        window_tokens: int | None = None,
        delays_seconds: Sequence[float] = RETRY_DELAYS_SECONDS,
        sleep: Sleep = asyncio.sleep,
        only_cached: bool = False,
    ) -> None:
        """The timeout of `client` is for one response, which can take minutes.

        With `only_cached`, a model that does not summarize what it has in its cache is not asked again with the
        messages as data, which costs ten times as much.

        Raises:
            BadOption: the timeout is one for counting tokens.
        """
        if client.timeout_seconds <= _MIN_TIMEOUT_SECONDS:
            raise BadOption(
                f"a timeout of {client.timeout_seconds:g} s is too short for summaries; allow minutes"
            )
        self.model = model
        self._client = client
        self._endpoint = endpoint
        self._window_tokens = window_tokens
        self._delays_seconds = delays_seconds
        self._sleep = sleep
        self._only_cached = only_cached

    async def summarize(
        self, summary_input: SummaryInput, usage_log: UsageLog | None = None, *, limit_tokens: int
    ) -> Summary | SummaryFailure:
        """Write a summary, from the cached prefix if possible."""
        usage_log = UsageLog() if usage_log is None else usage_log
        writer = self._make_writer(summary_input, limit_tokens)
        if writer.can_read_cache(summary_input):
            prompt = prompts.continuation_prompt(
                summary_input.tail, summary_input.facts, limit_tokens=writer.limit_tokens
            )
            # A model that continues the work, or talks to the user, must be shown the messages as data.
            attempt = await self._ask_with_retries(
                partial(writer.append_prompt, summary_input, prompt),
                summary_input,
                writer,
                usage_log,
                final_steps=_FINAL_STEPS | {_NextStep.RETRY_ONCE},
            )
            if self._only_cached or attempt.next_step not in (_NextStep.AS_DATA, _NextStep.RETRY_ONCE):
                return writer.to_summary(attempt)
        return writer.to_summary(await self._summarize_chunks(summary_input, writer, usage_log))

    async def redraft(
        self,
        summary_input: SummaryInput,
        draft: str,
        missing: Sequence[str],
        usage_log: UsageLog,
        *,
        limit_tokens: int,
    ) -> Summary | SummaryFailure:
        """Write the summary again with the facts it omitted; only the last chunk is shown again."""
        writer = self._make_writer(summary_input, limit_tokens)
        if writer.can_read_cache(summary_input):
            prompt = prompts.continuation_prompt(
                summary_input.tail, summary_input.facts, limit_tokens=writer.limit_tokens
            )
            body = writer.append_prompt(
                summary_input, prompt, draft, prompts.redraft_prompt(missing), more_output=False
            )
        else:
            chunks = await asyncio.to_thread(writer.split_chunks, summary_input)
            if not chunks:
                return SummaryFailure(reason="there is nothing to summarize")
            body = writer.show_chunk(chunks[-1], draft, missing, is_last=True, more_output=False)
        return writer.to_summary(await self._ask_once(body, summary_input, writer, usage_log))

    def _make_writer(self, summary_input: SummaryInput, limit_tokens: int) -> "_RequestWriter":
        model = self.model or summary_input.request.model
        window = find_context_window(model)
        default_tokens = window.tokens if window is not None else _DEFAULT_WINDOW_TOKENS
        name = self.model or self._endpoint.model or model
        return _RequestWriter(
            model, name, self._endpoint.api_format, self._window_tokens or default_tokens, limit_tokens
        )

    async def _summarize_chunks(
        self, summary_input: SummaryInput, writer: "_RequestWriter", usage_log: UsageLog
    ) -> _Attempt:
        chunks = await asyncio.to_thread(writer.split_chunks, summary_input)
        attempt = _Attempt(
            summary_input.earlier_summary,
            "the context window of the summarizer is too small for any part of the history",
        )
        for number, chunk in enumerate(chunks, start=1):
            write_body = partial(
                writer.show_chunk, chunk, attempt.text, summary_input.facts, is_last=number == len(chunks)
            )
            # The summary so far may be as long as everything it covers, of which only a chunk is shown.
            attempt = await self._ask_with_retries(write_body, summary_input, writer, usage_log)
            if attempt.problem is not None:
                break
        return attempt

    async def _ask_with_retries(
        self,
        write_body: _BodyWriter,
        summary_input: SummaryInput,
        writer: "_RequestWriter",
        usage_log: UsageLog,
        *,
        final_steps: Set[_NextStep] = _FINAL_STEPS,
    ) -> _Attempt:
        """Ask until there is a summary, with more output tokens if one was truncated."""
        attempt = _Attempt("")
        tried_steps: set[_NextStep] = set()
        for delay in (0.0, *self._delays_seconds):
            if delay and attempt.next_step is not _NextStep.MORE_OUTPUT:
                await self._sleep(delay)
            attempt = await self._ask_once(
                write_body(more_output=_NextStep.MORE_OUTPUT in tried_steps), summary_input, writer, usage_log
            )
            is_done = attempt.problem is None or attempt.next_step in final_steps
            if is_done or (attempt.next_step is not _NextStep.RETRY and attempt.next_step in tried_steps):
                break
            tried_steps.add(attempt.next_step)
        return attempt

    async def _ask_once(
        self, body: bytes, summary_input: SummaryInput, writer: "_RequestWriter", usage_log: UsageLog
    ) -> _Attempt:
        usage_log.start_call()
        try:
            response = await self._post(body)
        except UpstreamStatus as error:
            usage_log.drop_call()
            is_transient = error.status >= 500 or error.status in _TRANSIENT_STATUSES or error.status < 400
            fallback_step = _NextStep.AS_DATA if error.status in _REJECTED_STATUSES else _NextStep.GIVE_UP
            return _Attempt("", str(error), _NextStep.RETRY if is_transient else fallback_step)
        except UpstreamError as error:
            return _Attempt("", str(error))
        usage_log.finish_call(response.usage)
        if response.problem is not None:
            next_step = (
                _NextStep.AS_DATA
                if response.has_tool_calls
                else _NextStep.MORE_OUTPUT
                if response.is_truncated
                else _NextStep.RETRY
            )
            return _Attempt("", response.problem, next_step)
        return await asyncio.to_thread(writer.check_text, response.text, summary_input)

    async def _post(self, body: bytes) -> SummaryResponse:
        reply = await self._client.post_json(self._endpoint.url, body, self._endpoint.headers)
        return parse_response(self._endpoint.api_format, reply)


class _PromptMessage(msgspec.Struct):
    role: str
    content: str


class _PromptBody(msgspec.Struct, omit_defaults=True):
    """A request in the Messages or chat completions format."""

    model: str
    messages: list[_PromptMessage]
    system: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _ResponsesPromptBody(msgspec.Struct):
    """A Responses request. Its response is never referenced again, so it is not stored."""

    model: str
    instructions: str
    input: str
    max_output_tokens: int
    store: bool = False


class _RequestWriter:
    def __init__(
        self, model: str, name: str, api_format: Format, window_tokens: int, limit_tokens: int
    ) -> None:
        self._model = model
        self._name = name
        self._api_format = api_format
        self._window_tokens = window_tokens
        self.limit_tokens = min(limit_tokens, _MAX_SUMMARY_TOKENS, max(window_tokens // 8, 1))
        self._counter = counter_for(model)
        self._rules = rules_for(model)
        self._summary_room_tokens = min(self.limit_tokens * _OUTPUT_FACTOR, _MAX_OUTPUT_TOKENS)

    def count_upper(self, text: str) -> int:
        return self._counter.text(text).upper

    def to_summary(self, attempt: _Attempt) -> Summary | SummaryFailure:
        if attempt.problem is not None:
            return SummaryFailure(reason=attempt.problem)
        return Summary(text=attempt.text, model=self._model)

    def check_text(self, text: str, summary_input: SummaryInput) -> _Attempt:
        problem = find_problem(text, replaced_tokens=summary_input.replaced_tokens, count=self.count_upper)
        if problem is not None:
            return _Attempt("", problem)
        problem = check_relevance(text, summary_input.head, summary_input.earlier_summary)
        return _Attempt(text) if problem is None else _Attempt("", problem, _NextStep.RETRY_ONCE)

    def can_read_cache(self, summary_input: SummaryInput) -> bool:
        """Return whether the sent request can be sent again and would be read from the cache."""
        request = summary_input.request
        is_same = request.model == self._model and request.format is self._api_format
        # A forced tool or schema would determine the response, and removing it would invalidate the cache.
        if (
            not (is_same and summary_input.is_cached)
            or request.schema is not None
            or request.tool_choice not in _UNFORCED_TOOL_CHOICES
            or _has_output_format(request)
        ):
            return False
        is_cached = self._rules.caching in (CachingMode.AUTOMATIC, CachingMode.BOTH) or (
            self._rules.caching is CachingMode.BREAKPOINTS and _has_breakpoints(request)
        )
        prompt_tokens = self.count_upper(
            prompts.continuation_prompt(summary_input.tail, summary_input.facts, limit_tokens=self.limit_tokens)
        )
        return (
            is_cached
            and summary_input.request_tokens + prompt_tokens + self._output_tokens(request)
            <= self._window_tokens
        )

    def append_prompt(
        self, summary_input: SummaryInput, prompt: str, *replies: str, more_output: bool
    ) -> bytes:
        roles = ("user", "assistant")
        messages = tuple(
            Message(role=roles[number % 2], parts=(Text(text),))
            for number, text in enumerate((prompt, *replies))
        )
        body = formats.apply_edits(summary_input.request, _append_messages(summary_input.request, messages))
        names = frozenset(parse_fields(body)) - _DROPPED_FIELDS
        max_output_tokens = self._output_tokens(summary_input.request) + (
            self._summary_room_tokens if more_output else 0
        )
        return select_fields(body, names, **{self._limit_field(): max_output_tokens})

    def show_chunk(
        self, chunk: str, earlier_summary: str, facts: Sequence[str], *, is_last: bool, more_output: bool
    ) -> bytes:
        system = prompts.system_prompt(limit_tokens=self.limit_tokens)
        prompt = prompts.chunk_prompt(chunk, earlier_summary, facts, is_last=is_last)
        max_output_tokens = self._default_output_tokens() + (self._summary_room_tokens if more_output else 0)
        if self._api_format is Format.RESPONSES:
            return msgspec.json.encode(
                _ResponsesPromptBody(
                    model=self._name, instructions=system, input=prompt, max_output_tokens=max_output_tokens
                )
            )
        body = _PromptBody(model=self._name, messages=[_PromptMessage("user", prompt)])
        if self._api_format is Format.ANTHROPIC:
            body.system = system
        else:
            body.messages.insert(0, _PromptMessage("system", system))
        setattr(body, self._limit_field(), max_output_tokens)
        return msgspec.json.encode(body)

    def split_chunks(self, summary_input: SummaryInput) -> list[str]:
        """The new messages as texts that fit the window; none if it is too small."""
        empty_prompt = prompts.chunk_prompt(
            "", summary_input.earlier_summary, summary_input.facts, is_last=False
        )
        prompt_tokens = self.count_upper(
            prompts.system_prompt(limit_tokens=self.limit_tokens)
        ) + self.count_upper(empty_prompt)
        left_tokens = (
            self._window_tokens - self._default_output_tokens() - self._summary_room_tokens - prompt_tokens
        )
        # Reserve for message framing and for counts that change where texts meet.
        chunk_tokens = int(left_tokens * 0.95) - 64
        if chunk_tokens < _MIN_CHUNK_TOKENS:
            return []
        return prompts.split_messages(
            summary_input.new_messages, chunk_tokens=chunk_tokens, count=self.count_upper
        )

    def _limit_field(self) -> str:
        if self._api_format is Format.RESPONSES:
            return "max_output_tokens"
        is_openai = self._api_format is Format.CHAT and self._rules.provider == "openai"
        return "max_completion_tokens" if is_openai else "max_tokens"

    def _default_output_tokens(self) -> int:
        return self._summary_room_tokens + (0 if self._limit_field() == "max_tokens" else _THINKING_TOKENS)

    def _output_tokens(self, request: Request) -> int:
        """Output limit if the sent request is repeated; thinking stays enabled if it was."""
        if request.thinking in _THINKING_OFF:
            return self._default_output_tokens()
        body_fields = parse_fields(request.body)
        own_limit = next(
            (parse_json(body_fields[name]) for name in _OUTPUT_LIMIT_FIELDS if name in body_fields), 0
        )
        budget = parse_object(body_fields.get("thinking")).get("budget_tokens", 0)
        limits = [number for number in (own_limit, budget) if isinstance(number, int)]
        return max(*limits, sum(limits[1:]) + self._default_output_tokens(), self._default_output_tokens())


def _append_messages(request: Request, messages: tuple[Message, ...]) -> list[Edit]:
    """Edits that append messages to a request.

    In the Messages API only the assistant may speak after a system message. If the conversation ends with one,
    the first message becomes its last block, so that the whole prefix is still cached.
    """
    reason, end = "requests a summary", len(request.messages)
    edits: list[Edit] = []
    system_place = _last_system_place(request)
    if system_place is not None:
        edits.append(InsertParts(place=system_place, parts=messages[0].parts, reason=reason))
        messages = messages[1:]
    if messages:
        edits.append(ReplaceMessages(start=end, end=end, messages=messages, reason=reason))
    return edits


def _last_system_place(request: Request) -> Place | None:
    """The end of the system message that an Anthropic conversation ends with; None if it ends otherwise.

    System messages without content only set parameters and do not count.
    """
    if request.format is not Format.ANTHROPIC:
        return None
    for index in reversed(range(len(request.messages))):
        message = formats.parse_message(request.format, request.messages[index])
        if message.role != "system":
            return None
        if message.parts:
            return Place(Area.MESSAGES, index, len(message.parts))
    return None


def _has_output_format(request: Request) -> bool:
    """Return whether the response must be something else than plain text."""
    body_fields = parse_fields(request.body)
    text_format = as_dict(parse_object(body_fields.get("text")).get("format"))  # of the Responses API
    has_format = any(
        form.get("type", "text") != "text"
        for form in (parse_object(body_fields.get("response_format")), text_format)
    )
    # The deprecated form that forces a call: {"name": …}.
    is_call_forced = isinstance(parse_json(body_fields.get("function_call")), dict)
    return (
        has_format
        or is_call_forced
        or any(parse_json(body_fields.get(name)) is not None for name in _OUTPUT_FORMAT_FIELDS)
    )


def _has_breakpoints(request: Request) -> bool:
    return formats.automatic_breakpoint(request) is not None or any(
        block.breakpoint_ttl for block in formats.request_blocks(request)
    )
