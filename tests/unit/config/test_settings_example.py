"""The documented example has every setting with its default."""

import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from foveate.config.cost import CAP_KEYS, PRICE_KEYS, parse_cost
from foveate.config.document import parse_document
from foveate.config.load import parse_settings
from foveate.config.settings import Settings

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "foveate.yaml"


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from models_in(argument)


def fields(model: type[BaseModel], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return every setting and its default, including those within lists and mappings."""
    for name, field in model.model_fields.items():
        here = (*place, name)
        below = list(models_in(field.annotation))
        if not below:
            yield here, field.default
        for one in below:
            yield from fields(one, here)


FIELDS = dict(fields(Settings))
COST = {("cost", "caps", key) for key in CAP_KEYS} | {("cost", "prices", key) for key in PRICE_KEYS}
TIERS = {("cost", "prices", "tiers", "over_tokens")}
# Budgets and `cost` are documented elsewhere.
LEAVES = {place for place in FIELDS if place != ("cost",)} | COST

NAMED = ("agents", "upstreams", "routes", "cost")
PLAIN = sorted(
    place
    for place, default in FIELDS.items()
    if place[0] not in NAMED and isinstance(default, bool | int | float | str)
)


def said_at(data: Any, place: tuple[str, ...]) -> list[Any]:
    """Return all values at a key path, in every list item and under every name."""
    found = [data]
    for step in place:
        below: list[Any] = []
        for one in found:
            entries = one if isinstance(one, list) else [one]
            for entry in entries:
                if isinstance(entry, dict):
                    named = [value for value in entry.values() if isinstance(value, dict) and step in value]
                    below += [entry[step]] if step in entry else [value[step] for value in named]
        found = below
    return found


@pytest.fixture(scope="module")
def plain() -> bytes:
    return EXAMPLE.read_bytes()


@pytest.fixture(scope="module")
def whole(plain: bytes) -> bytes:
    """Return the example with all commented settings enabled."""
    return uncommented(plain)


def uncommented(data: bytes) -> bytes:
    """A commented setting has no space or two after its #, prose has one."""
    return re.sub(rb"^( *)#(?! \S)", rb"\1", data, flags=re.MULTILINE)


def test_the_example_file_equals_the_defaults(plain: bytes) -> None:
    assert parse_settings(plain, "foveate.yaml") == Settings()


def test_all_commented_settings_are_valid(whole: bytes) -> None:
    settings = parse_settings(whole, "foveate.yaml")

    assert [agent.id for agent in settings.agents] == ["ana"]
    assert settings.server.tls is not None
    cost = parse_cost(whole, "foveate.yaml")
    assert cost.caps
    assert len(cost.prices) == 2


@pytest.mark.parametrize("place", sorted(LEAVES | TIERS), ids=".".join)
def test_every_setting_is_in_the_example_file(place: tuple[str, ...], whole: bytes) -> None:
    assert said_at(parse_document(whole, "foveate.yaml").data, place), (
        f"examples/foveate.yaml lacks {'.'.join(place)}"
    )


@pytest.mark.parametrize("place", PLAIN, ids=".".join)
def test_the_example_file_has_the_right_defaults(place: tuple[str, ...], plain: bytes) -> None:
    assert said_at(parse_document(plain, "foveate.yaml").data, place) == [FIELDS[place]]
