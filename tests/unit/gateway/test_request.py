"""What a client says in headers that injected sections depend on."""

import pytest

from foveate.engine.options import NO_SECTION_INPUTS, SectionInputs
from foveate.gateway.request import parse_section_headers


def test_headers_of_others_tell_nothing() -> None:
    assert parse_section_headers({"accept": "*/*", "user-agent": "x"}) is NO_SECTION_INPUTS


def test_each_header_tells_its_own() -> None:
    found = parse_section_headers(
        {
            "x-foveate-focus": "Roses",
            "x-foveate-scope": "Garden",
            "x-foveate-channel": "slack",
            "x-foveate-sender": "U1",
            "x-foveate-channel-topic": "beds",
            "x-foveate-channel-": "nothing",
        }
    )

    assert found == SectionInputs(
        focus="Roses", scope="Garden", channel="slack", sender="U1", metadata=(("topic", "beds"),)
    )


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Bøb".encode().decode("latin-1"), "Bøb"),  # the bytes of UTF-8, as they come
        ("B\xf8b", "Bøb"),  # Latin-1
        ("B%C3%B8b", "Bøb"),
        ("100%", "100%"),
        ("%ff", "%ff"),
        ("  U1 ", "U1"),
        ("x" * 5_000, "x" * 1_000),
    ],
)
def test_a_value_is_read_as_it_is_meant(said: str, meant: str) -> None:
    assert parse_section_headers({"x-foveate-sender": said}).sender == meant


def test_an_empty_focus_is_none() -> None:
    assert parse_section_headers({"x-foveate-focus": " "}).focus is None
