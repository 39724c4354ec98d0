"""Places in a document: the keys and numbers that lead to a value."""

KeyPath = tuple[str | int, ...]

MAX_DEPTH = 100
"""How deep lists and mappings may be nested."""

# Whoever reads an error wants to know which value it is, not all of it.
_MAX_CHARS = 500


def format_key_path(key_path: KeyPath) -> str:
    """A place as errors name it: `sections.logs.max_tokens`."""
    # JSON can hold half of a surrogate pair, which cannot be printed.
    return shorten(".".join(map(str, key_path))).encode("utf-8", "replace").decode()


def shorten(text: str) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + " …"
