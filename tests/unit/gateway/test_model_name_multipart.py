"""Fields of forms are found where RFC 7578 allows them, and in linear time."""

from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import MalformedRequest
from foveate.gateway.model_name import form_boundary, form_field
from tests.support.oracles.time_growth import superlinear_ratio

PART = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%s\r\n'
END = b"--b--\r\n"


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=b", b"b"),
        ('Multipart/Form-Data;charset=utf-8 ; BOUNDARY="a b\\";c"', b'a b";c'),
        (
            'multipart/form-data; x="boundary=n;boundary=m"; boundary=----=_b\'()+_,-./:=?',
            b"----=_b'()+_,-./:=?",
        ),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data", None),
        ("multipart/form-data-not; boundary=b", None),
        ("multipart/mixed; boundary=b", None),
        ("application/json", None),
        ("", None),
    ],
)
def test_a_boundary_is_read_quoted_or_not(content_type: str, boundary: bytes | None) -> None:
    assert form_boundary(content_type) == boundary


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (PART % (b"model", b"whisper-1") + END, "whisper-1"),
        (FILE % (b"\x00\xff" * 9) + PART % (b"model", "größe".encode()) + END, "größe"),
        (b"preamble\r\n" + PART % (b"model", b"a") + END, "a"),
        (b"--b \t\r\ncontent-DISPOSITION :Form-Data ; x=1;NAME=model\r\nX: y\r\n\r\na\r\n--b--", "a"),
        (b'--b\r\nX: y\r\nContent-Disposition: form-data; name="mod\\el"\r\n\r\na\r\n' + END, "a"),
        (PART % (b"model", b"") + END, ""),
        (PART % (b"model", b"a\r\n--bc\r\n--b-") + END, "a\r\n--bc\r\n--b-"),
        (PART % (b"model", b"cut off"), "cut off\r\n"),
        # The following are not fields of that name.
        (PART % (b"Model", b"a") + PART % (b"model[]", b"a") + END, None),
        (b'--b\r\nContent-Disposition: attachment; name="model"\r\n\r\na\r\n' + END, None),
        (b'--b\r\nX-Content-Disposition: form-data; name="model"\r\n\r\na\r\n' + END, None),
        (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="x; name=model"\r\n\r\na\r\n' + END,
            None,
        ),
        (FILE % b'Content-Disposition: form-data; name="model"\r\n\r\na' + END, None),
        (FILE % b'--c\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--c--' + END, None),
        (FILE % b"" + END + PART % (b"model", b"in the epilogue"), None),
        (b'--b\r\n\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n' + END, None),
        (b"--b\r\n--b\r\n--b--", None),
        (b"name=model\r\n\r\na\r\n", None),
        (b"", None),
    ],
)
def test_a_field_is_found_only_where_a_part_of_the_form_has_its_name(body: bytes, model: str | None) -> None:
    assert form_field(body, b"b", "model") == model


@given(
    fields=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=20), max_size=4),
    files=st.dictionaries(st.text(min_size=1, max_size=5), st.binary(max_size=200), min_size=1, max_size=3),
)
def test_every_field_of_a_form_that_a_client_writes_is_read(
    fields: dict[str, str], files: dict[str, bytes]
) -> None:
    # Clients escape other characters in names, each in its own way.
    fields = {name: text for name, text in fields.items() if name.isalnum() and name not in files}
    request = httpx.Request("POST", "http://x", data=fields, files=files)
    boundary = form_boundary(request.headers["content-type"])

    assert boundary is not None
    for name, text in fields.items():
        assert form_field(request.read(), boundary, name) == text
    assert form_field(request.read(), boundary, "no such field") is None


@pytest.mark.parametrize(
    "body",
    [
        PART % (b"model", b"cheap") + PART % (b"model", b"dear") + END,
        PART % (b"model", b"a") + FILE % b"x" + PART % (b"model", b"a") + END,
        b"--b\r\nContent-Disposition: form-data; name=x; name=model\r\n\r\na\r\n" + END,
        b"--b\r\n" + b"Content-Disposition: form-data; name=model\r\n" * 2 + b"\r\na\r\n" + END,
    ],
)
def test_a_form_with_a_duplicate_field_is_rejected(body: bytes) -> None:
    with pytest.raises(MalformedRequest, match=r"model.* 2 times|'name' twice"):
        form_field(body, b"b", "model")


def test_a_form_with_two_boundaries_is_rejected() -> None:
    with pytest.raises(MalformedRequest, match="'boundary' twice"):
        form_boundary("multipart/form-data; boundary=a; boundary=b")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (PART % (b"a", b"") * 10_001 + END, "10,000 parts"),
        (b"--b\r\nX: " + b"y" * 20_000 + b"\r\n\r\n" + END, "16,384"),
    ],
)
def test_a_form_beyond_the_limits_is_rejected(body: bytes, text: str) -> None:
    with pytest.raises(MalformedRequest, match=text):
        form_field(body, b"b", "model")


@pytest.mark.parametrize("size", [2**20 - 9, 2**20 - 5, 2**20 - 1, 2**20, 2**21 + 3])
def test_a_field_after_a_large_file_is_found(size: int) -> None:
    body = FILE % (b"\r\n--" * (size // 4))[:size] + PART % (b"model", b"a") + END

    assert form_field(body, b"b", "model") == "a"


@pytest.mark.parametrize(
    "unit",
    [
        b"name=model\r\n",
        b"\r\n--b",
        b"\r\n--b\r\n",
        b"\r\n--b ",
        PART % (b"a", b""),
        b"\r\n--b\r\nContent-Disposition: form-data",
        b"Content-Disposition: form-data;",
        b'Content-Disposition: form-data; name="',
        b"\r\n\r\n",
        b"\r\n",
        b" ",
    ],
)
@pytest.mark.parametrize("before", [b"", b"--b\r\n", b'--b\r\nContent-Disposition: form-data; name="a'])
def test_a_multipart_body_of_repeated_names_is_read_in_linear_time(before: bytes, unit: bytes) -> None:
    def read(body: bytes) -> None:
        with suppress(MalformedRequest):
            form_field(body, b"b", "model")

    assert superlinear_ratio(read, lambda size: before + unit * (size // len(unit)), max_size=2**19) is None


@pytest.mark.parametrize("unit", [";", '"', '\\"', ';a="', "; a=", ";a", "=", ' "', ';boundary="\\', ";a =\t"])
def test_a_content_type_is_read_in_linear_time(unit: str) -> None:
    def read(content_type: str) -> None:
        with suppress(MalformedRequest):
            form_boundary(content_type)

    text = "multipart/form-data; "
    assert superlinear_ratio(read, lambda size: text + unit * (size // len(unit)), max_size=2**18) is None
