"""Places in a document: the keys and numbers that lead to a value."""

Place = tuple[str | int, ...]

DEEPEST = 100
"""How deep lists and mappings may be nested."""

# Whoever reads an error wants to know which value it is, not all of it.
_SHORT_CHARS = 500


def dotted(place: Place) -> str:
    """A place as errors name it: `sections.logs.max_tokens`."""
    # JSON can hold half of a surrogate pair, which cannot be printed.
    return short(".".join(map(str, place))).encode("utf-8", "replace").decode()


def short(text: str) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= _SHORT_CHARS else text[:_SHORT_CHARS] + " …"
