"""Gateway keys identify agents, and are never forwarded."""

from base64 import b64encode
from dataclasses import replace

import pytest

from foveate.errors import KeyRefused
from foveate.gateway.auth.callers import (
    HashedKeys,
    build_upstream_query,
    check_payer,
    generate_key,
    hash_caller,
    hash_key,
    identify_agent,
    replacement_key_headers,
)
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.forwarded_headers import KEY_HEADERS, forward_request_headers
from foveate.gateway.request import ClientRequest, parse_request
from foveate.gateway.routing import Upstream

KEY = generate_key()
KEYS = HashedKeys({hash_key(KEY): "ana"})
CLIENT_PAID = Upstream(name="openai", base_url="https://h/v1", family=ApiFamily.OPENAI, provider="openai")
GATEWAY_PAID = Upstream(
    name="openai",
    base_url="https://h/v1",
    family=ApiFamily.OPENAI,
    provider="openai",
    key="sk-ours",
    replaces_keys=True,
)


def make_request(*headers: tuple[bytes, bytes], query: bytes = b"") -> ClientRequest:
    scope = {"method": "POST", "path": "/v1/chat/completions", "query_string": query, "headers": list(headers)}
    return parse_request(scope)


def basic_auth(text: str) -> bytes:
    return b"Basic " + b64encode(text.encode())


@pytest.mark.parametrize(
    "key_headers",
    [
        [(b"authorization", f"Bearer {KEY}".encode())],
        [(b"authorization", f"bearer   {KEY}".encode())],
        [(b"authorization", KEY.encode())],
        [(b"authorization", basic_auth(f"x:{KEY}"))],
        [(b"authorization", basic_auth(f"{KEY}:"))],
        [(b"authorization", b"Bearer sk-theirs"), (b"authorization", f"Bearer {KEY}".encode())],
        *([(name, KEY.encode())] for name in sorted(KEY_HEADERS)),
    ],
)
def test_a_gateway_key_names_its_agent_and_is_not_forwarded(key_headers: list[tuple[bytes, bytes]]) -> None:
    """Regression: as a password, in some headers, and besides another key, it was forwarded to the provider."""
    request = make_request(*key_headers)

    assert identify_agent(request, KEYS) == "ana"
    forwarded = forward_request_headers(
        request.raw_headers,
        reads_response=False,
        key=replacement_key_headers(request, CLIENT_PAID),
        overrides={},
    )
    assert not [name for name, _ in forwarded if name in KEY_HEADERS]


@pytest.mark.parametrize("text", ["🦊".encode(), b"%F0%9F%A6%8A"], ids=["bytes", "percents"])
def test_an_agent_name_can_contain_any_letters(text: bytes) -> None:
    """Regression: UTF-8 was read as Latin-1, so an agent with an emoji had neither settings nor keys."""
    assert identify_agent(make_request((b"x-foveate-agent", text)), KEYS) == "🦊"
    with pytest.raises(KeyRefused):
        identify_agent(make_request((b"x-foveate-agent", text)), HashedKeys({hash_key(KEY): "🦊"}))


@pytest.mark.parametrize("query", [f"key={KEY}", f"a=1&key=%66ov-{KEY[4:]}"], ids=["plain", "escaped"])
def test_a_gateway_key_in_a_url_is_rejected(query: str) -> None:
    """Regression: it was forwarded to the provider."""
    with pytest.raises(KeyRefused, match="in its URL"):
        identify_agent(make_request(query=query.encode()), KEYS)


@pytest.mark.parametrize(
    "credentials", [b"Bearer sk-fov-1", b"Bearer sk-1", b"Basic eDp5", b"Basic %", b"Basic"]
)
def test_a_providers_key_is_forwarded_unchanged(credentials: bytes) -> None:
    request = make_request((b"authorization", credentials), query=b"after=file-fov-1")

    assert identify_agent(request, KEYS) == "default"
    assert replacement_key_headers(request, CLIENT_PAID) is None


def test_an_agent_with_keys_is_named_only_by_its_keys() -> None:
    """Regression: anybody who named it in a header got its notes and spent its budget."""
    name_header = (b"x-foveate-agent", b"ana")

    with pytest.raises(KeyRefused, match="requests of the agent 'ana' need one of its gateway keys"):
        identify_agent(make_request(name_header, (b"authorization", b"Bearer sk-stranger")), KEYS)
    assert identify_agent(make_request(name_header, (b"x-api-key", KEY.encode())), KEYS) == "ana"
    assert identify_agent(make_request((b"x-foveate-agent", b"ben")), KEYS) == "ben"


def test_beyond_loopback_the_gateway_pays_only_for_callers_with_a_key() -> None:
    """Regression: anybody who reached the port used the key of `key_variable`."""
    stranger = make_request((b"authorization", b"Bearer sk-any"))

    with pytest.raises(KeyRefused, match="pays for calls to openai"):
        check_payer(stranger, GATEWAY_PAID, is_open=True)
    check_payer(make_request((b"authorization", f"Bearer {KEY}".encode())), GATEWAY_PAID, is_open=True)
    check_payer(stranger, GATEWAY_PAID, is_open=False)
    check_payer(stranger, CLIENT_PAID, is_open=True)


def test_a_google_key_in_the_query_is_forwarded_unless_it_is_replaced() -> None:
    google = replace(GATEWAY_PAID, name="google", family=ApiFamily.GEMINI)
    query = b"alt=sse&key=AIza%2B1&k%65y=AIza2&access_token=t&x=%26key%3D"

    assert (
        build_upstream_query(make_request(query=query), replace(google, replaces_keys=False)) == query.decode()
    )
    assert build_upstream_query(make_request(query=query), google) == "alt=sse&x=%26key%3D"
    assert (
        build_upstream_query(make_request((b"x-goog-api-key", KEY.encode()), query=b"key=a"), CLIENT_PAID)
        == "key=a"
    )
    assert replacement_key_headers(make_request(), google) == [(b"x-goog-api-key", b"sk-ours")]


def make_signed_request(key_id: str, signature: str, *other_headers: tuple[bytes, bytes]) -> ClientRequest:
    text = f"AWS4-HMAC-SHA256 Credential={key_id}/20261117/r/bedrock/aws4_request, Signature={signature}"
    return make_request((b"authorization", text.encode()), *other_headers)


def test_a_signing_caller_is_identified_by_its_key_not_by_its_signatures() -> None:
    token = (b"x-amz-security-token", b"renewed")

    assert hash_caller(make_signed_request("AKIA1", "a")) == hash_caller(make_signed_request("AKIA1", "b"))
    assert hash_caller(make_signed_request("AKIA1", "a")) != hash_caller(make_signed_request("AKIA2", "a"))
    assert hash_caller(make_signed_request("ASIA1", "a", token)) == hash_caller(
        make_signed_request("ASIA2", "b")
    )


def test_callers_of_gemini_differ_by_the_key_in_the_query() -> None:
    def make_gemini_request(query: bytes) -> ClientRequest:
        path = "/v1beta/models/gemini-3-pro:generateContent"
        return parse_request({"method": "POST", "path": path, "query_string": query, "headers": []})

    assert hash_caller(make_gemini_request(b"key=a&alt=sse")) == hash_caller(make_gemini_request(b"key=a"))
    assert hash_caller(make_gemini_request(b"key=a")) != hash_caller(make_gemini_request(b"key=b"))


OAUTH = (b"authorization", b"Bearer sk-ant-oat01-theirs")
GATEWAY_KEY = (b"x-foveate-key", KEY.encode())


def test_a_gateway_key_besides_own_credentials_names_the_agent_and_keeps_them() -> None:
    request = make_request(OAUTH, GATEWAY_KEY, (b"x-custom", b"1"))

    assert identify_agent(request, KEYS) == "ana"
    assert replacement_key_headers(request, CLIENT_PAID) is None
    forwarded = forward_request_headers(
        request.raw_headers,
        reads_response=False,
        key=replacement_key_headers(request, CLIENT_PAID),
        overrides={},
    )
    assert forwarded == [OAUTH, (b"x-custom", b"1")]
    check_payer(request, GATEWAY_PAID, is_open=True)


def test_a_gateway_key_keeps_a_google_key_in_the_query() -> None:
    path = "/v1beta/models/gemini-3-pro:generateContent"
    request = parse_request(
        {"method": "POST", "path": path, "query_string": b"key=AIzaTheirs", "headers": [GATEWAY_KEY]}
    )
    google = replace(CLIENT_PAID, family=ApiFamily.GEMINI, key="AIzaOurs")

    assert identify_agent(request, KEYS) == "ana"
    assert (replacement_key_headers(request, google), build_upstream_query(request, google)) == (
        None,
        "key=AIzaTheirs",
    )


def test_own_credentials_are_replaced_if_configured() -> None:
    request = make_request(OAUTH, GATEWAY_KEY)

    assert replacement_key_headers(request, GATEWAY_PAID) == [(b"authorization", b"Bearer sk-ours")]


def test_a_key_in_its_own_header_works_without_other_credentials() -> None:
    request = make_request(GATEWAY_KEY)

    assert identify_agent(request, KEYS) == "ana"
    assert replacement_key_headers(request, replace(CLIENT_PAID, key="sk-ours")) == [
        (b"authorization", b"Bearer sk-ours")
    ]
    both = make_request(GATEWAY_KEY, (b"authorization", f"Bearer {KEY}".encode()))
    assert replacement_key_headers(both, CLIENT_PAID) == []


@pytest.mark.parametrize("text", [b"fov-nonsense", b"sk-ant-oat01-x", b"x"])
def test_an_unknown_gateway_key_is_rejected(text: bytes) -> None:
    with pytest.raises(KeyRefused) as raised:
        identify_agent(make_request(OAUTH, (b"x-foveate-key", text)), KEYS)

    assert text.decode() not in str(raised.value)


def test_an_empty_key_header_is_ignored() -> None:
    request = make_request(OAUTH, (b"x-foveate-key", b" "))

    assert (request.key, request.keeps_credentials) == (None, False)
    assert identify_agent(request, KEYS) == "default"


def test_a_gateway_key_covered_by_a_signature_is_rejected() -> None:
    authorization = (
        b"AWS4-HMAC-SHA256 Credential=AKIA/1/r/s/aws4_request, SignedHeaders=host;x-foveate-key, Signature=0"
    )

    with pytest.raises(KeyRefused, match="signature"):
        identify_agent(make_request((b"authorization", authorization), GATEWAY_KEY), KEYS)


def test_callers_with_short_lived_tokens_differ_by_their_gateway_keys() -> None:
    other = (b"x-foveate-key", generate_key().encode())

    assert hash_caller(make_request(OAUTH, GATEWAY_KEY)) == hash_caller(
        make_request((b"authorization", b"Bearer sk-ant-oat01-new"), GATEWAY_KEY)
    )
    assert hash_caller(make_request(OAUTH, GATEWAY_KEY)) != hash_caller(make_request(OAUTH, other))


def test_the_prefix_of_a_run_names_an_agent_without_keys_and_authorises_nothing() -> None:
    def in_run(agent: str, *headers: tuple[bytes, bytes]) -> ClientRequest:
        path = f"/run/0123456789abcdef/{agent}/v1/chat/completions"
        return parse_request({"method": "POST", "path": path, "query_string": b"", "headers": list(headers)})

    assert identify_agent(in_run("ben"), KEYS) == "ben"
    assert identify_agent(in_run("ben", (b"authorization", b"Bearer " + KEY.encode())), KEYS) == "ana"
    with pytest.raises(KeyRefused, match="need one of its gateway keys"):
        identify_agent(in_run("ana"), KEYS)
