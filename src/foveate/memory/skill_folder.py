"""The skills folder: a skill is a file in it, or a folder with a `SKILL.md`; nothing outside is ever read."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from foveate.errors import BadOption, UnreadableInput
from foveate.memory.gate import Gate
from foveate.memory.parsing import parse
from foveate.memory.paths import StrPath
from foveate.memory.skills import Capabilities, Skill, capabilities, is_name, skill_of

_SUFFIXES = (".md", ".markdown", ".org")
_IN_FOLDER = "skill"
_NO_SKILL = "readme"
_LARGEST_BYTES = 10_000_000


def read_capabilities(folder: StrPath, gate: Gate) -> Capabilities:
    """The skills in `folder`: `name.md`, `name.org`, or `name/SKILL.md` with whatever else it needs beside it.

    A README is none, nor is what begins with a dot. What is private is not there. What cannot be read is left
    out with a warning, and so is what a link leads to outside of the folder; a folder that cannot be read gives
    no skills and a warning.
    """
    try:
        return _read(folder, gate).capabilities
    except UnreadableInput as error:
        return Capabilities(warnings=(str(error),))


def skill_source(folder: StrPath, name: str, gate: Gate) -> str:
    """The text of the skill called `name`, in any case, without what is private in it.

    It is looked for among the skills that there are, so no name leads to anywhere else.

    Raises:
        BadOption: there is no such skill, or only a private one; says which there are.
        UnreadableInput: the folder cannot be read.
    """
    found = _read(folder, gate)
    skill = found.capabilities.named(name)
    if skill is None:
        if not is_name(name):
            raise BadOption(f"a skill is asked for by its name, which {name!r:.60} cannot be", path=("skill",))
        known = ", ".join(skill.name for skill in found.capabilities.skills) or "none"
        raise BadOption(f"there is no skill {name!r}; there are: {known}", path=("skill",))
    return found.texts[skill.key]


@dataclass(frozen=True, slots=True)
class _Found:
    capabilities: Capabilities
    texts: dict[str, str]
    """By key."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A file that describes a skill: its real path, its path in the skills folder, how it is called there."""

    path: Path
    key: str
    name: str


def _read(folder: StrPath, gate: Gate) -> _Found:
    warnings: list[str] = []
    skills: list[Skill] = []
    texts: dict[str, str] = {}
    root = _resolved(Path(folder), str(folder))
    for name in _names(root, str(folder)):
        try:
            place = _place(root, name)
            if place is None:
                continue
            text = _text(place)
        except UnreadableInput as error:
            warnings.append(str(error))
            continue
        outline = gate.admitted(parse(text, gate, path=place.key))
        if outline.entries:
            skill, said = skill_of(outline, key=place.key, file_name=place.name)
            skills.append(skill)
            texts[place.key] = outline.text
            warnings += said
    return _Found(capabilities(skills, warnings), texts)


def _place(root: Path, name: str) -> _Place | None:
    """The skill that something in the folder is, or None where it is not meant to be one.

    Raises:
        UnreadableInput: it is meant to be one and cannot.
    """
    at, called = root / name, Path(name).stem
    if at.is_dir():
        inside = [each for each in _names(_inside(root, at, name), name) if _describes(each)]
        if not inside:
            raise UnreadableInput(name, "a folder without a SKILL.md is no skill")
        at, called, name = at / inside[0], name, f"{name}/{inside[0]}"
    elif at.suffix.lower() not in _SUFFIXES or called.lower() == _NO_SKILL:
        return None
    if not is_name(called):
        raise UnreadableInput(f"{name!r:.200}", "a skill cannot be called so; give the file another name")
    return _Place(_inside(root, at, name), name, called)


def _describes(file_name: str) -> bool:
    path = Path(file_name)
    return path.stem.lower() == _IN_FOLDER and path.suffix.lower() in _SUFFIXES


def _inside(root: Path, at: Path, name: str) -> Path:
    """Where it really is, which has to be inside of `root`."""
    real = _resolved(at, name)
    if not real.is_relative_to(root):
        raise UnreadableInput(name, "leads out of the skills folder, so it is not read")
    return real


def _resolved(path: Path, name: str) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # the latter before Python 3.13
        raise UnreadableInput(name, "leads in a circle") from None
    except ValueError:
        raise UnreadableInput(repr(name), "nothing can have this name") from None


def _names(folder: Path, name: str) -> list[str]:
    """What is in a folder and not hidden, in an order that is the same everywhere."""
    try:
        return sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise UnreadableInput(name, error.strerror or str(error)) from None


def _text(place: _Place) -> str:
    try:
        # Not to wait for whoever writes into a pipe, nor to follow what has become a link meanwhile.
        opened = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(opened, "rb") as file:  # noqa: PTH123  # of a descriptor
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise UnreadableInput(place.key, "this is no file")
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise UnreadableInput(place.key, error.strerror or str(error)) from None
    if len(data) > _LARGEST_BYTES:
        raise UnreadableInput(place.key, f"more than {_LARGEST_BYTES:,} bytes are too many for a skill")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnreadableInput(place.key, f"not UTF-8 at byte {error.start}") from None
