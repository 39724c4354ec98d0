"""What a client says in headers that injected sections depend on."""

import pytest

from foveate.engine.injecting.options import NOTHING_TOLD, Told
from foveate.gateway.telling import told_in


def test_headers_of_others_tell_nothing() -> None:
    assert told_in({"accept": "*/*", "user-agent": "x"}) is NOTHING_TOLD


def test_each_header_tells_its_own() -> None:
    found = told_in(
        {
            "x-foveate-focus": "Roses",
            "x-foveate-scope": "Garden",
            "x-foveate-channel": "slack",
            "x-foveate-sender": "U1",
            "x-foveate-channel-topic": "beds",
            "x-foveate-channel-": "nothing",
        }
    )

    assert found == Told(
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
    assert told_in({"x-foveate-sender": said}).sender == meant


def test_an_empty_focus_is_none() -> None:
    assert told_in({"x-foveate-focus": " "}).focus is None
