"""Unpacks archives of recordings (`.tar`, `.tar.gz`, `.tgz`, `.zip`) into a temporary folder, within limits.

Only regular files that may be recordings are written. Links and members outside the folder are rejected; an
archive that unpacks to more than the limits is rejected as a whole.
"""

import gzip
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, cast

from foveate.errors import UnreadableInput
from foveate.replay.recording_files import ARCHIVE_SUFFIXES, STORE_SUFFIXES, SUFFIXES, FoundFiles

_DRIVE = re.compile(r"[A-Za-z]:")
_CHUNK_BYTES = 1024 * 1024
_ENCRYPTED = 0x1
_ARCHIVE_ERRORS = (
    OSError,
    EOFError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Limits of what an archive may unpack to. `max_ratio` applies only beyond `min_ratio_bytes`."""

    max_bytes: int = 8 * 1024**3
    max_members: int = 200_000
    max_ratio: int = 200
    min_ratio_bytes: int = 64 * 1024**2


DEFAULT_LIMITS = ArchiveLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedArchive:
    files: tuple[Path, ...]
    skipped: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...]


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


@contextmanager
def unpack_archives(found_files: FoundFiles, limits: ArchiveLimits = DEFAULT_LIMITS) -> Iterator[FoundFiles]:
    """Replace the archives in `found_files` by their files, which are deleted on exit.

    `FoundFiles.display_names` maps their paths to names to show.
    """
    archives = [path for path in found_files.files if is_archive(path)]
    if not archives:
        yield found_files
        return
    with tempfile.TemporaryDirectory(prefix="foveate-") as temporary:
        files = [path for path in found_files.files if path not in archives]
        skipped, rejected, names = [], [], {}
        for number, archive in enumerate(archives):
            folder = Path(temporary, str(number))
            folder.mkdir()
            names[f"{folder}/"] = f"{archive}:"
            try:
                unpacked = unpack(archive, folder, limits)
            except UnreadableInput as error:
                rejected.append((str(archive), error.reason))
                continue
            files += unpacked.files
            skipped += [f"{archive}:{name}" for name in unpacked.skipped]
            rejected += [(f"{archive}:{name}", reason) for name, reason in unpacked.rejected]
        yield replace(
            found_files,
            files=tuple(files),
            skipped=tuple(skipped),
            rejected=tuple(rejected),
            display_names=names,
        )


def unpack(archive: Path, folder: Path, limits: ArchiveLimits = DEFAULT_LIMITS) -> UnpackedArchive:
    """Write the files of an archive that may be recordings to `folder`.

    Raises:
        UnreadableInput: it is damaged, is not an archive, or unpacks to more than the limits.
    """
    writer = _MemberWriter(archive, folder, limits)
    try:
        if archive.name.lower().endswith(".zip"):
            _unpack_zip(archive, writer)
        else:
            _unpack_tar(archive, writer)
    except _ARCHIVE_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise UnreadableInput(str(archive), f"cannot be read as an archive: {reason}") from None
    return writer.result()


class _MemberWriter:
    def __init__(self, archive: Path, folder: Path, limits: ArchiveLimits) -> None:
        self.max_bytes = min(
            limits.max_bytes, max(limits.max_ratio * archive.stat().st_size, limits.min_ratio_bytes)
        )
        self._archive = archive
        self._folder = folder
        self._limits = limits
        self._members = 0
        self._bytes = 0
        self._files: dict[Path, None] = {}
        self._skipped: list[str] = []
        self._rejected: list[tuple[str, str]] = []

    def result(self) -> UnpackedArchive:
        return UnpackedArchive(
            files=tuple(sorted(self._files)), skipped=tuple(self._skipped), rejected=tuple(self._rejected)
        )

    def count_member(self) -> None:
        self._members += 1
        if self._members > self._limits.max_members:
            raise UnreadableInput(
                str(self._archive), f"is rejected: it has more than {self._limits.max_members:,} members"
            )

    def count_bytes(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self.max_bytes:
            raise UnreadableInput(
                str(self._archive),
                f"is rejected: it unpacks to more than {self.max_bytes:,} bytes; unpack it if you trust it",
            )

    def reject(self, name: str, reason: str) -> None:
        self._rejected.append((name, reason))

    def skip(self, name: str) -> None:
        self._skipped.append(name)

    def target_path(self, name: str) -> Path | None:
        """The path to write a member to; None if it is skipped or rejected."""
        plain = name.replace("\\", "/")
        parts = PurePosixPath(plain).parts
        if plain.startswith("/") or _DRIVE.match(plain) or ".." in parts or "\0" in plain:
            self.reject(name, "points outside the archive")
            return None
        if not plain.lower().endswith((*SUFFIXES, *STORE_SUFFIXES)):
            self.skip(name)
            return None
        return self._folder.joinpath(*parts)

    def write(self, name: str, path: Path, source: IO[bytes], *, is_counted: bool = False) -> None:
        """Write a member. Of two with the same name, the last one stays."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            target = path.open("wb")
        except (OSError, ValueError) as error:
            self.reject(name, f"cannot be written: {getattr(error, 'strerror', None) or error}")
            return
        with target:
            if is_counted:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            while not is_counted and (chunk := source.read(_CHUNK_BYTES)):
                self.count_bytes(len(chunk))
                target.write(chunk)
        self._files[path] = None


class _CountedStream:
    """The unpacked bytes of a tar archive, counted as they are read, including headers and skipped members."""

    def __init__(self, source: IO[bytes], writer: _MemberWriter) -> None:
        self._source = source
        self._writer = writer

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(_CHUNK_BYTES if size < 0 else min(size, _CHUNK_BYTES))
        self._writer.count_bytes(len(data))
        return data


def _unpack_tar(archive: Path, writer: _MemberWriter) -> None:
    with archive.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_gzip else raw
        stream = cast("IO[bytes]", _CountedStream(source, writer))
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                writer.count_member()
                if member.isdir():
                    continue
                if member.issym() or member.islnk():
                    writer.reject(member.name, "is a link")
                elif not member.isreg() or member.issparse():
                    writer.reject(member.name, "is not a regular file")
                elif (path := writer.target_path(member.name)) is not None:
                    content = members.extractfile(member)
                    if content is not None:
                        writer.write(member.name, path, content, is_counted=True)


def _unpack_zip(archive: Path, writer: _MemberWriter) -> None:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            writer.count_member()
            name, mode = member.filename, member.external_attr >> 16
            if member.is_dir():
                continue
            if stat.S_ISLNK(mode):
                writer.reject(name, "is a link")
            elif member.flag_bits & _ENCRYPTED:
                writer.reject(name, "is encrypted")
            elif (path := writer.target_path(name)) is not None:
                with members.open(member) as content:
                    writer.write(name, path, content)
