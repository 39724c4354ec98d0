"""What we rely on in a llama.cpp server, asked of a real one."""

import json
from urllib.request import Request, urlopen

from tests.support.servers.llama import LlamaServer

ASKING = [{"role": "user", "content": "Say hello."}]


def post(server: LlamaServer, path: str, body: object) -> tuple[str, bytes]:
    """The answer's media type and body."""
    request = Request(
        server.base_url + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=60) as answer:
        return answer.headers.get_content_type(), answer.read()


def ask(server: LlamaServer, path: str, body: object) -> dict[str, object]:
    media_type, answer = post(server, path, body)
    assert media_type == "application/json"
    decoded = json.loads(answer)
    assert isinstance(decoded, dict)
    return decoded


def test_tokenize_answers_with_a_list_of_token_ids(llama_server: LlamaServer) -> None:
    answer = ask(llama_server, "/tokenize", {"content": "Hello, world"})

    assert answer == {"tokens": [19556, 28, 905]}


def test_an_empty_text_has_no_tokens(llama_server: LlamaServer) -> None:
    assert ask(llama_server, "/tokenize", {"content": ""}) == {"tokens": []}


def test_count_tokens_answers_with_the_input_tokens_of_a_request(llama_server: LlamaServer) -> None:
    body = {"model": llama_server.model, "messages": ASKING}
    alone = ask(llama_server, "/v1/messages/count_tokens", body)
    with_system = ask(llama_server, "/v1/messages/count_tokens", body | {"system": "Be brief."})

    assert list(alone) == ["input_tokens"]
    assert isinstance(alone["input_tokens"], int)
    assert isinstance(with_system["input_tokens"], int)
    assert 0 < alone["input_tokens"] != with_system["input_tokens"]


def test_a_chat_completion_bills_prompt_and_completion_tokens(llama_server: LlamaServer) -> None:
    answer = ask(
        llama_server,
        "/v1/chat/completions",
        {"model": llama_server.model, "messages": ASKING, "max_tokens": 4},
    )

    match answer:
        case {
            "choices": [{"message": {"role": "assistant", "content": str()}}],
            "usage": {"prompt_tokens": int(prompt_tokens), "completion_tokens": int(completion)},
        }:
            assert prompt_tokens > 0
            assert 0 < completion <= 4
        case _:
            raise AssertionError(answer)


def test_a_message_bills_the_input_tokens_that_were_counted(llama_server: LlamaServer) -> None:
    body = {"model": llama_server.model, "messages": ASKING}
    counted = ask(llama_server, "/v1/messages/count_tokens", body)["input_tokens"]
    answer = ask(llama_server, "/v1/messages", body | {"max_tokens": 4})

    match answer:
        case {
            "type": "message",
            "content": [{"type": "text", "text": str()}],
            "usage": {"input_tokens": int(fresh), "cache_read_input_tokens": int(cached)},
        }:
            assert fresh + cached == counted
        case _:
            raise AssertionError(answer)


def test_a_streamed_message_begins_and_ends_as_events(llama_server: LlamaServer) -> None:
    body = {"model": llama_server.model, "messages": ASKING, "max_tokens": 4, "stream": True}
    media_type, answer = post(llama_server, "/v1/messages", body)
    events = [line for line in answer.decode().splitlines() if line.startswith("event: ")]

    assert media_type == "text/event-stream"
    assert events[0] == "event: message_start"
    assert events[-1] == "event: message_stop"
