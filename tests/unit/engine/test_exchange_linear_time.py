"""Responses are read in linear time, whatever an upstream sends."""

import json
from collections.abc import Callable
from time import thread_time

import pytest

from foveate.engine.exchange import ResponseReader
from foveate.model import Format
from tests.support.oracles.time_growth import superlinear_ratio
from tests.support.strategies.response_seeds import COMPLETE, STREAMED

_SIZE = 2**17
_CHUNK = 700
_NAMES = {
    Format.ANTHROPIC: "anthropic",
    Format.CHAT: "chat",
    Format.RESPONSES: "responses",
    Format.GEMINI: "gemini",
}
_UNITS = (
    "\n", "\r", "\r\n", "\n\n", "\r\n\r\n", "data:", "data: \n", ": a\n", "event: a\n", "[", "{", '"', "\\",
    '{"a":', '"usage":{', 'data: {"usage":{\n\n', 'data: {"type":"error"\n\n', "data: [DONE]\n\n", "[DONE]",
    '"finish_reason":"', '"message_delta"', '"text":"', '"text":"\\', 'completed"', "\0\0\0\x10",
    'data: {"type":"message_stop"}\n\n',
)  # fmt: skip


def _events(api_format: Format) -> list[str]:
    events = STREAMED[_NAMES[api_format]]
    return [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events]


_DELTA = 'data: {{"type":"message_delta","usage":{{"output_tokens":1,{}:1}}}}\n\n'


def _new_name_each_time(size: int) -> bytes:
    return "".join(_DELTA.format(f'"k{number}"') for number in range(size // len(_DELTA))).encode()


def _much_usage_and_many_deltas(size: int) -> bytes:
    much = json.dumps({"type": "message_delta", "usage": {"iterations": [{}] * (size // 8)}})
    return f"data: {much}\n\n".encode() + b"".join(
        _DELTA.format('"k"').encode() for _ in range(size // 2 // len(_DELTA))
    )


def _read(api_format: Format, *, streams: bool) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        reader = ResponseReader(api_format, is_streaming=streams, hides_usage=streams, keeps_body=True)
        for start in range(0, len(data), _CHUNK):
            reader.on_chunk(data[start : start + _CHUNK])
        reader.finish()
        return reader.usage, reader.parts(), reader.is_complete, streams and reader.estimated_output_tokens

    return run


@pytest.mark.slow
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("api_format", _NAMES)
def test_a_repetitive_response_is_read_in_linear_time(api_format: Format, streams: bool) -> None:
    run = _read(api_format, streams=streams)
    run(b"a")  # what is loaded once does not count
    units = [*_UNITS, *_events(api_format), json.dumps(COMPLETE[_NAMES[api_format]])]
    makes: dict[str, Callable[[int], bytes]] = {
        unit: lambda size, unit=unit: (unit * (size // len(unit) + 1)).encode()  # type: ignore[misc]
        for unit in units
    }
    slow = {name: superlinear_ratio(run, make, max_size=_SIZE) for name, make in makes.items()}

    assert {name: ratio for name, ratio in slow.items() if ratio is not None} == {}


@pytest.mark.slow
@pytest.mark.parametrize("make", [_new_name_each_time, _much_usage_and_many_deltas])
def test_usage_that_grows_with_every_event_is_read_in_linear_time(make: Callable[[int], bytes]) -> None:
    """Defect: all usage was read again with each event: half a megabyte took nine seconds."""
    run = _read(Format.ANTHROPIC, streams=True)
    run(make(2**12))
    # Only with many events it takes longer than everything else.
    small, large = (min(_seconds(run, make(size)) for _ in range(5)) for size in (2**13, 2**16))

    assert large < 20 * small


def _seconds(run: Callable[[bytes], object], data: bytes) -> float:
    start = thread_time()
    run(data)
    return thread_time() - start
