"""Headers that injected sections depend on."""

import pytest

from foveate.engine.options import NO_SECTION_INPUTS, SectionInputs
from foveate.gateway.request import parse_section_headers


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
