"""Ladders: what is cut, in which order, when a prompt does not fit. They are data, the built-in ones too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from foveate.errors import BadOption

LOWEST = "lowest"


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut sections as far as it takes, to nothing if need be; without names, the lowest priority first."""

    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Leave whole sections out; without names, the lowest priority first."""

    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LastLines:
    """Keep the newest `lines` of the named sections."""

    sections: tuple[str, ...]
    lines: int


@dataclass(frozen=True, slots=True)
class Replace:
    """Put a line in the place of the named sections; `{items}` in it becomes how many items went."""

    sections: tuple[str, ...]
    text: str


Rung = Truncate | Drop | LastLines | Replace


@dataclass(frozen=True, slots=True)
class Ladder:
    """An ordered list of cuts, climbed until the prompt fits."""

    name: str
    rungs: tuple[Rung, ...]


LadderLike = str | Ladder | Sequence[Rung | Mapping[str, object]]
"""Wherever a ladder is asked for: its name, itself, or its rungs, each as a value or as it stands in YAML."""

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
"""The name of a ladder that was written as a list of rungs."""


def parse_ladder(value: object) -> Ladder:
    """The ladder that a name or a list of rungs means.

    A rung is written as in YAML: `{truncate: lowest}`, `{drop: [mandates]}`, `{last_lines: 5, of: logs}`,
    `{replace: context, with: "[Context trimmed: {items} items]"}`. Names are globs, whatever their case.

    Raises:
        BadOption: neither, with the number of the rung that is wrong.
    """
    match value:
        case Ladder():
            return value
        case str() if value in BUILT_IN_LADDERS:
            return BUILT_IN_LADDERS[value]
        case str():
            raise BadOption(
                f"there is no ladder {value!r}; choose one of {', '.join(BUILT_IN_LADDERS)}, or list its rungs"
            )
        case Sequence() if value:
            return Ladder(
                CUSTOM_LADDER_NAME,
                tuple(_parse_rung(number, rung) for number, rung in enumerate(value, start=1)),
            )
        case _:
            raise BadOption(f"a ladder is a name or a list of rungs, not {value!r}")


def rung_as_data(rung: Rung) -> dict[str, object]:
    """A rung as it is written in YAML; `ladder_from` reads it back."""
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
    """What a rung is called in reports: by its ladder's name, and where that has several, by what it does."""
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
    """Whether a rung means the section of that name."""
    return any(name_matches(pattern, section) for pattern in rung.sections)


def name_matches(pattern: str, section: str) -> bool:
    """Whether a name in a ladder means the section of that name; it is a glob, whatever its case."""
    return fnmatchcase(section.casefold(), pattern.casefold())


def _parse_rung(number: int, value: object) -> Rung:
    what = f"rung {number} of the ladder"
    match value:
        case Truncate() | Drop() | LastLines() | Replace():
            return value
        case {"truncate": str() | Sequence() as sections, **rest} if not rest:
            return Truncate(_parse_section_names(sections, what, lowest=True))
        case {"drop": str() | Sequence() as sections, **rest} if not rest:
            return Drop(_parse_section_names(sections, what, lowest=True))
        case {"last_lines": int(lines), "of": str() | Sequence() as sections, **rest} if not rest:
            if isinstance(lines, bool) or lines < 1:
                raise BadOption(f"{what}: last_lines is a number of lines, 1 or more, not {lines!r}")
            return LastLines(_parse_section_names(sections, what), lines)
        case {"replace": str() | Sequence() as sections, "with": str(text), **rest} if not rest:
            return Replace(_parse_section_names(sections, what), text)
        case Mapping() | str():
            raise BadOption(
                f"{what} is not one of truncate: SECTIONS, drop: SECTIONS, last_lines: N with of: SECTIONS, "
                f"replace: SECTIONS with with: TEXT; it is {value!r}"
            )
        case _:
            raise BadOption(f"{what} is a mapping such as {{drop: lowest}}, not {value!r}")


def _parse_section_names(value: str | Sequence[object], what: str, *, lowest: bool = False) -> tuple[str, ...]:
    if lowest and value == LOWEST:
        return ()
    names = (value,) if isinstance(value, str) else tuple(value)
    if LOWEST in names:
        raise BadOption(f"{what}: lowest stands alone, and only for truncate and drop, not {value!r}")
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadOption(f"{what}: name at least one section, not {value!r}")
    return tuple(map(str, names))
