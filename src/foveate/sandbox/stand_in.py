"""The stand-in itself: takes requests as they come over HTTP, refuses or answers them, and bills the answers.

It knows no network and reads no clock of its own, so that a test can let an hour pass.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from blake3 import blake3

from foveate import wire
from foveate.budget.windows import window_of
from foveate.cache.prompts import CachedPrompt
from foveate.cache.requests import BlockTokens, block_tokens_for, cached_prompt
from foveate.cache.rules import Caching, Rules, rules_for
from foveate.errors import BadOption, MalformedRequest
from foveate.sandbox import (
    anthropic_answers,
    catalogue,
    chat_answers,
    gemini_answers,
    responses_answers,
    seals,
)
from foveate.sandbox.accepting import decoded, first_problem, too_long
from foveate.sandbox.accounts import Accounts, Responses, owner_of
from foveate.sandbox.answers import Answer, Wish, answer
from foveate.sandbox.asks import LIMIT_BYTES, Ask, Reply
from foveate.sandbox.continuing import continued, items_of
from foveate.sandbox.doors import (
    AzureRoute,
    Provider,
    azure_route,
    betas_of,
    gemini_method,
    is_google_chat,
    key_of,
    openai_path,
    spoken_by,
)
from foveate.sandbox.message_threads import MessageThreads, ThreadUse
from foveate.sandbox.models import model_of
from foveate.sandbox.rendering import Sheet
from foveate.sandbox.scripts import HEADER, Script, Step, asked_step
from foveate.sandbox.subscriptions import subscription_headers
from foveate.tokens import counter_for
from foveate.values import Format, Request, Usage
from foveate.wire import refusals
from foveate.wire.body import TOO_DEEP, as_text, compact
from foveate.wire.refusals import Refusal

_ANSWERED = {
    "/v1/messages": Format.ANTHROPIC,
    "/v1/chat/completions": Format.CHAT,
    "/v1/responses": Format.RESPONSES,
}
_COUNTED = {
    "/v1/messages/count_tokens": Format.ANTHROPIC,
    "/v1/responses/input_tokens": Format.RESPONSES,
}
_MODELS = "/v1/models"
_GEMINI_MODELS = re.compile(r"/v1(?:beta|alpha)?/models(?:/(.+))?")
_GEMINI_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
# By whose rules Google's models are checked in OpenAI's format, and what answers for Azure's deployments.
_CHAT_MODEL = "gpt-4.1"
_PROVIDERS = {
    Format.ANTHROPIC: "anthropic",
    Format.CHAT: "openai",
    Format.RESPONSES: "openai",
    Format.GEMINI: "google",
}

Rendered = (
    anthropic_answers.Rendered | chat_answers.Rendered | responses_answers.Rendered | gemini_answers.Rendered
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A request that is accepted, read and counted.

    `prefix` tells on Anthropic what a thought stands after; `items` are on Responses the conversation so far.
    `streams` is what Gemini says in the path, and `as_events` in the query. `thread` is its message thread.
    """

    asked: dict[str, Any]
    request: Request
    rules: Rules
    prompt: CachedPrompt
    owner: bytes
    is_counted: bool
    prefix: bytes = b""
    items: tuple[dict[str, Any], ...] = ()
    streams: bool = False
    as_events: bool = True
    thread: ThreadUse | None = None


class Sandbox:
    """Stands in for the providers: one for each program, with a cache for each key that comes along.

    `clock` gives the time in seconds, `seed` makes its ids different from those of every other sandbox.
    `tokens` is the tokenizer that a model has: another one than we know stands in for a model that is new.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        seed: bytes,
        script: Script | None = None,
        providers: Collection[Provider] = tuple(Provider),
        tokens: Callable[[str], BlockTokens] = block_tokens_for,
    ) -> None:
        self._clock = clock
        self._seed = seed
        self._script = script or Script()
        self._providers = frozenset(providers)
        self._tokens = tokens
        self._accounts = Accounts()
        self._responses = Responses()
        self._threads = MessageThreads()
        self._ids = 0
        self._answered = 0

    def reply(self, ask: Ask) -> Reply:
        """What a provider would send back; it counts as sent."""
        reply = self.answered(ask, self.taken(ask))
        if reply.before_last is not None and not reply.breaks_off:
            reply.before_last()
        if reply.at_end is not None:
            reply.at_end()
        return reply

    def taken(self, ask: Ask) -> Taken | Refusal | bytes:
        """What becomes of a request before it is billed; of what is not billed at all, the answer.

        This is what takes long with a long body. It changes nothing, so that others can be answered meanwhile.
        """
        spoken = spoken_by(ask, self._providers)
        key = key_of(ask, spoken)
        if isinstance(key, Refusal):
            return key
        if len(ask.body) > LIMIT_BYTES:
            return refusals.too_large(spoken, LIMIT_BYTES)
        try:
            return self._routed(ask, spoken, owner_of(key))
        except MalformedRequest as error:
            return Refusal(message=str(error))
        except RecursionError:
            return refusals.unreadable(spoken, TOO_DEEP)

    def answered(self, ask: Ask, taken: Taken | Refusal | bytes) -> Reply:
        """The answer to what was taken, and the bill: one at a time."""
        spoken = spoken_by(ask, self._providers)
        if isinstance(taken, bytes):
            return self._plain(spoken, taken)
        try:
            found = taken if isinstance(taken, Refusal) else self._answer(ask, taken)
        except BadOption as error:
            found = Refusal(message=str(error))
        except RecursionError:
            found = refusals.unreadable(spoken, TOO_DEEP)
        return self.refused(spoken, found) if isinstance(found, Refusal) else found

    def refused(self, spoken: Format, refusal: Refusal) -> Reply:
        """A refusal as its provider sends it."""
        request_id = self._new_id("req_01")
        headers = self._headers(spoken, request_id)
        if refusal.retry_after_seconds is not None:
            headers["retry-after"] = f"{refusal.retry_after_seconds:g}"
        body = refusals.error_body(spoken, refusal, request_id)
        return Reply(status=refusal.status, headers=headers, pieces=(body,))

    def _routed(self, ask: Ask, spoken: Format, owner: bytes) -> Taken | Refusal | bytes:
        if spoken is Format.GEMINI:
            return self._routed_gemini(ask, owner)
        azure = azure_route(ask.path)
        if azure is not None and azure.needs_version and "api-version" not in dict(parse_qsl(ask.query)):
            return refusals.failed(spoken, 404, "Resource not found")
        path = openai_path(ask.path.rstrip("/")) if azure is None else azure.path
        if path in _ANSWERED | _COUNTED and _serves(spoken, (_ANSWERED | _COUNTED)[path]):
            if ask.method != "POST":
                return refusals.failed(spoken, 405, f"Method Not Allowed: {ask.method} {ask.path}")
            return self._read(ask, spoken, owner, counting=path in _COUNTED, azure=azure)
        if ask.method == "GET" and (path == _MODELS or path.startswith(f"{_MODELS}/")):
            return catalogue.models(spoken, path[len(_MODELS) + 1 :])
        return _no_such_route(ask, spoken)

    def _routed_gemini(self, ask: Ask, owner: bytes) -> Taken | Refusal | bytes:
        spoken, named = Format.GEMINI, gemini_method(ask)
        if named is not None and named[1] in _GEMINI_METHODS and ask.method == "POST":
            model, method = named
            taken = self._read(ask, spoken, owner, counting=method == "countTokens", model=model)
            if isinstance(taken, Refusal):
                return taken
            as_events = dict(parse_qsl(ask.query)).get("alt") == "sse"
            return replace(taken, streams=method == "streamGenerateContent", as_events=as_events)
        listed = _GEMINI_MODELS.fullmatch(ask.path.rstrip("/"))
        if ask.method == "GET" and listed is not None:
            return catalogue.models(spoken, listed[1] or "")
        return refusals.failed(spoken, 404, f"Not Found: {ask.method} {ask.path}")

    def _read(
        self,
        ask: Ask,
        spoken: Format,
        owner: bytes,
        *,
        counting: bool,
        model: str = "",
        azure: AzureRoute | None = None,
    ) -> Taken | Refusal:
        """The request, unless there is something wrong with it; `model` is the one that the path names."""
        asked = decoded(spoken, ask.body)
        if isinstance(asked, Refusal):
            return asked
        if azure is not None:
            model = _deployed(azure.deployment or as_text(asked.get("model")))
            asked = asked | {"model": model}
        thread = None
        if spoken is Format.ANTHROPIC and not counting:
            thread = self._threads.resolve(asked, owner, betas_of(ask), now=self._clock())
        if isinstance(thread, Refusal):
            return thread
        if thread is not None:
            asked = thread.whole
        whole = continued(asked, self._responses, owner) if spoken is Format.RESPONSES else asked
        if isinstance(whole, Refusal):
            return whole
        is_as_sent = whole is asked and thread is None
        request = wire.read(ask.body if is_as_sent else compact(whole), spoken, model=model)
        is_google = spoken is Format.GEMINI or is_google_chat(ask)
        if is_google and spoken is Format.CHAT and model_of(Format.GEMINI, request.model) is not None:
            whole = whole | {"model": _CHAT_MODEL}
        refusal = first_problem(spoken, whole, counting=counting, betas=betas_of(ask), model=model)
        if refusal is not None:
            return refusal
        rules = rules_for(request.model, "google" if is_google else _PROVIDERS[spoken])
        prompt = cached_prompt(request, rules, self._tokens(request.model))
        refusal = None if counting else too_long(spoken, whole, prompt.tokens, model=model)
        return refusal or Taken(
            asked=asked,
            request=request,
            rules=rules,
            prompt=prompt,
            owner=owner,
            is_counted=counting,
            prefix=seals.prefix_of(asked).digest() if spoken is Format.ANTHROPIC else b"",
            items=items_of(whole) if spoken is Format.RESPONSES else (),
            thread=thread,
        )

    def _count(self, taken: Taken) -> Reply:
        spoken, tokens = taken.request.format, taken.prompt.tokens
        if spoken is Format.ANTHROPIC:
            return self._plain(spoken, compact({"input_tokens": tokens}))
        if spoken is Format.GEMINI:
            return self._plain(spoken, gemini_answers.count_body(tokens))
        return self._plain(spoken, compact({"object": "response.input_tokens", "input_tokens": tokens}))

    def _answer(self, ask: Ask, taken: Taken) -> Reply | Refusal:
        if taken.is_counted:
            return self._count(taken)
        spoken = taken.request.format
        wish = _wish(taken)
        step = asked_step(ask.headers.get(HEADER), wish.text)
        if step is None:
            step = self._script.step(self._answered)
            self._answered += 1
        failure = _failure(spoken, step, streams=wish.streams)
        if failure is not None:
            return failure
        if taken.thread is not None:
            refusal = self._threads.claim(taken.owner, taken.thread, now=self._clock())
            if refusal is not None:
                return refusal
        counter = counter_for(taken.request.model)
        told = answer(wish, step, lambda text: counter.text(text).tokens)
        rendered = self._rendered(taken, told, delay_seconds=step.delay_seconds if step else 0)
        headers = self._headers(spoken, self._new_id("req_01"))
        answers = self._accounts.of(taken.owner).answers
        headers |= subscription_headers(ask, spoken, requests=answers, now=self._clock())
        if not wish.streams:
            reply = Reply(status=200, headers=headers, pieces=(rendered.body(),))
            return _faulty(self._with_thread(reply, taken, rendered), step, spoken)
        kind = "text/event-stream; charset=utf-8" if taken.as_events else "application/json; charset=UTF-8"
        headers |= {"content-type": kind, "cache-control": "no-cache"}
        reply = Reply(status=200, headers=headers, pieces=tuple(rendered.events()), streams=True)
        return _faulty(self._with_thread(reply, taken, rendered), step, spoken)

    def _with_thread(self, reply: Reply, taken: Taken, rendered: Rendered) -> Reply:
        """Have the thread of a request go on once its answer is sent."""
        thread, owner = taken.thread, taken.owner
        if thread is None or not isinstance(rendered, anthropic_answers.Rendered):
            return reply
        message_id, content = rendered.id, rendered.content
        return replace(
            reply,
            before_last=lambda: self._threads.store(owner, thread, message_id, content, now=self._clock()),
            at_end=lambda: self._threads.release(owner, thread),
        )

    def _rendered(self, taken: Taken, told: Answer, *, delay_seconds: float) -> Rendered:
        now = self._clock()
        account = self._accounts.of(taken.owner)
        cache = account.bill(taken.prompt, taken.rules, at=now, answers_at=now + delay_seconds)
        times = _times(taken)
        output, thought = told.output_tokens * times, told.thought_tokens * times
        sheet = Sheet(
            model=taken.request.model,
            created_at=now,
            usage=Usage(cache=cache, output_tokens=output, reasoning_tokens=thought),
            new_id=self._new_id,
            writes=taken.rules.caching is Caching.BOTH,
        )
        match taken.request.format:
            case Format.ANTHROPIC:
                asked, prefix = taken.asked, taken.prefix
                return anthropic_answers.Rendered(
                    told,
                    sheet,
                    show=lambda text: anthropic_answers.shown(asked, text),
                    sign=lambda text: seals.signature(sheet.model, prefix, text),
                )
            case Format.CHAT:
                return chat_answers.Rendered(told, sheet, taken.asked)
            case Format.GEMINI:
                return gemini_answers.Rendered(told, sheet, taken.asked, as_events=taken.as_events)
            case _:
                response = responses_answers.Rendered(told, sheet, taken.asked)
                if taken.asked.get("store") is not False:
                    self._responses.store(taken.owner, response.id, (*taken.items, *response.output))
                return response

    def _plain(self, spoken: Format, body: bytes) -> Reply:
        return Reply(status=200, headers=self._headers(spoken, self._new_id("req_01")), pieces=(body,))

    def _headers(self, spoken: Format, request_id: str) -> dict[str, str]:
        own = {"content-type": "application/json"}
        if spoken is Format.GEMINI:
            return own
        if spoken is Format.ANTHROPIC:
            return own | {"request-id": request_id, "anthropic-organization-id": "sandbox"}
        return own | {
            "x-request-id": request_id,
            "openai-version": "2020-10-01",
            "openai-organization": "sandbox",
            "openai-processing-ms": "1",
        }

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return prefix + blake3(self._seed + self._ids.to_bytes(8, "big")).hexdigest(length=12)


def _wish(taken: Taken) -> Wish:
    window = window_of(taken.request.model)
    room = None if window is None else window.tokens - taken.prompt.tokens
    match taken.request.format:
        case Format.ANTHROPIC:
            return anthropic_answers.wish(taken.asked, room)
        case Format.CHAT:
            return chat_answers.wish(taken.asked, room)
        case Format.GEMINI:
            return gemini_answers.wish(taken.asked, taken.request.model, room, streams=taken.streams)
        case _:
            return responses_answers.wish(taken.asked, room)


def _deployed(name: str) -> str:
    """The model of a deployment: the one of that name, or else any."""
    return name if model_of(Format.CHAT, name) is not None else _CHAT_MODEL


def _times(taken: Taken) -> int:
    """How many answers are wanted, each of which is billed."""
    match taken.request.format:
        case Format.CHAT:
            return chat_answers.choices(taken.asked)
        case Format.GEMINI:
            return gemini_answers.candidates(taken.asked)
        case _:
            return 1


def _failure(spoken: Format, step: Step | None, *, streams: bool) -> Refusal | None:
    """What a step answers in the place of an answer."""
    if step is None:
        return None
    if step.status is not None:
        found = refusals.failed(spoken, step.status, step.message)
    elif step.overloaded or (step.fail_after is not None and not streams):
        found = refusals.overloaded(spoken)
    else:
        return None
    return replace(found, retry_after_seconds=step.retry_after_seconds)


def _faulty(reply: Reply, step: Step | None, spoken: Format) -> Reply:
    """A reply as slow, and as soon broken off, as a step wants it."""
    if step is None:
        return reply
    pieces = reply.pieces
    if step.fail_after is not None:
        pieces = (*pieces[: step.fail_after], catalogue.stream_error(spoken, step.fail_after))
        reply = replace(reply, before_last=None)
    if step.disconnect_after is not None:
        whole = pieces if reply.streams else (pieces[0][: len(pieces[0]) // 2],)
        pieces = whole[: step.disconnect_after]
    return replace(
        reply,
        pieces=pieces,
        delay_seconds=step.delay_seconds,
        pace_seconds=step.pace_seconds,
        breaks_off=step.disconnect_after is not None,
    )


def _serves(spoken: Format, wanted: Format) -> bool:
    return _PROVIDERS[spoken] == _PROVIDERS[wanted]


def _no_such_route(ask: Ask, spoken: Format) -> Refusal:
    if spoken is Format.ANTHROPIC:
        return refusals.failed(spoken, 404, "Not Found")
    return refusals.failed(spoken, 404, f"Invalid URL ({ask.method} {ask.path})")
