"""Ids as people say them: by how they begin, and no longer than it takes to tell them apart."""

from collections.abc import Sequence

from foveate.errors import BadOption

SHORT_ID = 8
MOST_NAMED = 10
"""So many are named where several begin alike."""


def the_one(ids: Sequence[str], beginning: str, what: str) -> str | None:
    """The id that is meant by its beginning; None where there is none.

    Raises:
        BadOption: several begin so.
    """
    if beginning in ids:
        return beginning
    if len(ids) > 1:
        listed = ", ".join(short_ids(ids)[id_] for id_ in ids[:MOST_NAMED])
        more = ", …" if len(ids) > MOST_NAMED else ""
        raise BadOption(
            f"the ids of several {what}s begin with {beginning!r:.80}: {listed}{more}; say more of it"
        )
    return ids[0] if ids else None


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """The beginning of each id by which it differs from the others, and not less than people can see."""
    length = SHORT_ID
    unlike = set(ids)
    longest = max(map(len, unlike), default=0)
    while length < longest and len({id_[:length] for id_ in unlike}) < len(unlike):
        length += 1
    return {id_: id_[:length] for id_ in ids}
