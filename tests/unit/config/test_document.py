"""YAML and JSON as plain data, with errors that name the line."""

import json
import math
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from foveate.config.document import parse_document, read_document
from foveate.config.files import read_bytes
from foveate.config.key_path import KeyPath
from foveate.errors import BadSetting, InputError, UnreadableInput
from tests.support.oracles.setting_errors import read_error

ALIAS_EXPANSION = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False),
        st.sampled_from(
            ["no", "12:30", "2024-01-01", "<<", "=", "1_0", "0x1F", "~", "", "yes", ".inf", "a\nb"]
        ),
        # PyYAML writes NEL (U+0085) such that every reader takes it for a space.
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x85")),
    ),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abn<o1é🎉 :#", max_size=5), inner, max_size=4)
    ),
    max_leaves=15,
)


def parse(text: str, source: str = "a.yaml") -> Any:
    return parse_document(text.encode(), source).data


def parse_error(text: str, source: str = "a.yaml") -> BadSetting:
    return read_error(parse_document, text.encode(), source)


@given(data=plain.filter(lambda data: data is not None))
def test_yaml_survives_a_round_trip(data: object) -> None:
    assert parse(yaml.safe_dump(data, allow_unicode=True)) == data


@given(data=plain)
def test_json_survives_a_round_trip(data: object) -> None:
    assert parse(json.dumps(data), "a.json") == data


@given(data=st.binary(max_size=60) | st.text("-:[]{}&*!|>'\"%#?, \t\nab1~", max_size=60).map(str.encode))
def test_any_bytes_are_parsed_or_rejected(data: bytes) -> None:
    for source in ("a.yaml", "a.json", "standard input"):
        with suppress(InputError):
            parse_document(data, source)


@given(data=plain)
def test_the_line_of_every_value_is_found(data: object) -> None:
    """Compared with a text that has every key and item on its own line."""
    lines: list[str] = []
    line_by_path: dict[KeyPath, int] = {}

    def write(value: object, key_path: KeyPath, lead: str, end: str) -> None:
        lines.append("")
        line_by_path[key_path] = len(lines)
        match value:
            case list():
                lines[-1] = lead + "["
                for index, item in enumerate(value):
                    write(item, (*key_path, index), "", "," if index < len(value) - 1 else "")
                lines.append("]" + end)
            case dict():
                lines[-1] = lead + "{"
                for index, (key, item) in enumerate(value.items()):
                    write(item, (*key_path, key), json.dumps(key) + ": ", "," if index < len(value) - 1 else "")
                lines.append("}" + end)
            case _:
                # ASCII, because YAML has more line ends than JSON; no surrogate pairs.
                lines[-1] = lead + json.dumps(str(value).encode("ascii", "replace").decode()) + end

    write(data, (), "", "")
    text = "\n".join(lines).replace("\\ud83c\\udf89", "🎉")

    for source in ("a.json", "a.yaml"):
        assert parse_document(text.encode(), source).lines() == line_by_path


def test_the_line_of_a_missing_value_is_that_of_its_parent() -> None:
    for source, text in (("a.yaml", "a: 1\nb:\n  c: 2\n"), ("a.json", '{"a": 1,\n"b":\n{"c": 2}}')):
        document = parse_document(text.encode(), source)

        assert document.error("wrong", ("b", "nothing", "deeper")).line == 2
        assert document.error("wrong", ("nothing",)).line == 1


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 2024-01-01\n", {"a": "2024-01-01"}),
        ("a: yes\nb: 1_000\nc: ~\nd:\n", {"a": True, "b": 1000, "c": None, "d": None}),
        ("a: !!str 3\nb: ! 4\nc: !!int 5\n", {"a": "3", "b": "4", "c": 5}),
        ("'no': 1\n\"12\": 2\n", {"no": 1, "12": 2}),
        ("a: &x [1, 2]\nb: *x\n", {"a": [1, 2], "b": [1, 2]}),
        ("- &x 1\n- *x\n- &x 2\n- *x\n", [1, 1, 2, 2]),
        ("a: |\r\n  one\r\n  two\r\nb: 1\r\n", {"a": "one\ntwo\n", "b": 1}),
        ("😀: 🎉 é\n", {"😀": "🎉 é"}),
        ("- a\n...\n", ["a"]),
    ],
)
def test_yaml_is_read_as_people_expect(text: str, data: object) -> None:
    assert parse(text) == data


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("a: 1\n\tb: 2\n", 2, "a", "this line is indented with a tab; use spaces"),
        ("a:\n  - x\n\t- y\n", 3, "a", "this line is indented with a tab"),
        ("a: b: c", 1, "", "mapping values are not allowed"),
        ("a: 'x\nb: 2\n", 3, "a", "starts on line 1"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, "b.c", "duplicate key 'c'"),
        ("a: 1\n'a': 1\n", 2, "a", "duplicate key"),
        ("a: 1\nno: 3\n", 2, "no", "the key 'no' is read as false: put it in quotes"),
        ("on: 1\n", 1, "on", "the key 'on' is read as true: put it in quotes"),
        ("a:\n  ~: 1\n", 2, "a.~", "is read as null: put it in quotes"),
        ("12:30: 1\n", 1, "12:30", "is read as a number: put it in quotes"),
        ("? [a]\n: b\n", 1, "", "not a list or a mapping"),
        ("a: {b: 1}\nc:\n  <<: {d: 1}\n", 3, "c", "<< is not supported"),
        ("a: !!python/object:os.system x\n", 1, "a", "the tag !!python/object:os.system is not supported"),
        ("a: !!binary x\n", 1, "a", "the tag !!binary"),
        ("- !mine [1]\n", 1, "0", "the tag !mine"),
        ("a: !!set {x, y}\n", 1, "a", "the tag !!set"),
        ("a: *nobody\n", 1, "a", "the alias *nobody refers to no complete value"),
        ("a: &a [*a]\n", 1, "a.0", "the alias *a refers to no complete value before it"),
        ("a: 1\n---\nb: 2\n", 2, "", "a second YAML document starts here"),
        ("a: 1\nb: [1, 010]\n", 2, "b.1", "YAML does not read 010 as a decimal number: write it in plain"),
        ("a: !!int 010\n", 1, "a", "or in quotes if it is a string"),
        ("a: 1\nb: \x1b[31m\n", 2, "", "contains a control character"),
        ("[" * 200, 1, ".".join("0" * 100), "nested more than 100 levels deep"),
        ("[" * 100_000 + "]" * 100_000, 1, ".".join("0" * 100), "nested more than 100 levels deep"),
        ("a:\n  {" + "{" * 5000, 2, "a", "a key must be a string, not a list or a mapping"),
    ],
)
def test_yaml_errors_name_the_line(text: str, line: int, key: str, message: str) -> None:
    error = parse_error(text)

    assert (error.source, error.line, error.key) == ("a.yaml", line, key)
    assert str(error).startswith(f"a.yaml:{line}: ")
    assert message in error.reason


@pytest.mark.parametrize("base_ten", ["0", "-0", "+1_000", "10", "0.5", "00.5", "-1_0.5e+3", ".5"])
def test_decimal_numbers_are_numbers(base_ten: str) -> None:
    assert parse(f"a: {base_ten}\n") == {"a": float(base_ten)}


@pytest.mark.parametrize(
    "number",
    ["010", "-00", "0_7", "0x1F", "+0xf", "0x_", "0b1", "-0b_", "1:30", "-190:20:30", "1:30.5", "0:5.0"],
)
def test_numbers_in_other_bases_are_rejected_unless_quoted(number: str) -> None:
    assert "as a decimal number" in parse_error(f"- a: {number}\n").reason
    assert parse(f"- '{number}'\n- !!str {number}\n- {number} is a text\n") == [
        number,
        number,
        f"{number} is a text",
    ]


@pytest.mark.parametrize("number", ["010", "0x_", "12:30", "12"])
def test_numeric_keys_must_be_quoted(number: str) -> None:
    error = parse_error(f"a:\n  {number}: 1\n")

    assert (error.line, error.key) == (2, f"a.{number}")
    assert error.reason == f"the key {number!r} is read as a number: put it in quotes"


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ('{"a": 1,\n "a": 2}', 2, "a", "duplicate key 'a'"),
        ('{"a": [1, {"b": "]}",\n "b": 3}]}', 2, "a.1.b", "duplicate key"),
        ('{"a": 1,\n\t"b" 2}', 2, "", "invalid JSON: Expecting ':' delimiter (column 6)"),
        ("[1] x", 1, "", "invalid JSON: Extra data"),
        ("[\n" * 200 + "]" * 200, 102, "", "nested more than 100 levels deep"),
        ("[\n" * 100_000, 102, "", "nested more than 100 levels deep"),
        ("[" + "9" * 5000 + "]", None, "", "thousands of digits"),
    ],
)
def test_json_errors_name_the_line(text: str, line: int | None, key: str, message: str) -> None:
    error = parse_error(text, "a.json")

    assert (error.line, error.key) == (line, key)
    assert message in error.reason


def test_data_without_a_suffix_may_be_json_or_yaml() -> None:
    assert parse('["\\ud83d\\ude00", 1e3]', "standard input") == ["😀", 1000.0]
    assert parse("{a: [b]}", "standard input") == {"a": ["b"]}
    assert parse("- a", "standard input") == ["a"]
    assert (
        "invalid JSON: Expecting value (column 17)"
        in parse_error('["\\ud83d\\ude00",}', "standard input").reason
    )


def test_json_may_contain_lone_surrogates() -> None:
    assert parse('["\\ud83d"]', "a.json") == ["\ud83d"]
    assert math.isnan(parse("[NaN]", "a.json")[0])


def test_an_error_about_a_lone_surrogate_can_be_printed() -> None:
    error = parse_error('{"\\ud83d": 1, "\\ud83d": 2}', "a.json")

    assert error.key == "?"
    str(error).encode()


def test_aliases_cannot_expand_to_gigabytes() -> None:
    started = process_time()
    error = parse_error(ALIAS_EXPANSION)

    assert process_time() - started < 15
    assert "expand to too much data" in error.reason
    assert error.line == 6


def test_aliases_cannot_multiply_a_long_text() -> None:
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 11)}]\n"

    assert parse_error(text).key == "b.9"


def test_an_alias_may_double_a_long_file() -> None:
    text = "a: &a " + "x" * 3_000_000 + "\nb: *a\n"

    assert len(parse(text)["b"]) == 3_000_000


def test_a_line_of_a_megabyte_is_read() -> None:
    long = "word and 😀 " * 100_000

    assert parse(f'- "{long}"\n- {"7" * 1_000_000}\n') == [long, "7" * 1_000_000]


def test_an_error_about_a_long_key_is_short() -> None:
    key = "k" * 100_000

    for error in (
        parse_error(f'{{"{key}": 1, "{key}": 2}}', "a.json"),
        parse_error(f"? {key}\n: 1\n? {key}\n: 1\n"),
    ):
        assert len(str(error)) < 1000
        assert len(error.key) < 1000


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b" \r\n ", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"a: \xff\n", "is not UTF-8 (byte 3)"),
        ("ä: 1".encode("latin-1"), "is not UTF-8 (byte 0)"),
        (b"\xef\xbb\xbfa: 1\n", "starts with a byte order mark: save it as UTF-8 without one"),
        ("a: 1".encode("utf-16"), "is UTF-16: save it as UTF-8"),
        (b"\x7fELF\0\0", "is binary, not text"),
    ],
)
def test_data_that_is_not_text_is_described_in_the_error(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(data)

    with pytest.raises(UnreadableInput) as caught:
        read_document(path)
    assert str(caught.value) == f"{path}: {reason}"


def test_a_path_that_is_not_a_file_is_described_in_the_error(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "nothing.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "a\0b", "null byte"),
    ):
        with pytest.raises(UnreadableInput, match=reason):
            read_document(path)


def test_settings_and_other_files_have_different_size_limits(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("a: " + "x" * 1_000_000, encoding="utf-8")

    with pytest.raises(UnreadableInput, match="is larger than 1,000,000 bytes"):
        read_document(path)
    assert read_document(path, limit_bytes=1_000_003).data == {"a": "x" * 1_000_000}


def test_an_endless_file_is_read_up_to_the_limit() -> None:
    for limit_bytes in (10, 16_000_000, 40_000_000):
        with pytest.raises(UnreadableInput, match=f"/dev/zero: is larger than {limit_bytes:,} bytes"):
            read_document(Path("/dev/zero"), limit_bytes=limit_bytes)


def test_a_file_of_several_chunks_is_read_completely(tmp_path: Path) -> None:
    path = tmp_path / "long"
    data = b"0123456789abcdef" * 2_500_000
    path.write_bytes(data)

    assert read_bytes(path, limit_bytes=len(data)) == data
