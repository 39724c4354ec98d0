"""LangChain's SummarizationMiddleware with its defaults, its summaries written by a small local model."""

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.fold_mentions import returned, spoken
from foveate.values import Message, Text, ToolCall, ToolResult
from tests.llama import CannotServe, running_llama_server

# The model was trained with so many; the middleware's prompt and what it asks to be summed up fill half of it.
CONTEXT_TOKENS = 8192
# It would go on until its context is full: it was not trained to stop in time.
ANSWER_TOKENS = 400
ANSWER_SECONDS = 300


class NoModel(Exception):
    """The small model cannot be run here; the message says why."""


@contextmanager
def small_model() -> Iterator[str]:
    """The address of a llama.cpp server with a small model, while it serves.

    Raises:
        NoModel: it is not installed, or did not start.
    """
    try:
        with running_llama_server(CONTEXT_TOKENS) as server:
            yield server.base_url
    except CannotServe as error:
        raise NoModel(str(error)) from None


def _answer(base_url: str, prompt: str) -> str:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{base_url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
            return str(json.load(reply)["choices"][0]["message"]["content"])
    except OSError as error:
        raise NoModel(f"the small model did not answer: {error}") from None


def langchain_fold(base_url: str, messages: Sequence[Message]) -> tuple[str, int]:
    """What the middleware puts in the place of the head, and how many messages it keeps."""
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langgraph.runtime import Runtime

    class SmallModel(BaseChatModel):  # type: ignore[misc]  # not installed where types are checked
        """The small model as LangChain asks one."""

        @property
        def _llm_type(self) -> str:
            return "llama.cpp"

        def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            answer = AIMessage(_answer(base_url, "\n\n".join(str(message.content) for message in messages)))
            return ChatResult(generations=[ChatGeneration(message=answer)])

    # The fold is asked for here, at the same place as the others; all else is as it comes.
    middleware: Any = SummarizationMiddleware(model=SmallModel(), trigger=("tokens", 1))
    changed = middleware.before_model({"messages": _converted(messages)}, Runtime())
    if changed is None:
        return "", len(messages)
    _, summary, *kept = changed["messages"]
    return str(summary.content), len(kept)


def _converted(messages: Sequence[Message]) -> list[Any]:
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
            found.append(ToolMessage(content=returned(message), tool_call_id=results[0].id or results[0].name))
        else:
            found.append(HumanMessage(content=spoken(message)))
    return found


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        given = json.loads(call.arguments)
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {"arguments": call.arguments}
