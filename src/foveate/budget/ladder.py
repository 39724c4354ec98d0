"""Ladders: what is cut, and in which order, if a prompt does not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from foveate.errors import BadOption

LOWEST = "lowest"


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate sections as far as needed, even to nothing. Without names, the lowest priority first."""

    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop whole sections. Without names, the lowest priority first."""

    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LastLines:
    """Keep the newest `lines` of the named sections."""

    sections: tuple[str, ...]
    lines: int


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the named sections by a line. `{items}` in it becomes the number of items removed."""

    sections: tuple[str, ...]
    text: str


Rung = Truncate | Drop | LastLines | Replace


@dataclass(frozen=True, slots=True)
class Ladder:
    """An ordered list of cuts that are applied until the prompt fits."""

    name: str
    rungs: tuple[Rung, ...]


LadderName = Literal["truncate_low_priority", "drop_low_priority", "progressive"]
LadderLike = LadderName | Ladder | Sequence[Rung | Mapping[str, object]]
"""A ladder as arguments accept it: its name, a `Ladder`, or its rungs as values or as in YAML."""

TRUNCATE_LOW_PRIORITY = Ladder("truncate_low_priority", (Truncate(),))
DROP_LOW_PRIORITY = Ladder("drop_low_priority", (Drop(),))
PROGRESSIVE = Ladder(
    "progressive",
    (
        LastLines(("logs", "log", "*_logs", "*_log"), 5),
        Drop(("mandates", "mandate", "*_mandates")),
        Replace(("context", "*_context"), "[Context trimmed: {items} items]"),
    ),
)
BUILT_IN_LADDERS = {ladder.name: ladder for ladder in (TRUNCATE_LOW_PRIORITY, DROP_LOW_PRIORITY, PROGRESSIVE)}

CUSTOM_LADDER_NAME = "own"
"""Name of a ladder that is given as a list of rungs."""


def parse_ladder(value: object) -> Ladder:
    """Return the ladder for a name or a list of rungs.

    Rungs are written as in YAML: `{truncate: lowest}`, `{drop: [mandates]}`, `{last_lines: 5, of: logs}`,
    `{replace: context, with: "[Context trimmed: {items} items]"}`. Names are case-insensitive globs.

    Raises:
        BadOption: neither; the message has the number of the wrong rung.
    """
    match value:
        case Ladder():
            return value
        case str() if value in BUILT_IN_LADDERS:
            return BUILT_IN_LADDERS[value]
        case str():
            raise BadOption(
                f"no ladder is named {value!r}; choose one of {', '.join(BUILT_IN_LADDERS)}, or list its rungs"
            )
        case Sequence() if value:
            return Ladder(
                CUSTOM_LADDER_NAME,
                tuple(_parse_rung(number, rung) for number, rung in enumerate(value, start=1)),
            )
        case _:
            raise BadOption(f"a ladder must be a name or a list of rungs, not {value!r}")


def rung_as_data(rung: Rung) -> dict[str, object]:
    """Return a rung as it is written in YAML. `parse_ladder` accepts it."""
    match rung:
        case Truncate(sections):
            return {"truncate": list(sections) or LOWEST}
        case Drop(sections):
            return {"drop": list(sections) or LOWEST}
        case LastLines(sections, lines):
            return {"last_lines": lines, "of": list(sections)}
        case Replace(sections, text):
            return {"replace": list(sections), "with": text}


def rung_label(ladder: Ladder, rung: Rung) -> str:
    """Label of a rung in reports: the ladder's name, and if it has several rungs, what this one does."""
    if len(ladder.rungs) == 1 and ladder.name in BUILT_IN_LADDERS:
        return ladder.name
    return f"{ladder.name}: {_describe_rung(rung)}"


def _describe_rung(rung: Rung) -> str:
    match rung:
        case Truncate(sections):
            return f"truncate {', '.join(sections[:1]) or LOWEST}"
        case Drop(sections):
            return f"drop {', '.join(sections[:1]) or LOWEST}"
        case LastLines(sections, lines):
            return f"last {lines} lines of {sections[0]}"
        case Replace(sections, _):
            return f"replace {sections[0]}"


def rung_matches(rung: Rung, section: str) -> bool:
    return any(name_matches(pattern, section) for pattern in rung.sections)


def name_matches(pattern: str, section: str) -> bool:
    """`pattern` is a case-insensitive glob."""
    return fnmatchcase(section.casefold(), pattern.casefold())


def _parse_rung(number: int, value: Any) -> Rung:
    rung_name = f"rung {number} of the ladder"
    match value:
        case Truncate() | Drop() | LastLines() | Replace():
            return value
        case {"truncate": str() | Sequence() as sections, **rest} if not rest:
            return Truncate(_parse_section_names(sections, rung_name, lowest=True))
        case {"drop": str() | Sequence() as sections, **rest} if not rest:
            return Drop(_parse_section_names(sections, rung_name, lowest=True))
        case {"last_lines": int(lines), "of": str() | Sequence() as sections, **rest} if not rest:
            if isinstance(lines, bool) or lines < 1:
                raise BadOption(f"{rung_name}: last_lines must be a number of lines, 1 or more, not {lines!r}")
            return LastLines(_parse_section_names(sections, rung_name), lines)
        case {"replace": str() | Sequence() as sections, "with": str(text), **rest} if not rest:
            return Replace(_parse_section_names(sections, rung_name), text)
        case Mapping() | str():
            raise BadOption(
                f"{rung_name} must be {{truncate: SECTIONS}}, {{drop: SECTIONS}}, "
                f"{{last_lines: N, of: SECTIONS}} or {{replace: SECTIONS, with: TEXT}}, not {value!r}"
            )
        case _:
            raise BadOption(f"{rung_name} must be a mapping such as {{drop: lowest}}, not {value!r}")


def _parse_section_names(
    value: str | Sequence[object], rung_name: str, *, lowest: bool = False
) -> tuple[str, ...]:
    if lowest and value == LOWEST:
        return ()
    names = (value,) if isinstance(value, str) else tuple(value)
    if LOWEST in names:
        raise BadOption(
            f"{rung_name}: lowest is only valid alone, and only for truncate and drop, not {value!r}"
        )
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadOption(f"{rung_name}: name at least one section, not {value!r}")
    return tuple(map(str, names))
