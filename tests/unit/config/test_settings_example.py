"""The documented example has every setting with its default."""

import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from foveate.config.cost_settings import CAP_KEYS, PRICE_KEYS, parse_cost
from foveate.config.document import parse_document
from foveate.config.load import parse_settings
from foveate.config.settings import Settings

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "foveate.yaml"


def find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from find_models(argument)


def list_fields(
    model: type[BaseModel], key_path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return every setting and its default, including those within lists and mappings."""
    for name, field in model.model_fields.items():
        path = (*key_path, name)
        nested = list(find_models(field.annotation))
        if not nested:
            yield path, field.default
        for item in nested:
            yield from list_fields(item, path)


FIELDS = dict(list_fields(Settings))
COST = {("cost", "caps", key) for key in CAP_KEYS} | {("cost", "prices", key) for key in PRICE_KEYS}
TIERS = {("cost", "prices", "tiers", "over_tokens")}
# Budgets and `cost` are documented elsewhere.
LEAVES = {key_path for key_path in FIELDS if key_path != ("cost",)} | COST

NAMED = ("agents", "upstreams", "routes", "cost")
PLAIN = sorted(
    key_path
    for key_path, default in FIELDS.items()
    if key_path[0] not in NAMED and isinstance(default, bool | int | float | str)
)


def values_at(data: Any, key_path: tuple[str, ...]) -> list[Any]:
    """Return all values at a key path, in every list item and under every name."""
    values = [data]
    for step in key_path:
        nested: list[Any] = []
        for item in values:
            entries = item if isinstance(item, list) else [item]
            for entry in entries:
                if isinstance(entry, dict):
                    mappings = [value for value in entry.values() if isinstance(value, dict) and step in value]
                    nested += [entry[step]] if step in entry else [value[step] for value in mappings]
        values = nested
    return values


@pytest.fixture(scope="module")
def example() -> bytes:
    return EXAMPLE.read_bytes()


@pytest.fixture(scope="module")
def full_example(example: bytes) -> bytes:
    """Return the example with all commented settings enabled."""
    return uncomment(example)


def uncomment(data: bytes) -> bytes:
    """A commented setting has no space or two after its #, prose has one."""
    return re.sub(rb"^( *)#(?! \S)", rb"\1", data, flags=re.MULTILINE)


def test_the_example_file_equals_the_defaults(example: bytes) -> None:
    assert parse_settings(example, "foveate.yaml") == Settings()


def test_all_commented_settings_are_valid(full_example: bytes) -> None:
    settings = parse_settings(full_example, "foveate.yaml")

    assert [agent.id for agent in settings.agents] == ["ana"]
    assert settings.server.tls is not None
    cost = parse_cost(full_example, "foveate.yaml")
    assert cost.caps
    assert len(cost.prices) == 2


@pytest.mark.parametrize("key_path", sorted(LEAVES | TIERS), ids=".".join)
def test_every_setting_is_in_the_example_file(key_path: tuple[str, ...], full_example: bytes) -> None:
    assert values_at(parse_document(full_example, "foveate.yaml").data, key_path), (
        f"examples/foveate.yaml lacks {'.'.join(key_path)}"
    )


@pytest.mark.parametrize("key_path", PLAIN, ids=".".join)
def test_the_example_file_has_the_right_defaults(key_path: tuple[str, ...], example: bytes) -> None:
    assert values_at(parse_document(example, "foveate.yaml").data, key_path) == [FIELDS[key_path]]
