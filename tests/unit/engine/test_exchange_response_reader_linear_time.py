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


def _make_deltas_with_new_names(size: int) -> bytes:
    return "".join(_DELTA.format(f'"k{number}"') for number in range(size // len(_DELTA))).encode()


def _make_large_usage_and_deltas(size: int) -> bytes:
    large_delta = json.dumps({"type": "message_delta", "usage": {"iterations": [{}] * (size // 8)}})
    return f"data: {large_delta}\n\n".encode() + b"".join(
        _DELTA.format('"k"').encode() for _ in range(size // 2 // len(_DELTA))
    )


def _make_reader(api_format: Format, *, is_streaming: bool) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        reader = ResponseReader(
            api_format, is_streaming=is_streaming, hides_usage=is_streaming, keeps_body=True
        )
        for start in range(0, len(data), _CHUNK):
            reader.on_chunk(data[start : start + _CHUNK])
        reader.finish()
        return reader.usage, reader.parts(), reader.is_complete, is_streaming and reader.estimated_output_tokens

    return run


@pytest.mark.slow
@pytest.mark.parametrize("is_streaming", [True, False])
@pytest.mark.parametrize("api_format", _NAMES)
def test_a_repetitive_response_is_read_in_linear_time(api_format: Format, is_streaming: bool) -> None:
    run = _make_reader(api_format, is_streaming=is_streaming)
    run(b"a")  # one-time loading is not measured
    units = [*_UNITS, *_events(api_format), json.dumps(COMPLETE[_NAMES[api_format]])]
    makers: dict[str, Callable[[int], bytes]] = {
        unit: lambda size, unit=unit: (unit * (size // len(unit) + 1)).encode() for unit in units
    }
    ratios = {name: superlinear_ratio(run, make, max_size=_SIZE) for name, make in makers.items()}

    assert {name: ratio for name, ratio in ratios.items() if ratio is not None} == {}


@pytest.mark.slow
@pytest.mark.parametrize("make", [_make_deltas_with_new_names, _make_large_usage_and_deltas])
def test_usage_that_grows_with_every_event_is_read_in_linear_time(make: Callable[[int], bytes]) -> None:
    """Defect: all usage was read again with each event: half a megabyte took nine seconds."""
    run = _make_reader(Format.ANTHROPIC, is_streaming=True)
    run(make(2**12))
    # Only with many events does this dominate the time.
    small, large = (min(_measure_seconds(run, make(size)) for _ in range(5)) for size in (2**13, 2**16))

    assert large < 20 * small


def _measure_seconds(run: Callable[[bytes], object], data: bytes) -> float:
    start = thread_time()
    run(data)
    return thread_time() - start
