"""Key paths: the keys and indexes that lead to a value in a document."""

from collections.abc import Mapping

KeyPath = tuple[str | int, ...]

MAX_DEPTH = 100
"""Limit for nested lists and mappings."""

# Enough to recognize a value in an error.
_MAX_CHARS = 500


def format_key_path(key_path: KeyPath) -> str:
    """Format a key path for errors: `sections.logs.max_tokens`."""
    # JSON can contain lone surrogates, which cannot be printed.
    return shorten_text(".".join(map(str, key_path))).encode("utf-8", "replace").decode()


def find_line(lines: Mapping[KeyPath, int], key_path: KeyPath) -> int | None:
    """Return the line of a value, or of the closest value around it."""
    return next(
        (lines[key_path[:depth]] for depth in range(len(key_path), -1, -1) if key_path[:depth] in lines), None
    )


def shorten_text(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + " …"
