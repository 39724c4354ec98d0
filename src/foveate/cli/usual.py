"""What a command means where it is not told."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

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
    from foveate.config.overriding import find_default_file
    from foveate.memory.paths import data_folder

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
    from foveate.config.loading import load_settings

    return load_settings(file).store.url or None
