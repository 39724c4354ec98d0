"""Generated notes of any number, half Org and half Markdown, with the words of real notes."""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import BadData
from benchmarks.memory_sets import WORG, read_archive
from benchmarks.recorded import DATA

NODES_A_FILE = 100
_FILES_A_FOLDER = 50
_SEED = 20261115
_MAX_LEVEL = 4
# With its heading, a node has about 230 bytes.
_WORDS = (12, 48)
_PLAIN = re.compile(r"[\w'.,-]*\w[\w'.,-]*")
_TAGS = ("work", "garden", "reading", "emacs", "project", "idea")


def vocabulary(data: Path | None) -> list[str]:
    """Return the words of real notes with their frequencies, without markup.

    Raises:
        BadData: there are none.
    """
    found: list[str] = []
    for name, _, content in read_archive((data or DATA) / WORG):
        if name.endswith(".org"):
            found += filter(_PLAIN.fullmatch, content.decode("utf-8", "replace").split())
    words = [word for word in found if len(word) <= 24 and "private" not in word.lower()]
    if len(words) < 10_000:
        raise BadData("there are too few words in the notes to make others of")
    return words


def write(folder: Path, nodes: int, words: Sequence[str]) -> int:
    """Write notes with this many nodes, where a file is also a node; return their size in bytes."""
    size = 0
    for number in range(nodes // NODES_A_FILE):
        chance = random.Random(_SEED + number)
        form = "org" if number % 2 else "md"
        path = folder / f"part{number // _FILES_A_FOLDER:03}" / f"notes{number:05}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _org(chance, words) if form == "org" else _markdown(chance, words)
        content = ("\n".join(lines) + "\n").encode()
        path.write_bytes(content)
        size += len(content)
    return size


def sentences(chance: random.Random, words: Sequence[str], count: int) -> str:
    """Return this many words, in lines and sentences."""
    taken = chance.choices(words, k=count)
    return "\n".join(" ".join(taken[at : at + 12]) + "." for at in range(0, count, 12))


def _levels(chance: random.Random) -> Iterator[int]:
    level = 1
    for _ in range(NODES_A_FILE - 1):
        yield level
        level = min(max(1, level + chance.choice((-2, -1, 0, 0, 0, 1, 1))), _MAX_LEVEL)


def _org(chance: random.Random, words: Sequence[str]) -> Iterator[str]:
    yield f"#+TITLE: {_title(chance, words)}"
    yield f"#+FILETAGS: :{chance.choice(_TAGS)}:"
    yield ""
    for level in _levels(chance):
        state = chance.choice(("TODO ", "DONE ", "", "", "", ""))
        tags = f" :{chance.choice(_TAGS)}:" if chance.random() < 0.2 else ""
        yield f"{'*' * level} {state}{_title(chance, words)}{tags}"
        if state == "TODO ":
            yield f"SCHEDULED: <2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}>"
        if chance.random() < 0.2:
            yield f":PROPERTIES:\n:ID: {chance.getrandbits(64):016x}\n:END:"
        yield sentences(chance, words, chance.randint(*_WORDS))


def _markdown(chance: random.Random, words: Sequence[str]) -> Iterator[str]:
    yield f"---\ntitle: {_title(chance, words)!r}\ntags: [{chance.choice(_TAGS)}]\n---\n"
    for level in _levels(chance):
        yield f"{'#' * level} {_title(chance, words)}\n"
        yield sentences(chance, words, chance.randint(*_WORDS)) + "\n"


def _title(chance: random.Random, words: Sequence[str]) -> str:
    return " ".join(word.strip(".,-'") or word for word in chance.choices(words, k=chance.randint(2, 5)))
