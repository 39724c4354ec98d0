"""What is in the files of a workspace, each as it was at one time, and only what may be seen."""

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager

from foveate.errors import UnreadableInput
from foveate.memory.gate import Gate
from foveate.memory.parsing import parse_notes
from foveate.prompt.bundles import BundleFile, WorkspaceReading, WorkspaceWarning
from foveate.prompt.sources import (
    MAX_FILE_BYTES,
    SourceFile,
    WorkspaceScan,
    file_stamp,
    os_error_reason,
    unreadable_reason,
)

# How often a file is read that changes meanwhile.
_MAX_READ_ATTEMPTS = 3
_READ_CHUNK_BYTES = 1_000_000


def read_files(scan: WorkspaceScan, gate: Gate) -> WorkspaceReading:
    """What the files that were seen say, as far as it may be seen."""
    files: list[BundleFile] = []
    warnings = list(scan.warnings)
    for source in scan.sources:
        data = b""
        try:
            data = _read_bytes(scan.root or "/", source)
            text = _decode_text(data, source.path)
        except UnreadableInput as error:
            warnings.append(WorkspaceWarning(source.path, error.reason, source.name))
            if _contains_private(data, gate, source.path):
                # It may have become private since it was good: then it is not shown as it was either.
                files.append(BundleFile(source.name, source.path, "", is_blank=False))
            continue
        outline = gate.redact(parse_notes(text, gate, path=source.path))
        public = outline.text.strip("\r\n").rstrip()
        files.append(BundleFile(source.name, source.path, public, is_blank=not text or text.isspace()))
        warnings.extend(
            WorkspaceWarning(source.path, problem, is_permanent=True) for problem in outline.problems
        )
    return WorkspaceReading(files=tuple(files), warnings=tuple(warnings))


def _contains_private(data: bytes, gate: Gate, path: str) -> bool:
    """Whether something is private in what is no text, as far as it can be read."""
    text = data.decode("utf-8-sig", "replace")
    return gate.redact(parse_notes(text, gate, path=path)).text != text


def _read_bytes(root: str, source: SourceFile) -> bytes:
    """All of a file, as it is at one time.

    Raises:
        UnreadableInput: it is gone, or is being written, or is no file that can be read.
    """
    try:
        for _ in range(_MAX_READ_ATTEMPTS):
            with _open_without_links(root, source.real_path) as file:
                before = os.fstat(file)
                if reason := unreadable_reason(before):
                    raise UnreadableInput(source.path, reason)
                data = _read_limited(file)
                if file_stamp(before) == file_stamp(os.fstat(file)) and len(data) == before.st_size:
                    return data
    except OSError as error:
        raise UnreadableInput(source.path, os_error_reason(error)) from None
    raise UnreadableInput(source.path, "is being written")


@contextmanager
def _open_without_links(root: str, real: str) -> Iterator[int]:
    """The file at `real`, in which there are no links, nor have any been put since."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(root, flags | os.O_DIRECTORY)
    *folders, name = os.path.relpath(real, root).split("/")
    for part, kind in [*((folder, os.O_DIRECTORY) for folder in folders), (name, os.O_NONBLOCK | os.O_NOCTTY)]:
        try:
            inner = os.open(part, flags | kind, dir_fd=file)
        finally:
            os.close(file)
        file = inner
    try:
        yield file
    finally:
        os.close(file)


def _read_limited(file: int) -> bytes:
    pieces: list[bytes] = []
    remaining_bytes = MAX_FILE_BYTES + 1
    while remaining_bytes > 0 and (piece := os.read(file, min(remaining_bytes, _READ_CHUNK_BYTES))):
        pieces.append(piece)
        remaining_bytes -= len(piece)
    return b"".join(pieces)


def _decode_text(data: bytes, path: str) -> str:
    """The text that `data` is in UTF-8, without a byte order mark.

    Raises:
        UnreadableInput: it is not.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableInput(path, "is UTF-16: save it as UTF-8")
    if b"\0" in data:
        raise UnreadableInput(path, "is binary, not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise UnreadableInput(path, "ends in the middle of a character") from None
        raise UnreadableInput(path, f"is not UTF-8 (byte {error.start})") from None
