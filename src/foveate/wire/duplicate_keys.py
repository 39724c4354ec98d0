"""Detection of duplicate keys in the JSON objects of a request.

JSON parsers differ in which of two equal keys they read. Foveate forwards the bytes that came, so an upstream
could read other values than those that Foveate has counted, priced and routed by.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from foveate.errors import DuplicateKey, MalformedRequest
from foveate.wire import large_json
from foveate.wire.body import TOO_DEEP

_MAX_KEY_CHARACTERS = 64
_SURROGATE = re.compile("[\ud800-\udfff]")

_Pairs = list[tuple[str, Any]]


class _Found(Exception):
    """An object has a duplicate key."""


class _Path(tuple[str | int, ...]):
    """The keys and indexes that lead to a duplicate key."""

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
    if len(data) >= large_json.LARGE_BYTES:
        check_large(data)
    else:
        _check_objects(_text(data))
    _check_case(names)


def has_unique_keys(text: str) -> bool:
    """Whether `text` is JSON without duplicate keys: only then a parser reads all of it."""
    try:
        if len(text) >= large_json.LARGE_BYTES:
            check_large(text.encode("utf-8", "surrogatepass"))
        else:
            _check_objects(text)
    except MalformedRequest:
        return False
    return True


def check_large(data: bytes, sizes: large_json.Sizes = large_json.SIZES) -> None:
    """Check the same in pieces, so that other threads do not wait long."""
    try:
        large_json.value(data, sizes, _READERS)
    except DuplicateKey as error:
        steps = [_shortened(step) if isinstance(step, str) else step for step in error.path]
        raise DuplicateKey(tuple(steps)) from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise MalformedRequest(f"the request is not JSON: {error}") from None
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def _items_of(piece: bytes) -> list[None]:
    """As many items as a list has, which are checked, and of which nothing else is kept."""
    text = _text(piece)
    try:
        return [None] * len(_KEYS_DECODER.decode(text))
    except _Found:
        raise DuplicateKey(_PATH_DECODER.decode(text)) from None


def _members_of(piece: bytes) -> dict[str, None]:
    """The keys of an object whose values are checked."""
    text = _text(piece)
    try:
        return dict.fromkeys(_KEYS_DECODER.decode(text))
    except _Found:
        raise DuplicateKey(_PATH_DECODER.decode(text)) from None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _check_objects(text: str) -> None:
    has_surrogates = "\\ud" in text or "\\uD" in text
    try:
        try:
            (_SURROGATES_DECODER if has_surrogates else _DECODER).decode(text)
        except _Found:
            raise DuplicateKey(_PATH_DECODER.decode(text)) from None
    except ValueError as error:
        raise MalformedRequest(f"the request is not JSON: {error}") from None
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def _check_case(names: Collection[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        if folded in seen:
            first = seen[folded]
            raise DuplicateKey((_shortened(name),), other="" if first == name else _shortened(first))
        seen[folded] = name


def _check_object(pairs: _Pairs) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Found


def _check_object_with_surrogates(pairs: _Pairs) -> None:
    if len({_without_surrogates(key) for key, _ in pairs}) != len(pairs):
        raise _Found


def _keys_of_object(pairs: _Pairs) -> list[str]:
    keys = [_without_surrogates(key) for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise _Found
    return keys


def _path_in_object(pairs: _Pairs) -> _Path | None:
    """The path to a duplicate key of this object or else of one inside, whose paths are among the values."""
    seen: set[str] = set()
    for raw_key, _ in pairs:
        key = _without_surrogates(raw_key)
        if key in seen:
            return _Path((_shortened(key),))
        seen.add(key)
    for key, value in pairs:
        path = _path_in(value)
        if path is not None:
            return _Path((_shortened(_without_surrogates(key)), *path))
    return None


def _path_in(value: object) -> _Path | None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            path = _path_in(item)
            if path is not None:
                return _Path((index, *path))
    return value if isinstance(value, _Path) else None


def _without_surrogates(key: str) -> str:
    return key if key.isascii() else _SURROGATE.sub("\ufffd", key)


def _shortened(key: str) -> str:
    return key if len(key) <= _MAX_KEY_CHARACTERS else f"{key[:_MAX_KEY_CHARACTERS]}…"


def _decoder(read_object: Callable[[_Pairs], object]) -> json.JSONDecoder:
    """A decoder that keeps nothing of an object but what `read_object` returns, and reads no numbers."""
    return json.JSONDecoder(
        object_pairs_hook=read_object, parse_int=bool, parse_float=bool, parse_constant=bool, strict=False
    )


_DECODER = _decoder(_check_object)
_SURROGATES_DECODER = _decoder(_check_object_with_surrogates)
_KEYS_DECODER = _decoder(_keys_of_object)
_PATH_DECODER = _decoder(_path_in_object)
_READERS = large_json.Readers(items=_items_of, members=_members_of, are_keys_unique=True)
