"""Skills: what an agent can do, by name; the most important first, each with what it needs.

The skills folder: a skill is a file in it, or a folder with a `SKILL.md`; nothing outside is ever read.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from math import isfinite
from pathlib import Path

from foveate.errors import BadOption, UnreadableInput
from foveate.memory.parsing.parse import parse_notes
from foveate.memory.privacy import Gate, PublicOutline
from foveate.paths import StrPath

NO_SKILLS = "No skills available."

_SKILL_PROPERTIES = ("NAME", "DESCRIPTION", "PRIORITY", "DEPENDS", "DEPENDENCIES")
_PRIORITY_WORDS = {"high": 1.0, "medium": 0.0, "low": -1.0}
_PRIORITY_LETTER = re.compile(r"(?:\[#)?([A-Z])\]?", re.IGNORECASE)
_MAX_NAME_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill as its file describes it, and where in the skills folder that is (`key`, with `/`).

    The larger `priority` comes first; none is 0. The letters of Org are on the same scale, A being 1, B 0 as is
    usual in Org, C -1 and so on, and the words high, medium and low are as A, B and C.
    """

    name: str
    key: str
    description: str = ""
    priority: float = 0.0
    depends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The skills that there are, in order, and in words what is wrong with them.

    `missing` are the names of those that others need and that are not there.
    """

    skills: tuple[Skill, ...] = ()
    missing: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    def find_skill(self, name: str) -> Skill | None:
        """The skill of that name, whatever its case."""
        return next((skill for skill in self.skills if skill.name.casefold() == name.casefold()), None)

    @property
    def text(self) -> str:
        """A line for each skill: its name, what it does, what it needs."""
        return "\n".join(map(self._line, self.skills)) or NO_SKILLS

    def _line(self, skill: Skill) -> str:
        head = f"Skill {skill.name}: {skill.description}" if skill.description else f"Skill {skill.name}"
        needs = [f"{name} [missing]" if name in self.missing else name for name in skill.depends]
        return f"{head} (needs {', '.join(needs)})" if needs else head


def parse_skill(outline: PublicOutline, *, key: str, file_name: str) -> tuple[Skill, tuple[str, ...]]:
    """The skill that a file describes, and in words what in it could not be read.

    What it says of itself stands in its front matter or the properties of the file, or else in those of its
    first heading. A skill that does not say its name is called as its file.
    """
    properties = {name: _find_property(outline, name) for name in _SKILL_PROPERTIES}
    warnings = [f"{key}: {problem}" for problem in outline.problems]
    name = properties["NAME"] or file_name
    if not is_valid_name(name):
        warnings.append(f"{key}: a skill cannot be called {name!r:.60}; it is called {file_name} instead")
        name = file_name
    written = properties["PRIORITY"] or next(
        filter(None, (entry.priority for entry in outline.entries[:2])), ""
    )
    priority = _parse_priority(written)
    if priority is None:
        warnings.append(f"{key}: a priority is a number, a letter, high, medium or low, not {written!r:.60}")
    depends = _split_names(properties["DEPENDS"] or properties["DEPENDENCIES"])
    skill = Skill(
        name=name, key=key, description=properties["DESCRIPTION"], priority=priority or 0.0, depends=depends
    )
    return skill, tuple(warnings)


def is_valid_name(name: str) -> bool:
    """Whether a skill can be called so: a short text on one line that could not be taken for a path."""
    fits = 0 < len(name) <= _MAX_NAME_CHARS and name.isprintable() and name == name.strip()
    return fits and not name.startswith(".") and not {"/", "\\"} & set(name)


def build_capabilities(skills: Iterable[Skill], warnings: Iterable[str] = ()) -> Capabilities:
    """The skills by priority, then by name; with the dependencies that are not there or lead in a circle told.

    Of two that are called the same, whatever their case, the first is meant.
    """
    all_warnings = list(warnings)
    known: dict[str, Skill] = {}
    for skill in skills:
        first = known.setdefault(skill.name.casefold(), skill)
        if first is not skill:
            all_warnings.append(
                f"{skill.key}: {first.key} is called {first.name} already, so this one is left out"
            )
    resolved = sorted(
        (_resolve_dependencies(skill, known) for skill in known.values()),
        key=lambda skill: (-skill.priority, skill.name.casefold()),
    )
    missing = set()
    for skill in resolved:
        for name in skill.depends:
            if name.casefold() not in known:
                missing.add(name)
                all_warnings.append(f"{skill.key}: {skill.name} needs {name}, and there is no such skill")
    all_warnings += [f"skills that need each other: {' > '.join(circle)}" for circle in _find_cycles(resolved)]
    return Capabilities(skills=tuple(resolved), missing=frozenset(missing), warnings=tuple(all_warnings))


def _find_property(outline: PublicOutline, name: str) -> str:
    """A property of the file or, where it has none of that name, of its first heading; on one line."""
    values = (entry.properties.get(name, "").split() for entry in outline.entries[:2])
    return " ".join(next(filter(None, values), ()))


def _parse_priority(written: str) -> float | None:
    """The number that is meant; None where that cannot be said."""
    if not written:
        return 0.0
    if (word := written.lower()) in _PRIORITY_WORDS:
        return _PRIORITY_WORDS[word]
    if letter := _PRIORITY_LETTER.fullmatch(written):
        return float(ord("B") - ord(letter[1].upper()))
    try:
        number = float(written.removeprefix("[#").removesuffix("]"))
    except ValueError:
        return None
    return number if isfinite(number) else None


def _split_names(text: str) -> tuple[str, ...]:
    """Names between commas; where there are none, the whole, which `_linked` may take apart."""
    names = (name.strip(" []\"'") for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _resolve_dependencies(skill: Skill, known: dict[str, Skill]) -> Skill:
    """The skill with its dependencies called as they call themselves, and those between blanks taken apart."""
    wanted = list(skill.depends)
    if len(wanted) == 1 and wanted[0].casefold() not in known:
        wanted = wanted[0].split()
    found = (known.get(name.casefold()) for name in wanted)
    names = (there.name if there else name for there, name in zip(found, wanted, strict=True))
    return replace(skill, depends=tuple(dict.fromkeys(names)))


def _find_cycles(skills: Iterable[Skill]) -> Iterator[list[str]]:
    """Dependencies that lead back to where they began, until there are none left without these."""
    needs = {skill.name: list(skill.depends) for skill in skills}
    while True:
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            cycle: list[str] = list(reversed(error.args[1]))
            yield cycle
            needs[cycle[0]].remove(cycle[1])
        else:
            return


_SKILL_SUFFIXES = (".md", ".markdown", ".org")
_SKILL_FILE_STEM = "skill"
_README_STEM = "readme"
_MAX_SKILL_BYTES = 10_000_000


def read_capabilities(folder: StrPath, gate: Gate) -> Capabilities:
    """The skills in `folder`: `name.md`, `name.org`, or `name/SKILL.md` with whatever else it needs beside it.

    A README is none, nor is what begins with a dot. What is private is not there. What cannot be read is left
    out with a warning, and so is what a link leads to outside of the folder; a folder that cannot be read gives
    no skills and a warning.
    """
    try:
        return _read_folder(folder, gate).capabilities
    except UnreadableInput as error:
        return Capabilities(warnings=(str(error),))


def read_skill(folder: StrPath, name: str, gate: Gate) -> str:
    """The text of the skill called `name`, in any case, without what is private in it.

    It is looked for among the skills that there are, so no name leads to anywhere else.

    Raises:
        BadOption: there is no such skill, or only a private one; says which there are.
        UnreadableInput: the folder cannot be read.
    """
    contents = _read_folder(folder, gate)
    skill = contents.capabilities.find_skill(name)
    if skill is None:
        if not is_valid_name(name):
            raise BadOption(f"a skill is asked for by its name, which {name!r:.60} cannot be", path=("skill",))
        known = ", ".join(skill.name for skill in contents.capabilities.skills) or "none"
        raise BadOption(f"there is no skill {name!r}; there are: {known}", path=("skill",))
    return contents.texts[skill.key]


@dataclass(frozen=True, slots=True)
class _FolderContents:
    capabilities: Capabilities
    texts: dict[str, str]
    """By key."""


@dataclass(frozen=True, slots=True)
class _SkillFile:
    """A file that describes a skill: its real path, its path in the skills folder, how it is called there."""

    path: Path
    key: str
    name: str


def _read_folder(folder: StrPath, gate: Gate) -> _FolderContents:
    warnings: list[str] = []
    skills: list[Skill] = []
    texts: dict[str, str] = {}
    root = _resolve(Path(folder), str(folder))
    for name in _list_names(root, str(folder)):
        try:
            skill_file = _find_skill_file(root, name)
            if skill_file is None:
                continue
            text = _read_text(skill_file)
        except UnreadableInput as error:
            warnings.append(str(error))
            continue
        outline = gate.redact(parse_notes(text, gate, path=skill_file.key))
        if outline.entries:
            skill, skill_warnings = parse_skill(outline, key=skill_file.key, file_name=skill_file.name)
            skills.append(skill)
            texts[skill_file.key] = outline.text
            warnings += skill_warnings
    return _FolderContents(build_capabilities(skills, warnings), texts)


def _find_skill_file(root: Path, name: str) -> _SkillFile | None:
    """The skill that something in the folder is, or None where it is not meant to be one.

    Raises:
        UnreadableInput: it is meant to be one and cannot.
    """
    at, skill_name = root / name, Path(name).stem
    if at.is_dir():
        inside = [each for each in _list_names(_resolve_inside(root, at, name), name) if _is_skill_file(each)]
        if not inside:
            raise UnreadableInput(name, "a folder without a SKILL.md is no skill")
        at, skill_name, name = at / inside[0], name, f"{name}/{inside[0]}"
    elif at.suffix.lower() not in _SKILL_SUFFIXES or skill_name.lower() == _README_STEM:
        return None
    if not is_valid_name(skill_name):
        raise UnreadableInput(f"{name!r:.200}", "a skill cannot be called so; give the file another name")
    return _SkillFile(_resolve_inside(root, at, name), name, skill_name)


def _is_skill_file(file_name: str) -> bool:
    path = Path(file_name)
    return path.stem.lower() == _SKILL_FILE_STEM and path.suffix.lower() in _SKILL_SUFFIXES


def _resolve_inside(root: Path, at: Path, name: str) -> Path:
    """Where it really is, which has to be inside of `root`."""
    real = _resolve(at, name)
    if not real.is_relative_to(root):
        raise UnreadableInput(name, "leads out of the skills folder, so it is not read")
    return real


def _resolve(path: Path, name: str) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # the latter before Python 3.13
        raise UnreadableInput(name, "leads in a circle") from None
    except ValueError:
        raise UnreadableInput(repr(name), "nothing can have this name") from None


def _list_names(folder: Path, name: str) -> list[str]:
    """What is in a folder and not hidden, in an order that is the same everywhere."""
    try:
        return sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise UnreadableInput(name, error.strerror or str(error)) from None


def _read_text(skill_file: _SkillFile) -> str:
    try:
        # Not to wait for whoever writes into a pipe, nor to follow what has become a link meanwhile.
        descriptor = os.open(skill_file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:  # noqa: PTH123  # of a descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableInput(skill_file.key, "this is no file")
            data = file.read(_MAX_SKILL_BYTES + 1)
    except OSError as error:
        raise UnreadableInput(skill_file.key, error.strerror or str(error)) from None
    if len(data) > _MAX_SKILL_BYTES:
        raise UnreadableInput(skill_file.key, f"more than {_MAX_SKILL_BYTES:,} bytes are too many for a skill")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnreadableInput(skill_file.key, f"not UTF-8 at byte {error.start}") from None
