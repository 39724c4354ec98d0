"""Folds by a small local model: our own, and those of LangChain's SummarizationMiddleware with its defaults."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.fold_mentions import result_texts, spoken_texts
from benchmarks.fold_points import Span, count_tokens_upper
from foveate import formats
from foveate.compaction.apply import carried_facts_text
from foveate.compaction.facts.extract import extract_facts
from foveate.compaction.facts.ranking import ALWAYS_CARRIED, rank_facts
from foveate.compaction.summarize import summarizer
from foveate.compaction.summarize.extractive import select_missing_facts, summary_limit_tokens
from foveate.compaction.summarize.llm import LlmSummarizer, SummarizerEndpoint
from foveate.compaction.summarize.verify import find_missing_facts
from foveate.http import JsonClient, JsonReply
from foveate.model import Format, Message, Text, ToolCall, ToolResult
from tests.support.servers.llama import LlamaUnavailable, running_llama_server

# The model was trained with so many; the middleware's prompt and what it asks to be summed up fill half of it.
CONTEXT_TOKENS = 8192
# It would go on until its context is full: it was not trained to stop in time.
ANSWER_TOKENS = 400
MODEL = "smollm2"
# Left to itself it says the same line again and again, and never ends.
SAMPLING = {"temperature": 0.3, "seed": 1, "repeat_penalty": 1.15, "repeat_last_n": 512}
# As in a gateway: so much of a summary's tokens goes to the facts that the model is told to name.
FACTS_SHARE = 0.25


class ModelUnavailable(Exception):
    """The small model cannot be run here; the message says why."""


class SummaryFailed(Exception):
    """There was no summary, or not in time; the message says why."""


@contextmanager
def small_model() -> Iterator[str]:
    """The address of a llama.cpp server with a small model, while it serves.

    Raises:
        NoModel: it is not installed, or did not start.
    """
    try:
        with running_llama_server(CONTEXT_TOKENS) as server:
            yield server.base_url
    except LlamaUnavailable as error:
        raise ModelUnavailable(str(error)) from None


def summarize_with_model(base_url: str, span: Span, seconds: float) -> str:
    """What stands for the head after a fold by the small model: its summary, and a list of what that left out.

    Raises:
        NoFold: the model gave no summary, or none within `seconds`.
    """
    limit = summary_limit_tokens(span.compacted_tokens)
    there = {fact.text for fact in extract_facts(span.tail)}
    facts = rank_facts(extract_facts(span.compacted), len(span.compacted))
    ranked = [one for one in facts if one.fact.kind in ALWAYS_CARRIED or one.fact.text not in there]
    named = select_missing_facts("", ranked, limit_tokens=int(limit * FACTS_SHARE), count=count_tokens_upper)
    asked = summarizer.SummaryInput(
        request=formats.parse_request({"model": "another", "messages": [{"role": "user", "content": "-"}]}),
        request_tokens=span.compacted_tokens,
        head=tuple(span.compacted),
        new_messages=tuple(span.compacted),
        tail=tuple(span.tail),
        replaced_tokens=span.replaced_tokens,
        facts=tuple(fact.text for fact in named),
    )
    made = asyncio.run(_summarize(base_url, asked, limit, seconds))
    left_out = find_missing_facts(
        made, ranked, limit_tokens=limit, count=count_tokens_upper, max_tokens=span.replaced_tokens // 2
    )
    return "\n".join((made, carried_facts_text(left_out.carried)))


class _SampledClient(JsonClient):
    """A client that has the small model come to an end."""

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> JsonReply:
        """What is answered, with our way of sampling."""
        return await super().post_json(url, json.dumps(json.loads(body) | SAMPLING).encode(), headers)


async def _summarize(base_url: str, span: summarizer.SummaryInput, limit_tokens: int, seconds: float) -> str:
    where = SummarizerEndpoint(url=f"{base_url}/v1/chat/completions", api_format=Format.CHAT, headers={})
    try:
        async with _SampledClient(timeout_seconds=seconds + 60) as client, asyncio.timeout(seconds):
            by = LlmSummarizer(client, where, model=MODEL, window_tokens=CONTEXT_TOKENS)
            made = await by.summarize(span, summarizer.UsageLog(), limit_tokens=limit_tokens)
    except TimeoutError:
        raise SummaryFailed("not in time") from None
    if isinstance(made, summarizer.SummaryFailure):
        raise SummaryFailed(made.reason)
    return made.text


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
    """What the middleware puts in the place of the head, and how many messages it keeps.

    Raises:
        NoFold: no summary within `seconds`.
        NoModel: the model does not answer.
    """
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langgraph.runtime import Runtime

    ends = time.monotonic() + seconds

    class SmallModel(BaseChatModel):
        """The small model as LangChain asks one."""

        @property
        def _llm_type(self) -> str:
            return "llama.cpp"

        def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            left = ends - time.monotonic()
            if left <= 0:  # it asks again and again
                raise SummaryFailed("not in time")
            prompt = "\n\n".join(str(message.content) for message in messages)
            answer = AIMessage(_answer(base_url, prompt, left))
            return ChatResult(generations=[ChatGeneration(message=answer)])

    # The fold is asked for here, at the same place as the others; all else is as it comes.
    middleware: Any = SummarizationMiddleware(model=SmallModel(), trigger=("tokens", 1))
    changed = middleware.before_model({"messages": _to_langchain(messages)}, Runtime())
    if changed is None:
        return "", len(messages)
    _, summary, *kept = changed["messages"]
    return str(summary.content), len(kept)


def _to_langchain(messages: Sequence[Message]) -> list[Any]:
    """The same conversation as LangChain's messages, one for each of ours."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    found: list[Any] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        if message.role == "assistant":
            said = "\n".join(part.text for part in message.parts if isinstance(part, Text))
            found.append(
                AIMessage(
                    content=said,
                    tool_calls=[
                        {"name": call.name, "args": _arguments(call), "id": call.id or call.name}
                        for call in calls
                    ],
                )
            )
        elif results:
            found.append(
                ToolMessage(content=result_texts(message), tool_call_id=results[0].id or results[0].name)
            )
        else:
            found.append(HumanMessage(content=spoken_texts(message)))
    return found


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        given = json.loads(call.arguments)
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {"arguments": call.arguments}
