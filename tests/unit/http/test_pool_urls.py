"""URLs of upstreams."""

import pytest

from foveate.errors import UpstreamUnreachable
from foveate.http.pool import parse_url


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://api.example", b"api.example", b"/"),
        ("https://api.example:8443/v1?a=b%20c", b"api.example:8443", b"/v1?a=b%20c"),
        ("http://[::1]:80/x", b"[::1]", b"/x"),
        ("http://bücher.example/", b"xn--bcher-kva.example", b"/"),
    ],
)
def test_urls_are_parsed_into_authority_and_path(url: str, authority: bytes, path: bytes) -> None:
    assert (parse_url(url).authority, parse_url(url).path) == (authority, path)


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://a/b", "http://", "http://a:99999", "http://a/ b", "http://a/ü"]
)
def test_invalid_urls_are_reported(url: str) -> None:
    with pytest.raises(UpstreamUnreachable):
        parse_url(url)
