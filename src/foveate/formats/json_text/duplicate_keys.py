"""Detection of duplicate keys in the JSON objects of a request.

JSON parsers differ in which of two equal keys they use. Foveate forwards the original bytes, so an upstream
could use other values than those that Foveate has counted, priced and routed by.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from foveate.errors import DuplicateKey, MalformedRequest
from foveate.formats.json_text import large_json
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE

_MAX_KEY_CHARACTERS = 64
_MAX_LISTS = 25_000
_SURROGATE = re.compile("[\ud800-\udfff]")

_Pairs = list[tuple[str, Any]]


class _DuplicateFound(Exception):
    pass


class _Path(tuple[str | int, ...]):
    __slots__ = ()


def check_unique_keys(data: bytes, names: Collection[str]) -> None:
    r"""Check that no object in the JSON text `data` has the same key twice, however the keys are escaped.

    `names` are the keys of its top-level object. Two of these must not differ only in case either, because some
    servers ignore it (Go's encoding/json). Deeper keys may, as those of tool schemas and tool inputs do.

    Lone surrogates are all equal here, because Foveate reads each of them as `\ufffd`.

    Raises:
        DuplicateKey: an object has a key twice.
        MalformedRequest: `data` is not JSON, or nested too deeply.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    if len(data) >= large_json.LARGE_BYTES or _has_many_lists(data):
        check_large(data)
    else:
        _check_objects(_decode_text(data))
    _check_case(names)


def has_unique_keys(text: str) -> bool:
    try:
        if len(text) >= large_json.LARGE_BYTES:
            check_large(text.encode("utf-8", "surrogatepass"))
        else:
            _check_objects(text)
    except MalformedRequest:
        return False
    return True


def _has_many_lists(data: bytes) -> bool:
    """Return whether a text has so many lists and objects that it takes as long as a large one."""
    return len(data) >= large_json.LARGE_BYTES // 4 and data.count(b"[") + data.count(b"{") > _MAX_LISTS


def check_large(data: bytes, sizes: large_json.SliceSizes = large_json.DEFAULT_SIZES) -> None:
    """Check a large text in pieces, so that other threads do not wait long."""
    try:
        large_json.parse_json(data, sizes, _READERS)
    except DuplicateKey as error:
        steps = [_shorten(step) if isinstance(step, str) else step for step in error.path]
        raise DuplicateKey(tuple(steps)) from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise MalformedRequest(f"the request is not JSON: {error}") from None
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def _check_items(piece: bytes) -> list[None]:
    """Only the number of items is kept."""
    text = _decode_text(piece)
    try:
        return [None] * len(_KEYS_DECODER.decode(text))
    except _DuplicateFound:
        raise DuplicateKey(_PATH_DECODER.decode(text)) from None


def _check_members(piece: bytes) -> dict[str, None]:
    """Only the keys are kept."""
    text = _decode_text(piece)
    try:
        return dict.fromkeys(_KEYS_DECODER.decode(text))
    except _DuplicateFound:
        raise DuplicateKey(_PATH_DECODER.decode(text)) from None


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _check_objects(text: str) -> None:
    has_surrogates = "\\ud" in text or "\\uD" in text
    try:
        try:
            (_SURROGATES_DECODER if has_surrogates else _DECODER).decode(text)
        except _DuplicateFound:
            raise DuplicateKey(_PATH_DECODER.decode(text)) from None
    except ValueError as error:
        raise MalformedRequest(f"the request is not JSON: {error}") from None
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def _check_case(names: Collection[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        lowered = name.casefold()
        if lowered in seen:
            first = seen[lowered]
            raise DuplicateKey((_shorten(name),), other="" if first == name else _shorten(first))
        seen[lowered] = name


def _check_object(pairs: _Pairs) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _DuplicateFound


def _check_object_with_surrogates(pairs: _Pairs) -> None:
    if len({_replace_surrogates(key) for key, _ in pairs}) != len(pairs):
        raise _DuplicateFound


def _read_unique_keys(pairs: _Pairs) -> list[str]:
    keys = [_replace_surrogates(key) for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise _DuplicateFound
    return keys


def _find_path_in_object(pairs: _Pairs) -> _Path | None:
    """Return the path to a duplicate key in this object or below. Paths from below are among the values."""
    seen: set[str] = set()
    for raw_key, _ in pairs:
        key = _replace_surrogates(raw_key)
        if key in seen:
            return _Path((_shorten(key),))
        seen.add(key)
    for key, value in pairs:
        path = _find_path(value)
        if path is not None:
            return _Path((_shorten(_replace_surrogates(key)), *path))
    return None


def _find_path(value: object) -> _Path | None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            path = _find_path(item)
            if path is not None:
                return _Path((index, *path))
    return value if isinstance(value, _Path) else None


def _replace_surrogates(key: str) -> str:
    return key if key.isascii() else _SURROGATE.sub("\ufffd", key)


def _shorten(key: str) -> str:
    return key if len(key) <= _MAX_KEY_CHARACTERS else f"{key[:_MAX_KEY_CHARACTERS]}…"


def _make_decoder(read_object: Callable[[_Pairs], object]) -> json.JSONDecoder:
    """Make a decoder that keeps only what `read_object` returns, and skips numbers."""
    return json.JSONDecoder(
        object_pairs_hook=read_object, parse_int=bool, parse_float=bool, parse_constant=bool, strict=False
    )


_DECODER = _make_decoder(_check_object)
_SURROGATES_DECODER = _make_decoder(_check_object_with_surrogates)
_KEYS_DECODER = _make_decoder(_read_unique_keys)
_PATH_DECODER = _make_decoder(_find_path_in_object)
_READERS = large_json.PieceReaders(
    items=_check_items, members=_check_members, are_keys_unique=True, keeps_long_strings=False
)
