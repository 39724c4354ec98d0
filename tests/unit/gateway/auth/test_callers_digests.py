"""Callers that share the name of an agent."""

from dataclasses import replace

from foveate.gateway.auth.callers import hash_account, hash_caller, hash_name_scope
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.request import parse_request
from foveate.gateway.routing import Upstream


def digest_caller(**headers: str) -> str:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return hash_caller(
        parse_request({"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": raw})
    )


def test_callers_differ_by_key_and_program() -> None:
    digests = [
        digest_caller(x_api_key="sk-ant-1", user_agent="pi/0.73"),
        digest_caller(x_api_key="sk-ant-2", user_agent="pi/0.73"),
        digest_caller(authorization="Bearer sk-ant-1", user_agent="pi/0.73"),
        digest_caller(x_api_key="sk-ant-1", user_agent="OpenAI/Python 3.3"),
        digest_caller(),
    ]

    assert len(set(digests)) == len(digests)
    assert not any("sk-ant" in digest for digest in digests)


def test_a_new_version_and_a_renewed_token_are_the_same_caller() -> None:
    assert digest_caller(x_api_key="k", user_agent="pi/0.73") == digest_caller(
        x_api_key="k", user_agent="pi/0.74 (linux)"
    )
    for first, second in (("sk-ant-oat01-a", "sk-ant-oat01-b"), ("ya29.a", "ya29.b"), ("eyJhbGc", "eyJxyz")):
        assert digest_caller(authorization=f"Bearer {first}") == digest_caller(authorization=f"Bearer {second}")


def digest_scope(**headers: str) -> str:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return hash_name_scope(
        parse_request({"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": raw})
    )


def test_session_names_are_scoped_to_a_key_in_any_header_and_program() -> None:
    same = {
        digest_scope(x_api_key="k", user_agent="pi/0.73"),
        digest_scope(authorization="Bearer k", user_agent="OpenAI/Python 3.3"),
        digest_scope(x_api_key="k", authorization="Bearer k"),
    }
    other = {
        digest_scope(x_api_key="k2", user_agent="pi/0.73"),
        digest_scope(user_agent="pi/0.73"),
        digest_scope(),
    }

    assert len(same) == 1
    assert len(other | same) == 4


def test_session_names_are_scoped_to_a_program_if_its_keys_are_short_lived() -> None:
    tokens = ("sk-ant-oat01-a", "ya29.a", "eyJhbGc", "bedrock-api-key-YmVk", "tid=a;exp=1")
    renewed = {digest_scope(authorization=f"Bearer {token}", user_agent="pi/0.73") for token in tokens}

    assert renewed == {digest_scope(user_agent="pi/0.74")}
    assert digest_scope(authorization="Bearer ya29.a", user_agent="curl/8") not in renewed


ANTHROPIC = Upstream(
    name="anthropic", base_url="http://a.test", family=ApiFamily.ANTHROPIC, provider="anthropic"
)


def digest_account(upstream: Upstream = ANTHROPIC, **headers: str) -> str:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": raw}
    return hash_account(parse_request(scope), upstream)


def test_accounts_differ_by_upstream_and_by_the_key_that_it_gets() -> None:
    signature = "AWS4-HMAC-SHA256 Credential=AKIA1/20261115/us-east-1/bedrock/aws4_request, Signature="
    with_own_key = replace(ANTHROPIC, replaces_keys=True)

    assert digest_account(x_api_key="k", user_agent="pi/0.73") == digest_account(authorization="Bearer k")
    assert digest_account(authorization=f"{signature}1") == digest_account(authorization=f"{signature}2")
    assert digest_account(with_own_key, x_api_key="k") == digest_account(with_own_key, x_api_key="k2")
    others = [
        digest_account(x_api_key="k"),
        digest_account(x_api_key="k2"),
        digest_account(authorization="Bearer sk-ant-oat01-a"),
        digest_account(authorization=f"{signature}1"),
        digest_account(replace(ANTHROPIC, name="another"), x_api_key="k"),
        digest_account(authorization=" "),
    ]
    assert len(set(others)) == len(others)
