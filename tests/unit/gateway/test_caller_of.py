"""Who sends a request, of all that send requests with one agent's name."""

from foveate.gateway.asks import ask_of
from foveate.gateway.callers import caller_of


def caller(**headers: str) -> str:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return caller_of(ask_of({"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": raw}))


def test_callers_are_told_apart_by_their_key_and_their_program() -> None:
    found = [
        caller(x_api_key="sk-ant-1", user_agent="pi/0.73"),
        caller(x_api_key="sk-ant-2", user_agent="pi/0.73"),
        caller(authorization="Bearer sk-ant-1", user_agent="pi/0.73"),
        caller(x_api_key="sk-ant-1", user_agent="OpenAI/Python 3.3"),
        caller(),
    ]

    assert len(set(found)) == len(found)
    assert not any("sk-ant" in one for one in found)


def test_a_new_version_and_a_renewed_token_are_the_same_caller() -> None:
    assert caller(x_api_key="k", user_agent="pi/0.73") == caller(x_api_key="k", user_agent="pi/0.74 (linux)")
    for first, second in (("sk-ant-oat01-a", "sk-ant-oat01-b"), ("ya29.a", "ya29.b"), ("eyJhbGc", "eyJxyz")):
        assert caller(authorization=f"Bearer {first}") == caller(authorization=f"Bearer {second}")
