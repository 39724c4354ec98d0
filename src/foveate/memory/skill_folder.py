"""The skills folder: a skill is a file in it, or a folder with a `SKILL.md`; nothing outside is ever read."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from foveate.errors import BadOption, UnreadableInput
from foveate.memory.gate import Gate
from foveate.memory.parsing import parse_notes
from foveate.memory.paths import StrPath
from foveate.memory.skills import Capabilities, Skill, build_capabilities, is_valid_name, parse_skill

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
