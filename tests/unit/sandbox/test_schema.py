"""Schema tables and the validator."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from foveate.sandbox import schema
from foveate.sandbox.schema import RequestSchemas, Violation

TABLES = sorted(Path(schema.__file__).parent.glob("schemas/*.toml"))

SMALL_TABLE: dict[str, dict[str, Any]] = {
    "box": {"name": "string!", "size": "number 1..9", "tags": "[= red blue] 1..2", "lid": "string / @lid"},
    "lid": {"default": "flat", "flat": {"*": "any"}, "round high": {"width": "integer!"}},
    "big_box": {"...": "box", "name": "string", "floor": "@lid: round"},
}


def find_errors(name: str, body: dict[str, Any]) -> list[tuple[str, Violation]]:
    """Return the errors by the table above."""
    errors = RequestSchemas(SMALL_TABLE).find_errors(name, body)
    return [
        (".".join(str(step) for step in error.path if not isinstance(step, schema.TypeTag)), error.violation)
        for error in errors
    ]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_schema_table_is_valid_and_has_no_dangling_references(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    table = tomllib.loads(text)
    RequestSchemas(table)

    referenced = set(re.findall(r"@(\w+)", text)) | set(re.findall(r'"\.\.\." = "(\w+)"', text))
    assert len(TABLES) == 4
    assert referenced - table.keys() == set()
    assert table.keys() - referenced == {"request"}, "a schema that nothing refers to"
    tags = re.findall(r"@(\w+): ([\w ]+)\]", text)
    for name, tag_names in tags:
        defined_tags = {tag for names in table[name] for tag in names.split()}
        assert set(tag_names.split()) <= defined_tags


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("box", {"name": "a", "size": 9, "tags": ["red"], "lid": "x"}, []),
        ("box", {"name": "a", "size": None, "lid": {"any": "thing"}}, []),
        ("box", {}, [("name", Violation.MISSING)]),
        ("box", {"name": None}, [("name", Violation.TYPE)]),
        ("box", {"name": "a", "size": True}, [("size", Violation.TYPE)]),
        ("box", {"name": "a", "size": 0.5}, [("size", Violation.LOW)]),
        ("box", {"name": "a", "size": 9.5}, [("size", Violation.HIGH)]),
        ("box", {"name": "a", "tags": []}, [("tags", Violation.SHORT)]),
        ("box", {"name": "a", "tags": ["red"] * 3}, [("tags", Violation.LONG)]),
        ("box", {"name": "a", "tags": ["red", "tin"]}, [("tags.1", Violation.VALUE)]),
        ("box", {"name": "a", "lid": 5}, [("lid", Violation.TYPE)]),
        ("box", {"name": "a", "lid": {"type": "square"}}, [("lid", Violation.TAG)]),
        ("box", {"name": "a", "lid": {"type": ["round"]}}, [("lid", Violation.TAG)]),
        ("box", {"name": "a", "lid": {"type": "high"}}, [("lid.width", Violation.MISSING)]),
        (
            "box",
            {"b": 1, "name": 5, "a": 2},
            [("name", Violation.TYPE), ("b", Violation.UNKNOWN), ("a", Violation.UNKNOWN)],
        ),
        ("big_box", {"size": 0}, [("size", Violation.LOW)]),
        ("big_box", {"floor": {"type": "high", "width": 1}}, [("floor", Violation.TAG)]),
    ],
)
def test_schema_errors_name_their_path(
    name: str, body: dict[str, Any], expected: list[tuple[str, Violation]]
) -> None:
    assert find_errors(name, body) == expected
