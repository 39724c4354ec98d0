"""Compactions by a small local model: Foveate's, and LangChain's SummarizationMiddleware with its defaults."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.compaction_mentions import authored_text, result_text
from benchmarks.compaction_points import Span, count_tokens_upper
from foveate import formats
from foveate.compaction.apply import carried_facts_text
from foveate.compaction.facts.extract import ALWAYS_CARRIED, extract_facts, rank_facts
from foveate.compaction.summarize import summarizer
from foveate.compaction.summarize.extractive import select_missing_facts, summary_limit_tokens
from foveate.compaction.summarize.llm import LlmSummarizer, SummarizerEndpoint
from foveate.compaction.summarize.verify import find_missing_facts
from foveate.http import JsonClient, JsonReply
from foveate.model import Format, Message, Text, ToolCall, ToolResult
from tests.support.servers.llama import LlamaUnavailable, running_llama_server

# Context length of the model; the middleware's prompt and the text to summarize fill half of it.
CONTEXT_TOKENS = 8192
# Without a limit it continues until its context is full.
ANSWER_TOKENS = 400
MODEL = "smollm2"
# Without a penalty it repeats the same line endlessly.
SAMPLING = {"temperature": 0.3, "seed": 1, "repeat_penalty": 1.15, "repeat_last_n": 512}
# As in the gateway: share of a summary's tokens for the facts that the model must name.
FACTS_SHARE = 0.25


class ModelUnavailable(Exception):
    """The small model cannot run; the message says why."""


class SummaryFailed(Exception):
    """There is no summary, or not in time; the message says why."""


@contextmanager
def small_model() -> Iterator[str]:
    """Run a llama.cpp server with a small model until the end of the block; yields its URL.

    Raises:
        ModelUnavailable: it is not installed, or did not start.
    """
    try:
        with running_llama_server(CONTEXT_TOKENS) as server:
            yield server.base_url
    except LlamaUnavailable as error:
        raise ModelUnavailable(str(error)) from None


def summarize_with_model(base_url: str, span: Span, seconds: float) -> str:
    """Return what replaces the head: the small model's summary, and a list of the facts that it omits.

    Raises:
        SummaryFailed: the model gave no summary, or none within `seconds`.
    """
    limit = summary_limit_tokens(span.compacted_tokens)
    tail_facts = {fact.text for fact in extract_facts(span.tail)}
    facts = rank_facts(extract_facts(span.compacted), len(span.compacted))
    ranked = [
        ranked_fact
        for ranked_fact in facts
        if ranked_fact.fact.kind in ALWAYS_CARRIED or ranked_fact.fact.text not in tail_facts
    ]
    required_facts = select_missing_facts(
        "", ranked, limit_tokens=int(limit * FACTS_SHARE), count=count_tokens_upper
    )
    summary_input = summarizer.SummaryInput(
        request=formats.parse_request({"model": "another", "messages": [{"role": "user", "content": "-"}]}),
        request_tokens=span.compacted_tokens,
        head=tuple(span.compacted),
        new_messages=tuple(span.compacted),
        tail=tuple(span.tail),
        replaced_tokens=span.replaced_tokens,
        facts=tuple(fact.text for fact in required_facts),
    )
    summary = asyncio.run(_summarize(base_url, summary_input, limit, seconds))
    missing_facts = find_missing_facts(
        summary, ranked, limit_tokens=limit, count=count_tokens_upper, max_tokens=span.replaced_tokens // 2
    )
    return "\n".join((summary, carried_facts_text(missing_facts.carried_facts)))


class _SampledClient(JsonClient):
    """A client with sampling parameters that make the small model stop."""

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> JsonReply:
        """Return the response, with our sampling parameters."""
        return await super().post_json(url, json.dumps(json.loads(body) | SAMPLING).encode(), headers)


async def _summarize(base_url: str, span: summarizer.SummaryInput, limit_tokens: int, seconds: float) -> str:
    endpoint = SummarizerEndpoint(url=f"{base_url}/v1/chat/completions", api_format=Format.CHAT, headers={})
    try:
        async with _SampledClient(timeout_seconds=seconds + 60) as client, asyncio.timeout(seconds):
            summarizer_ = LlmSummarizer(client, endpoint, model=MODEL, window_tokens=CONTEXT_TOKENS)
            result = await summarizer_.summarize(span, summarizer.UsageLog(), limit_tokens=limit_tokens)
    except TimeoutError:
        raise SummaryFailed("not in time") from None
    if isinstance(result, summarizer.SummaryFailure):
        raise SummaryFailed(result.reason)
    return result.text


def _answer(base_url: str, prompt: str, seconds: float) -> str:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS,
        **SAMPLING,
    }
    request = urllib.request.Request(
        f"{base_url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as reply:
            return str(json.load(reply)["choices"][0]["message"]["content"])
    except TimeoutError:
        raise SummaryFailed("not in time") from None
    except OSError as error:
        raise ModelUnavailable(f"the small model did not answer: {error}") from None


def summarize_with_langchain(base_url: str, messages: Sequence[Message], seconds: float) -> tuple[str, int]:
    """Return the middleware's replacement of the head, and how many messages it retains.

    Raises:
        SummaryFailed: no summary within `seconds`.
        ModelUnavailable: the model does not respond.
    """
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langgraph.runtime import Runtime

    deadline = time.monotonic() + seconds

    class SmallModel(BaseChatModel):
        """The small model as a LangChain chat model."""

        @property
        def _llm_type(self) -> str:
            return "llama.cpp"

        def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:  # LangChain retries
                raise SummaryFailed("not in time")
            prompt = "\n\n".join(str(message.content) for message in messages)
            answer = AIMessage(_answer(base_url, prompt, remaining_seconds))
            return ChatResult(generations=[ChatGeneration(message=answer)])

    # The compaction is triggered at the same point as the others; all other options are defaults.
    middleware: Any = SummarizationMiddleware(model=SmallModel(), trigger=("tokens", 1))
    update = middleware.before_model({"messages": _to_langchain(messages)}, Runtime())
    if update is None:
        return "", len(messages)
    _, summary, *retained = update["messages"]
    return str(summary.content), len(retained)


def _to_langchain(messages: Sequence[Message]) -> list[Any]:
    """Convert the conversation to LangChain's messages, one for each of ours."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    result_messages: list[Any] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        if message.role == "assistant":
            content = "\n".join(part.text for part in message.parts if isinstance(part, Text))
            result_messages.append(
                AIMessage(
                    content=content,
                    tool_calls=[
                        {"name": call.name, "args": _arguments(call), "id": call.id or call.name}
                        for call in calls
                    ],
                )
            )
        elif results:
            result_messages.append(
                ToolMessage(content=result_text(message), tool_call_id=results[0].id or results[0].name)
            )
        else:
            result_messages.append(HumanMessage(content=authored_text(message)))
    return result_messages


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": call.arguments}
