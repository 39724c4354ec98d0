"""Vocabularies in files."""

import base64
from pathlib import Path


def write_byte_vocabulary(folder: Path) -> Path:
    """Write a vocabulary whose only tokens are single bytes."""
    path = folder / "cl100k.tiktoken"
    lines = (b"%b %d" % (base64.b64encode(bytes([byte])), byte) for byte in range(256))
    path.write_bytes(b"\n".join(lines))
    return path
