"""Options that several commands share, their defaults, and ids that users abbreviate."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from foveate.errors import BadOption

CONFIG_HELP = "Configuration file. Default: foveate.yaml in the current folder, else in the data folder."
MODEL_METAVAR = "MODEL"
TOKENIZER_HELP = "Count with this tokenizer file (tokenizer.json or .tiktoken). Default: the model's tokenizer."
UTC_TIME_HELP = "a UTC date (2026-11-01 or 2026-11-01T09:30) or an age (7d is seven days ago)."
LOCAL_TIME_HELP = "a date in local time (2026-11-01) or an age (7d is seven days ago)."
UNTIL_NOTE = "A date includes the whole day."
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help=CONFIG_HELP,
    ),
]
SHORT_ID_CHARS = 8
MAX_LISTED_IDS = 10
"""Limit of the listed matches of an ambiguous prefix."""


def find_config_file(file: Path | None = None) -> Path | None:
    """Return the named configuration file, or the default one if it exists."""
    from foveate.paths import data_folder, find_default_config

    return file or find_default_config(Path(), data_folder(os.environ, sys.platform))


def find_store_url(url: str | None) -> str | None:
    """Return the named store, or the one that a gateway started here would use.

    None stands for `FOVEATE_STORE` or the file in the data folder.

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


def resolve_prefix(ids: Sequence[str], prefix: str, kind: str) -> str | None:
    """Return the id that starts with `prefix`; None if there is none.

    Raises:
        BadOption: several ids match.
    """
    if prefix in ids:
        return prefix
    if len(ids) > 1:
        matches = ", ".join(shorten_ids(ids)[id_] for id_ in ids[:MAX_LISTED_IDS])
        more = ", …" if len(ids) > MAX_LISTED_IDS else ""
        raise BadOption(
            f"several {kind} ids start with {prefix!r:.80}: {matches}{more}; give more characters of the id"
        )
    return ids[0] if ids else None


def shorten_ids(ids: Sequence[str]) -> dict[str, str]:
    """Shorten ids to prefixes that are still distinct, and at least `SHORT_ID_CHARS` long."""
    length = SHORT_ID_CHARS
    distinct = set(ids)
    max_length = max(map(len, distinct), default=0)
    while length < max_length and len({id_[:length] for id_ in distinct}) < len(distinct):
        length += 1
    return {id_: id_[:length] for id_ in ids}
