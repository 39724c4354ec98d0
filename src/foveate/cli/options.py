"""What a command means where it is not told.

Ids as people say them: by how they begin, and no longer than it takes to tell them apart.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from foveate.errors import BadOption

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration; default: foveate.yaml here, else in the data folder, else all by default.",
    ),
]


def find_config_file(file: Path | None = None) -> Path | None:
    """The configuration that is meant: the one that is named, or else the one that holds where none is."""
    from foveate.config.overrides import find_default_file
    from foveate.paths import data_folder

    return file or find_default_file(Path(), data_folder(os.environ, sys.platform))


def find_store_url(url: str | None) -> str | None:
    """The store that is meant: the one that is named, or else the one that a gateway here would have.

    None is what `FOVEATE_STORE` says, or the file in the data folder.

    Raises:
        InputError: the configuration cannot be read.
    """
    if url is not None or os.environ.get("FOVEATE_STORE"):
        return url
    file = find_config_file()
    if file is None:
        return None
    from foveate.config.load import load_settings

    return load_settings(file).store.url or None


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
