"""The sandbox: validates requests, generates responses, and computes their usage.

It does no network I/O and takes the clock as a parameter, so that a test can let an hour pass.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from blake3 import blake3

from foveate import formats
from foveate.budget.model_limits import find_context_window
from foveate.caching import LruCache
from foveate.errors import BadOption, MalformedRequest
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE, as_text, to_json
from foveate.formats.response import errors
from foveate.formats.response.errors import (
    ErrorResponse,
    gemini_error_object,
    make_overloaded_error,
    make_status_error,
    openai_error_object,
)
from foveate.model import CacheUsage, Format, Request, Usage
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import block_tokens_for, build_cached_prompt
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import CacheRules, CachingMode, rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.sandbox import thinking_signatures
from foveate.sandbox.http import (
    MAX_BODY_BYTES,
    AzureRoute,
    SandboxProvider,
    SandboxReply,
    SandboxRequest,
    detect_route_format,
    is_google_chat,
    parse_azure_path,
    parse_gemini_path,
    read_api_key,
    read_betas,
    to_openai_path,
)
from foveate.sandbox.models import find_model, list_model_names
from foveate.sandbox.providers import anthropic, gemini, openai_chat, openai_responses
from foveate.sandbox.providers.anthropic import error_event
from foveate.sandbox.response import (
    GeneratedResponse,
    ResponseMetadata,
    ResponseSpec,
    encode_event,
    generate_response,
)
from foveate.sandbox.script import STEP_HEADER, Script, ScriptStep, find_requested_step
from foveate.sandbox.stored_conversations import (
    MessageThreads,
    ResolvedThread,
    StoredResponses,
    input_items,
    resolve_references,
)
from foveate.sandbox.validation import decode_body, find_error, find_window_error
from foveate.tokens import counter_for

# A limit for a long-lived sandbox: the least recently used accounts are dropped.
_MAX_ACCOUNTS = 256
_HOUR_SECONDS = 3_600
# Name, share that one request uses, and hours of each limit.
_LIMITS = (("5h", 0.01, 5), ("7d", 0.001, 7 * 24))
_COMPLETION_PATHS = {
    "/v1/messages": Format.ANTHROPIC,
    "/v1/chat/completions": Format.CHAT,
    "/v1/responses": Format.RESPONSES,
}
_COUNT_PATHS = {
    "/v1/messages/count_tokens": Format.ANTHROPIC,
    "/v1/responses/input_tokens": Format.RESPONSES,
}
_MODELS_PATH = "/v1/models"
_GEMINI_MODELS_PATH = re.compile(r"/v1(?:beta|alpha)?/models(?:/(.+))?")
_GEMINI_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
# Used to validate Google's models in OpenAI's format, and for Azure deployments of unknown name.
_DEFAULT_CHAT_MODEL = "gpt-4.1"
_PROVIDERS = {
    Format.ANTHROPIC: "anthropic",
    Format.CHAT: "openai",
    Format.RESPONSES: "openai",
    Format.GEMINI: "google",
}
RenderedResponse = (
    anthropic.AnthropicResponse
    | openai_chat.ChatResponse
    | openai_responses.ResponsesResponse
    | gemini.GeminiResponse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRequest:
    """A request that is validated and counted.

    `prefix` is the digest of what precedes new thinking (Anthropic), `items` the conversation so far
    (Responses). `is_streaming` and `as_events` come from the path and query of Gemini requests. `thread` is the
    message thread.
    """

    body: dict[str, Any]
    request: Request
    rules: CacheRules
    prompt: CachedPrompt
    owner: bytes
    is_count: bool
    prefix: bytes = b""
    items: tuple[dict[str, Any], ...] = ()
    is_streaming: bool = False
    as_events: bool = True
    thread: ResolvedThread | None = None


def hash_api_key(key: str) -> bytes:
    """Return a digest that identifies the owner of a key. The key itself is not stored."""
    return blake3(key.encode()).digest()


class Account:
    def __init__(self) -> None:
        self._cache = SimulatedCache()
        self.response_count = 0

    def serve(self, prompt: CachedPrompt, rules: CacheRules, *, at: float, answers_at: float) -> CacheUsage:
        served = self._cache.serve(prompt, rules, at=at, response_at=answers_at)
        self._cache = served.cache
        self.response_count += 1
        return served.usage


class Accounts:
    def __init__(self) -> None:
        self._accounts: LruCache[Account] = LruCache(_MAX_ACCOUNTS)

    def get(self, owner: bytes) -> Account:
        return self._accounts.put_if_absent(owner, Account())


class Sandbox:
    """Imitates the providers, with a prompt cache for each API key.

    `clock` returns the time in seconds. `seed` makes its ids unique. `tokens` returns the tokenizer of a model;
    another one than Foveate's simulates an unknown model.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        seed: bytes,
        script: Script | None = None,
        providers: Collection[SandboxProvider] = tuple(SandboxProvider),
        tokens: Callable[[str], BlockTokens] = block_tokens_for,
    ) -> None:
        self._clock = clock
        self._seed = seed
        self._script = script or Script()
        self._providers = frozenset(providers)
        self._tokens = tokens
        self._accounts = Accounts()
        self._responses = StoredResponses()
        self._threads = MessageThreads()
        self._ids = 0
        self._script_position = 0

    def reply(self, http_request: SandboxRequest) -> SandboxReply:
        reply = self.respond(http_request, self.accept(http_request))
        if reply.before_last_chunk is not None and not reply.disconnects:
            reply.before_last_chunk()
        if reply.on_end is not None:
            reply.on_end()
        return reply

    def accept(self, http_request: SandboxRequest) -> AcceptedRequest | ErrorResponse | bytes:
        """Validate and count a request; return the body of the response for requests that need no generation.

        This is the slow part for long bodies. It changes no state, so it can run in a thread.
        """
        api_format = detect_route_format(http_request, self._providers)
        key = read_api_key(http_request, api_format)
        if isinstance(key, ErrorResponse):
            return key
        if len(http_request.body) > MAX_BODY_BYTES:
            return errors.make_body_too_large_error(api_format, MAX_BODY_BYTES)
        try:
            return self._route(http_request, api_format, hash_api_key(key))
        except MalformedRequest as error:
            return ErrorResponse(message=str(error))
        except RecursionError:
            return errors.make_invalid_json_error(api_format, TOO_DEEP_MESSAGE)

    def respond(
        self, http_request: SandboxRequest, accepted: AcceptedRequest | ErrorResponse | bytes
    ) -> SandboxReply:
        """Generate the reply to an accepted request and update its account; must not run concurrently."""
        api_format = detect_route_format(http_request, self._providers)
        if isinstance(accepted, bytes):
            return self._json_reply(api_format, accepted)
        try:
            result = accepted if isinstance(accepted, ErrorResponse) else self._generate(http_request, accepted)
        except BadOption as error:
            result = ErrorResponse(message=str(error))
        except RecursionError:
            result = errors.make_invalid_json_error(api_format, TOO_DEEP_MESSAGE)
        return self.render_error(api_format, result) if isinstance(result, ErrorResponse) else result

    def render_error(self, api_format: Format, error: ErrorResponse) -> SandboxReply:
        request_id = self._new_id("req_01")
        headers = self._headers(api_format, request_id)
        if error.retry_after_seconds is not None:
            headers["retry-after"] = f"{error.retry_after_seconds:g}"
        body = errors.error_body(api_format, error, request_id)
        return SandboxReply(status=error.status, headers=headers, chunks=(body,))

    def _route(
        self, http_request: SandboxRequest, api_format: Format, owner: bytes
    ) -> AcceptedRequest | ErrorResponse | bytes:
        if api_format is Format.GEMINI:
            return self._route_gemini(http_request, owner)
        azure = parse_azure_path(http_request.path)
        if (
            azure is not None
            and azure.needs_version
            and "api-version" not in dict(parse_qsl(http_request.query))
        ):
            return errors.make_status_error(api_format, 404, "Resource not found")
        path = to_openai_path(http_request.path.rstrip("/")) if azure is None else azure.path
        if path in _COMPLETION_PATHS | _COUNT_PATHS and _is_same_provider(
            api_format, (_COMPLETION_PATHS | _COUNT_PATHS)[path]
        ):
            if http_request.method != "POST":
                return errors.make_status_error(
                    api_format, 405, f"Method Not Allowed: {http_request.method} {http_request.path}"
                )
            return self._accept_body(
                http_request, api_format, owner, counting=path in _COUNT_PATHS, azure=azure
            )
        if http_request.method == "GET" and (path == _MODELS_PATH or path.startswith(f"{_MODELS_PATH}/")):
            return render_models(api_format, path[len(_MODELS_PATH) + 1 :])
        return _route_not_found(http_request, api_format)

    def _route_gemini(
        self, http_request: SandboxRequest, owner: bytes
    ) -> AcceptedRequest | ErrorResponse | bytes:
        api_format, model_and_method = Format.GEMINI, parse_gemini_path(http_request)
        if (
            model_and_method is not None
            and model_and_method[1] in _GEMINI_METHODS
            and http_request.method == "POST"
        ):
            model, method = model_and_method
            accepted = self._accept_body(
                http_request, api_format, owner, counting=method == "countTokens", model=model
            )
            if isinstance(accepted, ErrorResponse):
                return accepted
            as_events = dict(parse_qsl(http_request.query)).get("alt") == "sse"
            return replace(accepted, is_streaming=method == "streamGenerateContent", as_events=as_events)
        models_path = _GEMINI_MODELS_PATH.fullmatch(http_request.path.rstrip("/"))
        if http_request.method == "GET" and models_path is not None:
            return render_models(api_format, models_path[1] or "")
        return errors.make_status_error(
            api_format, 404, f"Not Found: {http_request.method} {http_request.path}"
        )

    def _accept_body(
        self,
        http_request: SandboxRequest,
        api_format: Format,
        owner: bytes,
        *,
        counting: bool,
        model: str = "",
        azure: AzureRoute | None = None,
    ) -> AcceptedRequest | ErrorResponse:
        body = decode_body(api_format, http_request.body)
        if isinstance(body, ErrorResponse):
            return body
        if azure is not None:
            model = _deployed_model(azure.deployment or as_text(body.get("model")))
            body = body | {"model": model}
        thread = None
        if api_format is Format.ANTHROPIC and not counting:
            thread = self._threads.resolve(body, owner, read_betas(http_request), now=self._clock())
        if isinstance(thread, ErrorResponse):
            return thread
        if thread is not None:
            body = thread.body
        full_body = resolve_references(body, self._responses, owner) if api_format is Format.RESPONSES else body
        if isinstance(full_body, ErrorResponse):
            return full_body
        is_as_sent = full_body is body and thread is None
        request = formats.parse_request(
            http_request.body if is_as_sent else to_json(full_body), api_format, model=model
        )
        is_google = api_format is Format.GEMINI or is_google_chat(http_request)
        if is_google and api_format is Format.CHAT and find_model(Format.GEMINI, request.model) is not None:
            full_body = full_body | {"model": _DEFAULT_CHAT_MODEL}
        error = find_error(
            api_format, full_body, counting=counting, betas=read_betas(http_request), model=model
        )
        if error is not None:
            return error
        rules = rules_for(request.model, "google" if is_google else _PROVIDERS[api_format])
        prompt = build_cached_prompt(request, rules, self._tokens(request.model))
        error = None if counting else find_window_error(api_format, full_body, prompt.tokens, model=model)
        return error or AcceptedRequest(
            body=body,
            request=request,
            rules=rules,
            prompt=prompt,
            owner=owner,
            is_count=counting,
            prefix=thinking_signatures.hash_prefix(body).digest() if api_format is Format.ANTHROPIC else b"",
            items=input_items(full_body) if api_format is Format.RESPONSES else (),
            thread=thread,
        )

    def _render_count(self, accepted: AcceptedRequest) -> SandboxReply:
        api_format, tokens = accepted.request.format, accepted.prompt.tokens
        if api_format is Format.ANTHROPIC:
            return self._json_reply(api_format, to_json({"input_tokens": tokens}))
        if api_format is Format.GEMINI:
            return self._json_reply(api_format, gemini.render_count(tokens))
        return self._json_reply(
            api_format, to_json({"object": "response.input_tokens", "input_tokens": tokens})
        )

    def _generate(
        self, http_request: SandboxRequest, accepted: AcceptedRequest
    ) -> SandboxReply | ErrorResponse:
        if accepted.is_count:
            return self._render_count(accepted)
        api_format = accepted.request.format
        spec = _response_spec(accepted)
        step = find_requested_step(http_request.headers.get(STEP_HEADER), spec.last_message_text)
        if step is None:
            step = self._script.step(self._script_position)
            self._script_position += 1
        failure = _scripted_error(api_format, step, is_streaming=spec.is_streaming)
        if failure is not None:
            return failure
        if accepted.thread is not None:
            error = self._threads.claim(accepted.owner, accepted.thread, now=self._clock())
            if error is not None:
                return error
        counter = counter_for(accepted.request.model)
        generated = generate_response(spec, step, lambda text: counter.text(text).tokens)
        rendered = self._render(accepted, generated, delay_seconds=step.delay_seconds if step else 0)
        headers = self._headers(api_format, self._new_id("req_01"))
        response_count = self._accounts.get(accepted.owner).response_count
        headers |= subscription_headers(http_request, api_format, requests=response_count, now=self._clock())
        if not spec.is_streaming:
            reply = SandboxReply(status=200, headers=headers, chunks=(rendered.body(),))
            return _apply_faults(self._continue_thread_at_end(reply, accepted, rendered), step, api_format)
        content_type = (
            "text/event-stream; charset=utf-8" if accepted.as_events else "application/json; charset=UTF-8"
        )
        headers |= {"content-type": content_type, "cache-control": "no-cache"}
        reply = SandboxReply(status=200, headers=headers, chunks=tuple(rendered.events()), is_streaming=True)
        return _apply_faults(self._continue_thread_at_end(reply, accepted, rendered), step, api_format)

    def _continue_thread_at_end(
        self, reply: SandboxReply, accepted: AcceptedRequest, rendered: RenderedResponse
    ) -> SandboxReply:
        thread, owner = accepted.thread, accepted.owner
        if thread is None or not isinstance(rendered, anthropic.AnthropicResponse):
            return reply
        message_id, content = rendered.id, rendered.content
        return replace(
            reply,
            before_last_chunk=lambda: self._threads.store(
                owner, thread, message_id, content, now=self._clock()
            ),
            on_end=lambda: self._threads.release(owner, thread),
        )

    def _render(
        self, accepted: AcceptedRequest, generated: GeneratedResponse, *, delay_seconds: float
    ) -> RenderedResponse:
        now = self._clock()
        account = self._accounts.get(accepted.owner)
        cache = account.serve(accepted.prompt, accepted.rules, at=now, answers_at=now + delay_seconds)
        choice_count = _count_choices(accepted)
        output_tokens, thinking_tokens = (
            generated.output_tokens * choice_count,
            generated.thinking_tokens * choice_count,
        )
        metadata = ResponseMetadata(
            model=accepted.request.model,
            created_at=now,
            usage=Usage(cache=cache, output_tokens=output_tokens, reasoning_tokens=thinking_tokens),
            new_id=self._new_id,
            charges_cache_writes=accepted.rules.caching is CachingMode.BOTH,
        )
        match accepted.request.format:
            case Format.ANTHROPIC:
                body, prefix = accepted.body, accepted.prefix
                return anthropic.AnthropicResponse(
                    generated,
                    metadata,
                    show=lambda text: anthropic.visible_thinking(body, text),
                    sign=lambda text: thinking_signatures.sign_thinking(metadata.model, prefix, text),
                )
            case Format.CHAT:
                return openai_chat.ChatResponse(generated, metadata, accepted.body)
            case Format.GEMINI:
                return gemini.GeminiResponse(generated, metadata, accepted.body, as_events=accepted.as_events)
            case _:
                response = openai_responses.ResponsesResponse(generated, metadata, accepted.body)
                if accepted.body.get("store") is not False:
                    self._responses.store(accepted.owner, response.id, (*accepted.items, *response.output))
                return response

    def _json_reply(self, api_format: Format, body: bytes) -> SandboxReply:
        return SandboxReply(
            status=200, headers=self._headers(api_format, self._new_id("req_01")), chunks=(body,)
        )

    def _headers(self, api_format: Format, request_id: str) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if api_format is Format.GEMINI:
            return headers
        if api_format is Format.ANTHROPIC:
            return headers | {"request-id": request_id, "anthropic-organization-id": "sandbox"}
        return headers | {
            "x-request-id": request_id,
            "openai-version": "2020-10-01",
            "openai-organization": "sandbox",
            "openai-processing-ms": "1",
        }

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return prefix + blake3(self._seed + self._ids.to_bytes(8, "big")).hexdigest(length=12)


def _response_spec(accepted: AcceptedRequest) -> ResponseSpec:
    window = find_context_window(accepted.request.model)
    window_tokens_left = None if window is None else window.tokens - accepted.prompt.tokens
    match accepted.request.format:
        case Format.ANTHROPIC:
            return anthropic.read_response_spec(accepted.body, window_tokens_left)
        case Format.CHAT:
            return openai_chat.read_response_spec(accepted.body, window_tokens_left)
        case Format.GEMINI:
            return gemini.read_response_spec(
                accepted.body, accepted.request.model, window_tokens_left, streams=accepted.is_streaming
            )
        case _:
            return openai_responses.read_response_spec(accepted.body, window_tokens_left)


def _deployed_model(name: str) -> str:
    return name if find_model(Format.CHAT, name) is not None else _DEFAULT_CHAT_MODEL


def _count_choices(accepted: AcceptedRequest) -> int:
    match accepted.request.format:
        case Format.CHAT:
            return openai_chat.count_choices(accepted.body)
        case Format.GEMINI:
            return gemini.count_candidates(accepted.body)
        case _:
            return 1


def _scripted_error(api_format: Format, step: ScriptStep | None, *, is_streaming: bool) -> ErrorResponse | None:
    if step is None:
        return None
    if step.status is not None:
        error_response = errors.make_status_error(api_format, step.status, step.message)
    elif step.overloaded or (step.fail_after is not None and not is_streaming):
        error_response = errors.make_overloaded_error(api_format)
    else:
        return None
    return replace(error_response, retry_after_seconds=step.retry_after_seconds)


def _apply_faults(reply: SandboxReply, step: ScriptStep | None, api_format: Format) -> SandboxReply:
    if step is None:
        return reply
    chunks = reply.chunks
    if step.fail_after is not None:
        chunks = (*chunks[: step.fail_after], render_stream_error(api_format, step.fail_after))
        reply = replace(reply, before_last_chunk=None)
    if step.disconnect_after is not None:
        sent_chunks = chunks if reply.is_streaming else (chunks[0][: len(chunks[0]) // 2],)
        chunks = sent_chunks[: step.disconnect_after]
    return replace(
        reply,
        chunks=chunks,
        delay_seconds=step.delay_seconds,
        pace_seconds=step.pace_seconds,
        disconnects=step.disconnect_after is not None,
    )


def _is_same_provider(api_format: Format, other: Format) -> bool:
    return _PROVIDERS[api_format] == _PROVIDERS[other]


def _route_not_found(http_request: SandboxRequest, api_format: Format) -> ErrorResponse:
    if api_format is Format.ANTHROPIC:
        return errors.make_status_error(api_format, 404, "Not Found")
    return errors.make_status_error(api_format, 404, f"Invalid URL ({http_request.method} {http_request.path})")


def render_models(api_format: Format, name: str) -> bytes | ErrorResponse:
    describe = _MODEL_RENDERERS.get(api_format, _openai_model)
    if name:
        if find_model(api_format, name) is None:
            return _model_not_found(api_format, name)
        return to_json(describe(name))
    rows = [describe(model) for model in list_model_names(api_format)]
    if api_format is Format.ANTHROPIC:
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]}
        return to_json({"data": rows, "has_more": False, **ends})
    if api_format is Format.GEMINI:
        return to_json({"models": rows})
    return to_json({"object": "list", "data": rows})


def render_stream_error(api_format: Format, number: int) -> bytes:
    """Render the event that ends a failing stream; `number` is the index of the event."""
    error = make_overloaded_error(api_format)
    if api_format is Format.ANTHROPIC:
        return error_event(error.message)
    if api_format is Format.CHAT:
        return encode_event({"error": openai_error_object(error)})
    if api_format is Format.GEMINI:
        return encode_event({"error": gemini_error_object(error)})
    fields = {"type": "error", "sequence_number": number, "code": error.kind, "message": error.message}
    return encode_event(fields | {"param": None}, "error")


def _anthropic_model(name: str) -> dict[str, Any]:
    window, model = find_context_window(name), find_model(Format.ANTHROPIC, name)
    return {
        "type": "model",
        "id": name,
        "display_name": name.replace("-", " ").title(),
        "created_at": "1970-01-01T00:00:00Z",  # as in the API for an unknown date
        "lifecycle": "active",
        "max_input_tokens": window.tokens if window else None,
        "max_tokens": model.max_output_tokens if model else None,
    }


def _openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "openai"}


def _google_model(name: str) -> dict[str, Any]:
    window, model = find_context_window(name), find_model(Format.GEMINI, name)
    return {
        "name": f"models/{name}",
        "displayName": name.replace("-", " ").title(),
        "inputTokenLimit": window.tokens if window else None,
        "outputTokenLimit": model.max_output_tokens if model else None,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


_MODEL_RENDERERS = {Format.ANTHROPIC: _anthropic_model, Format.GEMINI: _google_model}


def _model_not_found(api_format: Format, name: str) -> ErrorResponse:
    if api_format is Format.ANTHROPIC:
        return ErrorResponse(message=f"model: {name}", status=404, kind="not_found_error")
    if api_format is Format.GEMINI:
        return make_status_error(api_format, 404, f"models/{name} is not found for API version v1beta.")
    message = f"The model '{name}' does not exist"
    return ErrorResponse(message=message, status=404, param="model", code="model_not_found")


def subscription_headers(
    http_request: SandboxRequest, api_format: Format, *, requests: int, now: float
) -> dict[str, str]:
    """Return the rate-limit headers for a client with a subscription; none for an API key."""
    bearer = http_request.headers.get("authorization", "").removeprefix("Bearer ")
    headers: dict[str, str] = {}
    for number, (name, share, hours) in enumerate(_LIMITS):
        used = min(1.0, requests * share)
        seconds = hours * _HOUR_SECONDS
        reset = int(now // seconds + 1) * seconds
        if api_format is Format.ANTHROPIC and bearer.startswith("sk-ant-oat"):
            prefix = f"anthropic-ratelimit-unified-{name}"
            status = "allowed" if used < 1 else "rejected"
            headers |= {f"{prefix}-utilization": f"{used:g}", f"{prefix}-reset": str(reset)}
            headers |= {f"{prefix}-status": status, "anthropic-ratelimit-unified-status": "allowed"}
        elif api_format is Format.RESPONSES and bearer and "chatgpt-account-id" in http_request.headers:
            prefix = f"x-codex-{('primary', 'secondary')[number]}"
            headers |= {
                f"{prefix}-used-percent": f"{100 * used:g}",
                f"{prefix}-window-minutes": str(60 * hours),
            }
            headers |= {f"{prefix}-reset-after-seconds": str(int(reset - now))}
    return headers
