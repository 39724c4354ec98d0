"""Ids as people say them: by how they begin, and no longer than it takes to tell them apart."""

from collections.abc import Sequence

from foveate.errors import BadOption

SHORT_ID_CHARS = 8
MAX_LISTED_IDS = 10
"""So many are named where several begin alike."""


def resolve_prefix(ids: Sequence[str], prefix: str, kind: str) -> str | None:
    """The id that is meant by its beginning; None where there is none.

    Raises:
        BadOption: several begin so.
    """
    if prefix in ids:
        return prefix
    if len(ids) > 1:
        listed = ", ".join(shorten_ids(ids)[id_] for id_ in ids[:MAX_LISTED_IDS])
        more = ", …" if len(ids) > MAX_LISTED_IDS else ""
        raise BadOption(f"the ids of several {kind}s begin with {prefix!r:.80}: {listed}{more}; say more of it")
    return ids[0] if ids else None


def shorten_ids(ids: Sequence[str]) -> dict[str, str]:
    """The beginning of each id by which it differs from the others, and not less than people can see."""
    length = SHORT_ID_CHARS
    distinct = set(ids)
    max_length = max(map(len, distinct), default=0)
    while length < max_length and len({id_[:length] for id_ in distinct}) < len(distinct):
        length += 1
    return {id_: id_[:length] for id_ in ids}
