"""Skills of an agent: files in a skills folder, with priorities and dependencies.

A skill is a file in the folder, or a subfolder with a `SKILL.md`. Nothing outside the folder is read.
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
from foveate.memory.parsing import parse_notes
from foveate.memory.privacy import Gate, PublicOutline
from foveate.paths import StrPath

NO_SKILLS = "No skills available."

_SKILL_PROPERTIES = ("NAME", "DESCRIPTION", "PRIORITY", "DEPENDS", "DEPENDENCIES")
_PRIORITY_WORDS = {"high": 1.0, "medium": 0.0, "low": -1.0}
_PRIORITY_LETTER = re.compile(r"(?:\[#)?([A-Z])\]?", re.IGNORECASE)
_MAX_NAME_CHARS = 100
_SKILL_SUFFIXES = (".md", ".markdown", ".org")
_SKILL_FILE_STEM = "skill"
_README_STEM = "readme"
_MAX_SKILL_BYTES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill as described by its file; `key` is the path in the skills folder, with `/`.

    Higher `priority` comes first; the default is 0. Org's letters are on the same scale: A is 1, B is 0, the
    default in Org, C is -1 and so on. High, medium and low mean A, B and C.
    """

    name: str
    key: str
    description: str = ""
    priority: float = 0.0
    depends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """All skills in order, with warnings.

    `missing` are names of skills that others depend on but that do not exist. `is_readable`: the folder could
    be read, so that it has no other skills.
    """

    skills: tuple[Skill, ...] = ()
    missing: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
    is_readable: bool = True

    def find_skill(self, name: str) -> Skill | None:
        return next((skill for skill in self.skills if skill.name.casefold() == name.casefold()), None)

    @property
    def text(self) -> str:
        """A line for each skill: name, description, dependencies."""
        return "\n".join(map(self._line, self.skills)) or NO_SKILLS

    def _line(self, skill: Skill) -> str:
        head = f"Skill {skill.name}: {skill.description}" if skill.description else f"Skill {skill.name}"
        needs = [f"{name} [missing]" if name in self.missing else name for name in skill.depends]
        return f"{head} (needs {', '.join(needs)})" if needs else head


def parse_skill(outline: PublicOutline, *, key: str, file_name: str) -> tuple[Skill, tuple[str, ...]]:
    """Parse the skill in a file, and return warnings.

    Its properties are in the front matter or the file's properties, or else in those of the first heading. The
    default name is the file name.
    """
    properties = {name: _find_property(outline, name) for name in _SKILL_PROPERTIES}
    warnings = [f"{key}: {problem}" for problem in outline.problems]
    name = properties["NAME"] or file_name
    if not is_valid_name(name):
        warnings.append(f"{key}: {name!r:.60} is not a valid name for a skill; {file_name} is used instead")
        name = file_name
    priority_text = properties["PRIORITY"] or next(
        filter(None, (entry.priority for entry in outline.entries[:2])), ""
    )
    priority = _parse_priority(priority_text)
    if priority is None:
        warnings.append(
            f"{key}: a priority is a number, a letter, high, medium or low, not {priority_text!r:.60}"
        )
    depends = _split_names(properties["DEPENDS"] or properties["DEPENDENCIES"])
    skill = Skill(
        name=name, key=key, description=properties["DESCRIPTION"], priority=priority or 0.0, depends=depends
    )
    return skill, tuple(warnings)


def is_valid_name(name: str) -> bool:
    """Return whether a skill can have this name: short, on one line, and not like a path."""
    fits = 0 < len(name) <= _MAX_NAME_CHARS and name.isprintable() and name == name.strip()
    return fits and not name.startswith(".") and not {"/", "\\"} & set(name)


def build_capabilities(skills: Iterable[Skill], warnings: Iterable[str] = ()) -> Capabilities:
    """Sort skills by priority and name, and warn about missing and circular dependencies.

    Of two skills with the same name, in any case, the first one counts.
    """
    all_warnings = list(warnings)
    by_name: dict[str, Skill] = {}
    for skill in skills:
        first = by_name.setdefault(skill.name.casefold(), skill)
        if first is not skill:
            all_warnings.append(f"{skill.key}: left out, because {first.key} already has the name {first.name}")
    resolved = sorted(
        (_resolve_dependencies(skill, by_name) for skill in by_name.values()),
        key=lambda skill: (-skill.priority, skill.name.casefold()),
    )
    missing = set()
    for skill in resolved:
        for name in skill.depends:
            if name.casefold() not in by_name:
                missing.add(name)
                all_warnings.append(f"{skill.key}: {skill.name} needs the skill {name}, which does not exist")
    all_warnings += [f"skills that need each other: {' > '.join(circle)}" for circle in _find_cycles(resolved)]
    return Capabilities(skills=tuple(resolved), missing=frozenset(missing), warnings=tuple(all_warnings))


def _find_property(outline: PublicOutline, name: str) -> str:
    """A property of the file, or else of its first heading, on one line."""
    values = (entry.properties.get(name, "").split() for entry in outline.entries[:2])
    return " ".join(next(filter(None, values), ()))


def _parse_priority(text: str) -> float | None:
    if not text:
        return 0.0
    if (word := text.lower()) in _PRIORITY_WORDS:
        return _PRIORITY_WORDS[word]
    if letter := _PRIORITY_LETTER.fullmatch(text):
        return float(ord("B") - ord(letter[1].upper()))
    try:
        number = float(text.removeprefix("[#").removesuffix("]"))
    except ValueError:
        return None
    return number if isfinite(number) else None


def _split_names(text: str) -> tuple[str, ...]:
    """Split names at commas; without commas, `_resolve_dependencies` may split at spaces."""
    names = (name.strip(" []\"'") for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _resolve_dependencies(skill: Skill, by_name: dict[str, Skill]) -> Skill:
    """Replace dependencies by the names of existing skills, and split a list without commas."""
    dependencies = list(skill.depends)
    if len(dependencies) == 1 and dependencies[0].casefold() not in by_name:
        dependencies = dependencies[0].split()
    skills = (by_name.get(name.casefold()) for name in dependencies)
    names = (
        dependency.name if dependency else name for dependency, name in zip(skills, dependencies, strict=True)
    )
    return replace(skill, depends=tuple(dict.fromkeys(names)))


def _find_cycles(skills: Iterable[Skill]) -> Iterator[list[str]]:
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


def read_capabilities(folder: StrPath, gate: Gate) -> Capabilities:
    """Read the skills in a folder: `name.md`, `name.org`, or `name/SKILL.md`.

    README files, hidden files and private skills are skipped. Unreadable files, and links that leave the
    folder, are skipped with a warning. An unreadable folder gives no skills and a warning.
    """
    try:
        return _read_folder(folder, gate).capabilities
    except UnreadableInput as error:
        return Capabilities(warnings=(str(error),), is_readable=False)


def read_skill(folder: StrPath, name: str, gate: Gate) -> str:
    """Return the public text of the skill with this name, in any case.

    The name is looked up among the existing skills, so it cannot lead to another file.

    Raises:
        BadOption: there is no such public skill; lists the existing ones.
        UnreadableInput: the folder cannot be read.
    """
    contents = _read_folder(folder, gate)
    skill = contents.capabilities.find_skill(name)
    if skill is None:
        if not is_valid_name(name):
            raise BadOption(f"{name!r:.60} is not a valid name of a skill", path=("skill",))
        known_names = ", ".join(skill.name for skill in contents.capabilities.skills) or "none"
        raise BadOption(f"no skill is named {name!r}; the skills are: {known_names}", path=("skill",))
    return contents.texts[skill.key]


@dataclass(frozen=True, slots=True)
class _FolderContents:
    capabilities: Capabilities
    texts: dict[str, str]
    """The text of each skill by its key."""


@dataclass(frozen=True, slots=True)
class _SkillFile:
    """A file that describes a skill: its real path, its path in the skills folder, and its default name."""

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
        outline = gate.redact(parse_notes(text, path=skill_file.key))
        if outline.entries:
            skill, skill_warnings = parse_skill(outline, key=skill_file.key, file_name=skill_file.name)
            skills.append(skill)
            texts[skill_file.key] = outline.text
            warnings += skill_warnings
    return _FolderContents(build_capabilities(skills, warnings), texts)


def _find_skill_file(root: Path, name: str) -> _SkillFile | None:
    """The skill file for a name in the folder; None if it is not meant to be a skill.

    Raises:
        UnreadableInput: it is meant to be a skill but cannot be one.
    """
    path, skill_name = root / name, Path(name).stem
    if path.is_dir():
        inside = [
            file_name
            for file_name in _list_names(_resolve_inside(root, path, name), name)
            if _is_skill_file(file_name)
        ]
        if not inside:
            raise UnreadableInput(name, "a folder without a SKILL.md is not a skill")
        path, skill_name, name = path / inside[0], name, f"{name}/{inside[0]}"
    elif path.suffix.lower() not in _SKILL_SUFFIXES or skill_name.lower() == _README_STEM:
        return None
    if not is_valid_name(skill_name):
        raise UnreadableInput(f"{name!r:.200}", "this is not a valid name for a skill; rename the file")
    return _SkillFile(_resolve_inside(root, path, name), name, skill_name)


def _is_skill_file(file_name: str) -> bool:
    path = Path(file_name)
    return path.stem.lower() == _SKILL_FILE_STEM and path.suffix.lower() in _SKILL_SUFFIXES


def _resolve_inside(root: Path, path: Path, name: str) -> Path:
    real = _resolve(path, name)
    if not real.is_relative_to(root):
        raise UnreadableInput(name, "points outside the skills folder and is not read")
    return real


def _resolve(path: Path, name: str) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # RuntimeError before Python 3.13
        raise UnreadableInput(name, "is a link that points to itself") from None
    except ValueError:
        raise UnreadableInput(repr(name), "is not a valid file name") from None


def _list_names(folder: Path, name: str) -> list[str]:
    """The visible names in a folder, in an order that is the same everywhere."""
    try:
        return sorted(child.name for child in folder.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise UnreadableInput(name, error.strerror or str(error)) from None


def _read_text(skill_file: _SkillFile) -> str:
    try:
        # Do not wait for the writer of a pipe, and do not follow a link that replaced the file.
        descriptor = os.open(skill_file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - opens a descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableInput(skill_file.key, "is not a file")
            data = file.read(_MAX_SKILL_BYTES + 1)
    except OSError as error:
        raise UnreadableInput(skill_file.key, error.strerror or str(error)) from None
    if len(data) > _MAX_SKILL_BYTES:
        raise UnreadableInput(
            skill_file.key, f"is larger than the limit of {_MAX_SKILL_BYTES:,} bytes for a skill"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnreadableInput(skill_file.key, f"not UTF-8 at byte {error.start}") from None
