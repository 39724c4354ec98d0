"""Behaviour of llama.cpp servers that we rely on, checked with a real one."""

import json
from typing import Any
from urllib.request import Request, urlopen

from tests.support.servers.llama import LlamaServer

MESSAGES = [{"role": "user", "content": "Say hello."}]


def post(server: LlamaServer, path: str, body: object) -> tuple[str, bytes]:
    """Media type and body of the response."""
    request = Request(
        server.base_url + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=60) as response:
        return response.headers.get_content_type(), response.read()


def post_json(server: LlamaServer, path: str, body: object) -> dict[str, object]:
    media_type, response = post(server, path, body)
    assert media_type == "application/json"
    decoded = json.loads(response)
    assert isinstance(decoded, dict)
    return decoded


def test_tokenize_returns_a_list_of_token_ids(llama_server: LlamaServer) -> None:
    response = post_json(llama_server, "/tokenize", {"content": "Hello, world"})

    assert response == {"tokens": [19556, 28, 905]}


def test_an_empty_text_has_no_tokens(llama_server: LlamaServer) -> None:
    assert post_json(llama_server, "/tokenize", {"content": ""}) == {"tokens": []}


def test_count_tokens_returns_the_input_tokens_of_a_request(llama_server: LlamaServer) -> None:
    body = {"model": llama_server.model, "messages": MESSAGES}
    without_system = post_json(llama_server, "/v1/messages/count_tokens", body)
    with_system = post_json(llama_server, "/v1/messages/count_tokens", body | {"system": "Be brief."})

    assert list(without_system) == ["input_tokens"]
    assert isinstance(without_system["input_tokens"], int)
    assert isinstance(with_system["input_tokens"], int)
    assert 0 < without_system["input_tokens"] != with_system["input_tokens"]


def test_a_chat_completion_reports_prompt_and_completion_tokens(llama_server: LlamaServer) -> None:
    response: dict[str, Any] = post_json(
        llama_server,
        "/v1/chat/completions",
        {"model": llama_server.model, "messages": MESSAGES, "max_tokens": 4},
    )

    match response:
        case {
            "choices": [{"message": {"role": "assistant", "content": str()}}],
            "usage": {"prompt_tokens": int(prompt_tokens), "completion_tokens": int(completion)},
        }:
            assert prompt_tokens > 0
            assert 0 < completion <= 4
        case _:
            raise AssertionError(response)


def test_a_message_reports_the_input_tokens_that_were_counted(llama_server: LlamaServer) -> None:
    body = {"model": llama_server.model, "messages": MESSAGES}
    counted = post_json(llama_server, "/v1/messages/count_tokens", body)["input_tokens"]
    response: dict[str, Any] = post_json(llama_server, "/v1/messages", body | {"max_tokens": 4})

    match response:
        case {
            "type": "message",
            "content": [{"type": "text", "text": str()}],
            "usage": {"input_tokens": int(uncached), "cache_read_input_tokens": int(cached)},
        }:
            assert uncached + cached == counted
        case _:
            raise AssertionError(response)


def test_a_streamed_message_begins_and_ends_as_events(llama_server: LlamaServer) -> None:
    body = {"model": llama_server.model, "messages": MESSAGES, "max_tokens": 4, "stream": True}
    media_type, response = post(llama_server, "/v1/messages", body)
    events = [line for line in response.decode().splitlines() if line.startswith("event: ")]

    assert media_type == "text/event-stream"
    assert events[0] == "event: message_start"
    assert events[-1] == "event: message_stop"
