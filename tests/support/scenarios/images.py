"""Small PNG images of any dimensions."""

import base64
import struct
import zlib


def png(width: int, height: int) -> str:
    """Return a black PNG in base64."""
    rows = b"".join(b"\0" + bytes(width) for _ in range(height))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    image = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        image += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return base64.b64encode(image).decode()
