"""Parsed requests: the prefix of a run, and headers that injected sections depend on."""

import pytest

from foveate.engine.options import NO_SECTION_INPUTS, SectionInputs
from foveate.gateway.request import ClientRequest, parse_request, parse_section_headers

PREFIX = "/run/0123456789abcdef/pi"


def make_request(path: str, raw_path: str | None = None, **headers: str) -> ClientRequest:
    return parse_request(
        {
            "method": "POST",
            "path": path,
            "raw_path": (raw_path or path).encode(),
            "query_string": b"",
            "headers": [
                (name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()
            ],
        }
    )


def test_the_prefix_of_a_run_names_the_agent_and_is_not_forwarded() -> None:
    request = make_request(f"{PREFIX}/v1/messages")

    assert (request.path, request.raw_path) == ("/v1/messages", "/v1/messages")
    assert request.endpoint == make_request("/v1/messages").endpoint
    assert request.headers["x-foveate-agent"] == "pi"
    assert request.id.startswith("req_0123456789abcdef")
    assert request.raw_headers == []


@pytest.mark.parametrize("path", ["/messages", "/v1/v1/messages", "/v1/messages/", "//v1/messages"])
def test_paths_after_the_prefix_of_a_run_are_canonical(path: str) -> None:
    assert make_request(PREFIX + path).path == "/v1/messages"


def test_a_header_names_the_agent_rather_than_the_prefix() -> None:
    assert make_request(f"{PREFIX}/v1/messages", x_foveate_agent="ana").headers["x-foveate-agent"] == "ana"


def test_an_encoded_prefix_is_no_prefix() -> None:
    raw_path = "/%72un/0123456789abcdef/pi/v1/messages"

    request = make_request(f"{PREFIX}/v1/messages", raw_path)

    assert request.raw_path == raw_path
    assert "x-foveate-agent" not in request.headers


def test_escapes_after_the_prefix_stay_as_they_are() -> None:
    request = make_request(f"{PREFIX}/v1/files/a/b", f"{PREFIX}/v1/files/a%2Fb")

    assert (request.path, request.raw_path) == ("/v1/files/a/b", "/v1/files/a%2Fb")


def test_other_headers_are_ignored() -> None:
    assert parse_section_headers({"accept": "*/*", "user-agent": "x"}) is NO_SECTION_INPUTS


def test_each_header_sets_its_own_value() -> None:
    result = parse_section_headers(
        {
            "x-foveate-focus": "Roses",
            "x-foveate-scope": "Garden",
            "x-foveate-channel": "slack",
            "x-foveate-sender": "U1",
            "x-foveate-channel-topic": "beds",
            "x-foveate-channel-": "nothing",
        }
    )

    assert result == SectionInputs(
        focus="Roses", scope="Garden", channel="slack", sender="U1", metadata=(("topic", "beds"),)
    )


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("Bøb".encode().decode("latin-1"), "Bøb"),  # raw UTF-8 bytes
        ("B\xf8b", "Bøb"),  # Latin-1
        ("B%C3%B8b", "Bøb"),
        ("100%", "100%"),
        ("%ff", "%ff"),
        ("  U1 ", "U1"),
        ("x" * 5_000, "x" * 1_000),
    ],
)
def test_values_are_decoded(text: str, decoded: str) -> None:
    assert parse_section_headers({"x-foveate-sender": text}).sender == decoded


def test_an_empty_focus_is_no_focus() -> None:
    assert parse_section_headers({"x-foveate-focus": " "}).focus is None
