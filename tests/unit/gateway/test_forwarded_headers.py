"""Headers forwarded to the provider and back."""

import pytest

from foveate.gateway.forwarded_headers import (
    forward_request_headers,
    forward_response_headers,
    signed_header_names,
)
from foveate.gateway.request import parse_request

RECEIVED = [
    (b"host", b"127.0.0.1:8090"),
    (b"connection", b"keep-alive, X-Hop"),
    (b"x-hop", b"1"),
    (b"content-length", b"12"),
    (b"content-type", b"application/json"),
    (b"accept-encoding", b"gzip, br"),
    (b"x-api-key", b"sk-secret"),
    (b"anthropic-version", b"2023-06-01"),
    (b"anthropic-beta", b"a-1"),
    (b"x-foveate-agent", b"ana"),
    (b"x-foveate-session", b"s"),
    (b"x-stainless-lang", b"python"),
]


def test_hop_by_hop_and_foveate_headers_are_not_forwarded() -> None:
    forwarded = forward_request_headers(RECEIVED, reads_response=False, key=None, overrides={})

    assert forwarded == [
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"gzip, br"),
        (b"x-api-key", b"sk-secret"),
        (b"anthropic-version", b"2023-06-01"),
        (b"anthropic-beta", b"a-1"),
        (b"x-stainless-lang", b"python"),
    ]


def test_a_response_that_is_parsed_is_requested_uncompressed() -> None:
    forwarded = forward_request_headers(RECEIVED, reads_response=True, key=None, overrides={})

    assert [value for name, value in forwarded if name == b"accept-encoding"] == [b"identity"]


def test_the_gateways_key_replaces_all_credentials_of_the_client() -> None:
    received = [*RECEIVED, (b"authorization", b"Bearer fov-1"), (b"api-key", b"x")]
    forwarded = forward_request_headers(
        received, reads_response=False, key=[(b"x-api-key", b"sk-upstream")], overrides={}
    )

    keys = [(name, value) for name, value in forwarded if b"key" in name or name == b"authorization"]
    assert keys == [(b"x-api-key", b"sk-upstream")]


def test_headers_are_set_and_an_empty_value_removes_one() -> None:
    forwarded = forward_request_headers(
        RECEIVED,
        reads_response=False,
        key=None,
        overrides={b"anthropic-beta": b"b-2", b"x-stainless-lang": b""},
    )

    assert (b"anthropic-beta", b"b-2") in forwarded
    assert not any(value == b"a-1" or name == b"x-stainless-lang" for name, value in forwarded)


def test_response_headers_are_forwarded_except_hop_by_hop_ones() -> None:
    received = [
        (b"Content-Type", b"text/event-stream"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"Retry-After", b"7"),
        (b"Content-Length", b"9"),
        (b"Set-Cookie", b"a"),
        (b"Set-Cookie", b"b"),
    ]
    expected = [
        (b"content-type", b"text/event-stream"),
        (b"retry-after", b"7"),
        (b"content-length", b"9"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]

    assert forward_response_headers(received, is_changed=False) == expected
    assert forward_response_headers(received, is_changed=True) == [
        pair for pair in expected if pair[0] != b"content-length"
    ]


def test_headers_covered_by_an_aws_signature_stay_unchanged() -> None:
    names = b"accept-encoding;host;x-amz-date;x-foveate-agent"
    signature = b"AWS4-HMAC-SHA256 Credential=AKIA/1/r/s/aws4_request, SignedHeaders=%b, Signature=0" % names
    signed = [*RECEIVED, (b"x-amz-date", b"20261117T000000Z"), (b"authorization", signature)]

    forwarded = forward_request_headers(signed, reads_response=True, key=None, overrides={})
    assert signed_header_names(signed) == frozenset(names.split(b";"))
    assert [pair for pair in forwarded if pair[0] in names.split(b";")] == [
        (b"accept-encoding", b"gzip, br"),
        (b"x-foveate-agent", b"ana"),
        (b"x-amz-date", b"20261117T000000Z"),
    ]
    with_replaced_key = forward_request_headers(
        signed, reads_response=True, key=[(b"authorization", b"Bearer k")], overrides={}
    )
    assert (b"accept-encoding", b"identity") in with_replaced_key
    assert b"x-foveate-agent" not in dict(with_replaced_key)


@pytest.mark.parametrize(
    "text", [b"Bearer AWS4", b"AWS4-HMAC-SHA256 Credential=a", b"Bearer SignedHeaders=host"]
)
def test_without_a_signature_no_header_is_covered(text: bytes) -> None:
    assert (
        signed_header_names([(b"authorization", text), (b"x-other", b"AWS4-A SignedHeaders=host")])
        == frozenset()
    )


def test_several_beta_headers_are_read_as_one_list_and_forwarded_unchanged() -> None:
    raw = [(b"anthropic-beta", b"a-1"), (b"x-api-key", b"k"), (b"anthropic-beta", b"b-2, c-3")]
    request = parse_request({"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": raw})

    assert request.headers["anthropic-beta"] == "a-1,b-2, c-3"
    assert forward_request_headers(request.raw_headers, reads_response=False, key=None, overrides={}) == raw


def test_overridden_betas_replace_all_beta_headers() -> None:
    raw = [(b"anthropic-beta", b"a-1"), (b"anthropic-beta", b"b-2")]
    forwarded = forward_request_headers(
        raw, reads_response=False, key=None, overrides={b"anthropic-beta": b"a-1,b-2,c-3"}
    )

    assert forwarded == [(b"anthropic-beta", b"a-1,b-2,c-3")]
