"""The price file that `foveate prices update` writes to the data folder."""

import asyncio
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from foveate.config.files import FileStamp, display_path, read_bytes, read_file_stamp, replace_file
from foveate.cost.pricing.price_file import (
    MAX_FILE_BYTES,
    ImportedPrices,
    price_file_json,
    read_stored_price_file,
)
from foveate.errors import UnreadableInput, UnwritableFile
from foveate.paths import data_folder

_LOG = logging.getLogger(__name__)

_NAME = "prices.json"


class PriceFile:
    """A price file that is read on first use, and again by `refresh` once it has changed.

    An invalid file leaves the previous prices in effect; `problem` says what is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: UnreadableInput | None = None
        self._update: ImportedPrices | None = None
        self._stamp: FileStamp = None
        self._is_read = False
        self._read_task: asyncio.Task[None] | None = None

    def current_prices(self) -> ImportedPrices | None:
        if not self._is_read:
            self._read(read_file_stamp(str(self.path)))
        return self._update

    async def refresh(self) -> None:
        """Reload a changed file in a thread. If another request is already reloading it, wait for that."""
        stamp = read_file_stamp(str(self.path))
        if self._is_read and stamp != self._stamp and self._read_task is None:
            self._read_task = asyncio.create_task(asyncio.to_thread(self._read, stamp))
        if self._read_task is not None:
            read_task = self._read_task
            try:
                await asyncio.shield(read_task)
            finally:
                if self._read_task is read_task:
                    self._read_task = None

    def _read(self, stamp: FileStamp) -> None:
        was_read, self._is_read, self._stamp = self._is_read, True, stamp
        if stamp is None or not self.path.is_file():
            self._update, self.problem = None, None
            return
        try:
            data = read_bytes(self.path, limit_bytes=MAX_FILE_BYTES)
            self._update, self.problem = read_stored_price_file(data, source=display_path(self.path)), None
        except UnreadableInput as error:
            self.problem = error
            _LOG.error("the price file is invalid, keeping the previous prices: %s", error)
            return
        if was_read:
            _LOG.info("%s has changed, now using the prices of %s", self.path, self._update.origin)


def default_price_file(environment: Mapping[str, str]) -> PriceFile:
    return PriceFile(data_folder(environment, sys.platform) / _NAME)


def write_price_file(file: PriceFile, update: ImportedPrices) -> None:
    """Replace the file atomically.

    Raises:
        UnwritableFile: the file cannot be written.
    """
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableFile(display_path(file.path), error.strerror or "cannot create the folder") from None
    replace_file(file.path, price_file_json(update))
