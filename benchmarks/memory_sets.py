"""Notes with questions and known answers: manuals, headings of notes, dialogues.

A question never occurs in the notes: the text that it is made from is removed.
"""

import gzip
import json
import os
import random
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import BadData
from benchmarks.recorded import DATA

KNOWLEDGE = Path("knowledge")
WORG = KNOWLEDGE / "worg.tar.gz"
_TAU2 = KNOWLEDGE / "tau2_banking.tar.gz"
_SESSIONS = Path("sessions")
_SEED = 20261115
_HEADINGS_ASKED = 120
# Number of questions per query in the second set of headings.
_TOGETHER = 4

_HEADING = re.compile(r"^\*+ .*$", re.MULTILINE)
_HEADING_MARKUP = re.compile(r"^\*+\s+|\s+:[\w:@]+:\s*$")
_DRAWER = re.compile(r"^[ \t]*:\w+:[ \t]*\n.*?^[ \t]*:END:[ \t]*\n?", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_SENTENCE = re.compile(r"\s*(\w[^\n].*?[.!?])(?=\s)", re.DOTALL)
_FENCED = re.compile(r"(^```.*?^```|^~~~.*?^~~~)", re.MULTILINE | re.DOTALL)
_MAX_TURN_CHARS = 6_000
_MAX_ANSWER_CHARS = 24_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Unit that a peer can select: a document, a heading with its own text, a turn."""

    title: str
    text: str
    modified: float


@dataclass(frozen=True, slots=True)
class Task:
    """A question, and the pieces that answer it."""

    query: str
    required: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteSet:
    """Note files, the pieces that they consist of, and the questions."""

    name: str
    files: Mapping[str, str]
    modified: Mapping[str, float]
    pieces: Sequence[Piece]
    tasks: Sequence[Task]
    limits: tuple[int, ...] = (1000, 2000, 4000, 8000)

    def write(self, folder: Path) -> None:
        """Write the files into a folder, with their modification times."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            os.utime(path, (self.modified[name], self.modified[name]))


def note_sets(data: Path | None) -> Iterator[NoteSet]:
    """Yield all sets.

    Raises:
        BadData: the data is missing, or cannot be read.
    """
    folder = data or DATA
    yield _manuals(folder / _TAU2)
    yield _headings(folder / WORG, "worg", together=1)
    yield _headings(folder / WORG, "worg_four", together=_TOGETHER)
    yield _dialogues(folder / _SESSIONS)


def read_archive(path: Path) -> list[tuple[str, float, bytes]]:
    """Yield every file of an archive, sorted by name: its name, modification time and content.

    Raises:
        BadData: it is missing, or cannot be read.
    """
    try:
        with tarfile.open(path) as archive:
            files = [(member, archive.extractfile(member)) for member in archive if member.isfile()]
            found = [
                (str(Path(member.name)), float(member.mtime), file.read())
                for member, file in files
                if file is not None
            ]
    except (OSError, EOFError, tarfile.TarError) as error:
        raise BadData(f"cannot read the notes to measure with: {error}") from None
    return sorted(found)


def _manuals(path: Path) -> NoteSet:
    """Documents of a help desk, and customer tasks that name the documents they need."""
    pieces: list[Piece] = []
    numbers: dict[str, int] = {}
    tasks: list[dict[str, Any]] = []
    files: dict[str, str] = {}
    modified: dict[str, float] = {}
    for name, when, content in read_archive(path):
        if "/banking_knowledge/documents/" in name:
            document = json.loads(content)
            numbers[document["id"]] = len(pieces)
            pieces.append(Piece(document["title"], document["content"], when))
            file = f"{document['id']}.md"
            files[file] = f"# {document['title']}\n\n{document['content']}\n"
            modified[file] = when
        elif name.endswith("/banking_knowledge/tasks.json"):
            tasks = json.loads(content)
    if not tasks or not pieces:
        raise BadData(f"{path} has no tasks with documents")
    return NoteSet(
        name="tau2",
        files=files,
        modified=modified,
        pieces=pieces,
        tasks=[
            Task(
                task["user_scenario"]["instructions"],
                frozenset(numbers[document] for document in task["required_documents"]),
            )
            for task in tasks
        ],
    )


def _headings(path: Path, name: str, *, together: int) -> NoteSet:
    """Notes in Org. A question is the first sentence of a heading's text; the rest of it is the answer."""
    pieces: list[Piece] = []
    queries: dict[int, str] = {}
    files: dict[str, str] = {}
    modified: dict[str, float] = {}
    sources = {name: (when, content) for name, when, content in read_archive(path) if name.endswith(".org")}
    texts = {name: content.decode("utf-8") for name, (_, content) in sources.items()}
    questions = _pick_questions(texts)
    for file, text in texts.items():
        modified[file] = sources[file][0]
        kept_parts, at = [], 0
        for start, heading, body in _split_headings(text):
            sentence = questions.get((file, start))
            if sentence is not None:
                cut = text.index(sentence, start)
                kept_parts.append(text[at:cut])
                at = cut + len(sentence)
                body = body.replace(sentence, "", 1)
                queries[len(pieces)] = " ".join(sentence.split())
            pieces.append(Piece(heading, _DRAWER.sub("", body).strip("\n"), modified[file]))
        files[file] = "".join([*kept_parts, text[at:]])
    chosen = list(queries)
    random.Random(_SEED).shuffle(chosen)
    groups = [chosen[at : at + together] for at in range(0, len(chosen) - together + 1, together)]
    return NoteSet(
        name=name,
        files=files,
        modified=modified,
        pieces=pieces,
        tasks=[Task(" ".join(queries[number] for number in group), frozenset(group)) for group in groups],
        limits=(500, 1000, 2000, 4000, 8000),
    )


def _split_headings(text: str) -> Iterator[tuple[int, str, str]]:
    """Return start, title and own text of each heading; first the text above all headings."""
    found = [
        (0, 0, ""),
        *((each.start(), each.end(), _HEADING_MARKUP.sub("", each[0])) for each in _HEADING.finditer(text)),
    ]
    ends = [start for start, _, _ in found[1:]] + [len(text)]
    for (_, start, title), end in zip(found, ends, strict=True):
        yield start, title.strip(), text[start:end]


def _pick_questions(texts: Mapping[str, str]) -> dict[tuple[str, int], str]:
    """Choose the sentences to remove, by file and position, from headings with enough text after them."""
    fit: dict[tuple[str, int], str] = {}
    for file, text in texts.items():
        for start, title, body in _split_headings(text):
            content = _DRAWER.sub("", body)
            first = _SENTENCE.match(content.split("\n\n")[0].strip() + "\n")
            if not title or first is None or not 50 <= len(content.split()) <= 400:
                continue
            sentence = first[1]
            plain = (
                "#+" not in sentence
                and "[" not in sentence
                and len(content.split()) - len(sentence.split()) >= 30
            )
            if plain and 6 <= len(sentence.split()) <= 60 and body.count(sentence) == 1:
                fit[file, start] = sentence
    picked = random.Random(_SEED).sample(sorted(fit), min(_HEADINGS_ASKED, len(fit)))
    return {place: fit[place] for place in picked}


@dataclass(frozen=True, slots=True)
class _DialogueTurn:
    who: str
    text: str
    when: datetime


def _dialogues(folder: Path) -> NoteSet:
    """Sessions, a file each with a heading per turn. A user message is a question, the response its answer."""
    sessions = {path.name.split(".")[0]: _turns(path) for path in sorted(folder.glob("[cp]*/*.jsonl.gz"))}
    if not sessions:
        raise BadData(f"there are no recorded sessions in {folder}")
    steps = {path.name.split(".")[0]: _steps(path) for path in sorted(folder.glob("swe_agent/*.gz"))}
    question_texts = {turn.text for turns in sessions.values() for turn in turns if _is_question(turn)}
    pieces: list[Piece] = []
    answers: dict[str, set[int]] = {}
    files: dict[str, str] = {}
    modified: dict[str, float] = {}
    for name, turns in {**sessions, **steps}.items():
        lines = [f"# {name.replace('_', ' ')}", ""]
        question: str | None = None
        for turn in turns:
            if turn.who == "User":
                question = turn.text if turn.text in question_texts else None
                if question is not None:
                    continue
            elif question is not None and len(turn.text) >= 100:
                answers.setdefault(question, set()).add(len(pieces))
            title = f"{turn.who}, {turn.when:%Y-%m-%d %H:%M}"
            pieces.append(Piece(title, turn.text, turn.when.timestamp()))
            lines += [f"## {title}", "", _lower_headings(turn.text), ""]
        files[f"{name}.md"] = "\n".join(lines)
        modified[f"{name}.md"] = max((turn.when.timestamp() for turn in turns), default=0.0)
    return NoteSet(
        name="dialogues",
        files=files,
        modified=modified,
        pieces=pieces,
        tasks=[
            Task(question, frozenset(found))
            for question, found in answers.items()
            if sum(len(pieces[number].text) for number in found) <= _MAX_ANSWER_CHARS
        ],
        limits=(500, 1000, 2000, 4000, 8000),
    )


def _is_question(turn: _DialogueTurn) -> bool:
    content = turn.text
    return turn.who == "User" and 5 <= len(content.split()) <= 400 and not content.startswith(("<", "Caveat"))


def _lower_headings(text: str) -> str:
    """Move headings two levels down, below that of the turn."""
    parts = _FENCED.split(text)
    return "".join(
        part if number % 2 else re.sub(r"^(#{1,4})(?= )", r"\1##", part, flags=re.MULTILINE)
        for number, part in enumerate(parts)
    )


def _turns(path: Path) -> list[_DialogueTurn]:
    found = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for entry in map(json.loads, lines):
            message = entry.get("message")
            if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
                continue
            content = _content_text(message.get("content")).strip()[:_MAX_TURN_CHARS]
            if content and not entry.get("isMeta"):
                when = datetime.fromisoformat(entry["timestamp"])
                found.append(_DialogueTurn(message["role"].capitalize(), content, when))
    return found


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks: Iterable[Any] = content if isinstance(content, list) else ()
    return "\n".join(
        str(block.get("text", ""))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "text"
    )


def _steps(path: Path) -> list[_DialogueTurn]:
    when = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    trajectory = json.loads(gzip.decompress(path.read_bytes())).get("trajectory", ())
    texts = (f"{step.get('thought') or ''}\n{step.get('observation') or ''}".strip() for step in trajectory)
    return [_DialogueTurn("Step", text[:_MAX_TURN_CHARS], when) for text in texts if text]
