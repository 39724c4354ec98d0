"""Who asks and who pays: keys of the gateway name agents, and stay here."""

from base64 import b64encode
from dataclasses import replace

import pytest

from foveate.errors import KeyRefused
from foveate.gateway.auth.callers import (
    build_upstream_query,
    check_payer,
    hash_caller,
    identify_agent,
    replacement_key_headers,
)
from foveate.gateway.auth.keys import HashedKeys, generate_key, hash_key
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.headers import KEY_HEADERS as HEADERS
from foveate.gateway.headers import forward_request_headers
from foveate.gateway.request import IncomingRequest, parse_request
from foveate.gateway.routing import Upstream

KEY = generate_key()
KEYS = HashedKeys({hash_key(KEY): "ana"})
THEIRS = Upstream(name="openai", base_url="https://h/v1", family=ApiFamily.OPENAI, provider="openai")
PAID = Upstream(
    name="openai",
    base_url="https://h/v1",
    family=ApiFamily.OPENAI,
    provider="openai",
    key="sk-ours",
    replaces_keys=True,
)


def asked(*headers: tuple[bytes, bytes], query: bytes = b"") -> IncomingRequest:
    scope = {"method": "POST", "path": "/v1/chat/completions", "query_string": query, "headers": list(headers)}
    return parse_request(scope)


def basic(said: str) -> bytes:
    return b"Basic " + b64encode(said.encode())


@pytest.mark.parametrize(
    "shown",
    [
        [(b"authorization", f"Bearer {KEY}".encode())],
        [(b"authorization", f"bearer   {KEY}".encode())],
        [(b"authorization", KEY.encode())],
        [(b"authorization", basic(f"x:{KEY}"))],
        [(b"authorization", basic(f"{KEY}:"))],
        [(b"authorization", b"Bearer sk-theirs"), (b"authorization", f"Bearer {KEY}".encode())],
        *([(name, KEY.encode())] for name in sorted(HEADERS)),
    ],
)
def test_a_key_of_the_gateway_names_its_agent_and_goes_no_further(shown: list[tuple[bytes, bytes]]) -> None:
    """Defect: as a password, in some headers, and beside another, it went to the provider as it came."""
    ask = asked(*shown)

    assert identify_agent(ask, KEYS) == "ana"
    sent = forward_request_headers(
        ask.raw_headers, reads_response=False, key=replacement_key_headers(ask, THEIRS), overrides={}
    )
    assert not [name for name, _ in sent if name in HEADERS]


@pytest.mark.parametrize("said", ["🦊".encode(), b"%F0%9F%A6%8A"], ids=["bytes", "percents"])
def test_an_agent_is_named_in_any_letters_and_is_the_one_of_the_configuration(said: bytes) -> None:
    """Defect: UTF-8 was taken for Latin-1, so that an agent with an emoji had neither settings nor keys."""
    assert identify_agent(asked((b"x-foveate-agent", said)), KEYS) == "🦊"
    with pytest.raises(KeyRefused):
        identify_agent(asked((b"x-foveate-agent", said)), HashedKeys({hash_key(KEY): "🦊"}))


@pytest.mark.parametrize("query", [f"key={KEY}", f"a=1&key=%66ov-{KEY[4:]}"], ids=["plain", "escaped"])
def test_a_key_of_the_gateway_in_an_address_is_refused(query: str) -> None:
    """Defect: it went to the provider."""
    with pytest.raises(KeyRefused, match="in the address"):
        identify_agent(asked(query=query.encode()), KEYS)


@pytest.mark.parametrize("own", [b"Bearer sk-fov-1", b"Bearer sk-1", b"Basic eDp5", b"Basic %", b"Basic"])
def test_a_key_of_the_providers_goes_on_as_it_is(own: bytes) -> None:
    ask = asked((b"authorization", own), query=b"after=file-fov-1")

    assert identify_agent(ask, KEYS) == "default"
    assert replacement_key_headers(ask, THEIRS) is None


def test_only_its_keys_name_an_agent_that_has_any() -> None:
    """Defect: whoever named it in a header had its notes sent along, and spent what it may."""
    named = (b"x-foveate-agent", b"ana")

    with pytest.raises(KeyRefused, match="'ana' has keys of the gateway, and only they name it"):
        identify_agent(asked(named, (b"authorization", b"Bearer sk-stranger")), KEYS)
    assert identify_agent(asked(named, (b"x-api-key", KEY.encode())), KEYS) == "ana"
    assert identify_agent(asked((b"x-foveate-agent", b"ben")), KEYS) == "ben"


def test_beyond_loopback_the_gateway_pays_for_those_who_show_a_key() -> None:
    """Defect: whoever reached the port spent the key of `key_variable`."""
    stranger = asked((b"authorization", b"Bearer sk-any"))

    with pytest.raises(KeyRefused, match="openai are paid by this gateway"):
        check_payer(stranger, PAID, is_open=True)
    check_payer(asked((b"authorization", f"Bearer {KEY}".encode())), PAID, is_open=True)
    check_payer(stranger, PAID, is_open=False)
    check_payer(stranger, THEIRS, is_open=True)


def test_a_google_key_in_the_query_goes_out_unless_another_takes_its_place() -> None:
    google = replace(PAID, name="google", family=ApiFamily.GEMINI)
    query = b"alt=sse&key=AIza%2B1&k%65y=AIza2&access_token=t&x=%26key%3D"

    assert build_upstream_query(asked(query=query), replace(google, replaces_keys=False)) == query.decode()
    assert build_upstream_query(asked(query=query), google) == "alt=sse&x=%26key%3D"
    assert build_upstream_query(asked((b"x-goog-api-key", KEY.encode()), query=b"key=a"), THEIRS) == "key=a"
    assert replacement_key_headers(asked(), google) == [(b"x-goog-api-key", b"sk-ours")]


def signed(key_id: str, signature: str, *more: tuple[bytes, bytes]) -> IncomingRequest:
    said = f"AWS4-HMAC-SHA256 Credential={key_id}/20261117/r/bedrock/aws4_request, Signature={signature}"
    return asked((b"authorization", said.encode()), *more)


def test_a_caller_that_signs_is_known_by_its_key_and_not_by_its_signatures() -> None:
    token = (b"x-amz-security-token", b"renewed")

    assert hash_caller(signed("AKIA1", "a")) == hash_caller(signed("AKIA1", "b"))
    assert hash_caller(signed("AKIA1", "a")) != hash_caller(signed("AKIA2", "a"))
    assert hash_caller(signed("ASIA1", "a", token)) == hash_caller(signed("ASIA2", "b"))


def test_a_key_in_the_query_tells_callers_of_gemini_apart() -> None:
    def gemini(query: bytes) -> IncomingRequest:
        path = "/v1beta/models/gemini-3-pro:generateContent"
        return parse_request({"method": "POST", "path": path, "query_string": query, "headers": []})

    assert hash_caller(gemini(b"key=a&alt=sse")) == hash_caller(gemini(b"key=a"))
    assert hash_caller(gemini(b"key=a")) != hash_caller(gemini(b"key=b"))


OAUTH = (b"authorization", b"Bearer sk-ant-oat01-theirs")
NAMED = (b"x-foveate-key", KEY.encode())


def test_a_key_beside_own_credentials_names_the_agent_and_leaves_them() -> None:
    ask = asked(OAUTH, NAMED, (b"x-custom", b"1"))

    assert identify_agent(ask, KEYS) == "ana"
    assert replacement_key_headers(ask, THEIRS) is None
    sent = forward_request_headers(
        ask.raw_headers, reads_response=False, key=replacement_key_headers(ask, THEIRS), overrides={}
    )
    assert sent == [OAUTH, (b"x-custom", b"1")]
    check_payer(ask, PAID, is_open=True)


def test_a_key_beside_a_google_key_in_the_query_leaves_that() -> None:
    path = "/v1beta/models/gemini-3-pro:generateContent"
    ask = parse_request({"method": "POST", "path": path, "query_string": b"key=AIzaTheirs", "headers": [NAMED]})
    google = replace(THEIRS, family=ApiFamily.GEMINI, key="AIzaOurs")

    assert identify_agent(ask, KEYS) == "ana"
    assert (replacement_key_headers(ask, google), build_upstream_query(ask, google)) == (None, "key=AIzaTheirs")


def test_a_key_beside_own_credentials_does_not_go_over_what_the_operator_says() -> None:
    ask = asked(OAUTH, NAMED)

    assert replacement_key_headers(ask, PAID) == [(b"authorization", b"Bearer sk-ours")]


def test_a_key_in_its_own_header_without_credentials_is_as_good_as_in_their_place() -> None:
    ask = asked(NAMED)

    assert identify_agent(ask, KEYS) == "ana"
    assert replacement_key_headers(ask, replace(THEIRS, key="sk-ours")) == [
        (b"authorization", b"Bearer sk-ours")
    ]
    both = asked(NAMED, (b"authorization", f"Bearer {KEY}".encode()))
    assert replacement_key_headers(both, THEIRS) == []


@pytest.mark.parametrize("said", [b"fov-nonsense", b"sk-ant-oat01-x", b"x"])
def test_a_key_that_is_none_of_the_gateways_is_refused(said: bytes) -> None:
    with pytest.raises(KeyRefused) as refused:
        identify_agent(asked(OAUTH, (b"x-foveate-key", said)), KEYS)

    assert said.decode() not in str(refused.value)


def test_an_empty_key_header_says_nothing() -> None:
    ask = asked(OAUTH, (b"x-foveate-key", b" "))

    assert (ask.key, ask.keeps_credentials) == (None, False)
    assert identify_agent(ask, KEYS) == "default"


def test_a_key_that_a_signature_covers_is_refused() -> None:
    signed = (
        b"AWS4-HMAC-SHA256 Credential=AKIA/1/r/s/aws4_request, SignedHeaders=host;x-foveate-key, Signature=0"
    )

    with pytest.raises(KeyRefused, match="signature"):
        identify_agent(asked((b"authorization", signed), NAMED), KEYS)


def test_callers_with_short_lived_tokens_are_told_apart_by_their_keys() -> None:
    other = (b"x-foveate-key", generate_key().encode())

    assert hash_caller(asked(OAUTH, NAMED)) == hash_caller(
        asked((b"authorization", b"Bearer sk-ant-oat01-new"), NAMED)
    )
    assert hash_caller(asked(OAUTH, NAMED)) != hash_caller(asked(OAUTH, other))
