"""Speed of counting texts and a growing session, compared with tiktoken, litellm, LangChain; stalls; growth.

Every text is new to all contenders. The order changes from round to round, and results are of the median round.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import foveate
from benchmarks import stalls
from benchmarks.corpus import Source, cjk, sources
from benchmarks.growing_session import TURNS, WINDOWS, SessionTimings, time_growing_session
from benchmarks.harness import Cell, Report
from benchmarks.tiktoken_peer import o200k
from foveate import formats
from foveate.tokens import Conversation, counter_for
from foveate.tokens.remote.counter import FallbackCounter

_MODEL = "gpt-4o"
_ROUNDS = 3
# Size in bytes, and how many texts of it are counted in a round.
_SIZES = {"20b": (20, 1500), "500b": (500, 300), "5kb": (5_000, 20), "50kb": (50_000, 2), "1mb": (1_000_000, 1)}
_MEGABYTE = 1_000_000

Count = Callable[[str], object]
Timed = Mapping[tuple[str, str], Mapping[str, list[float]]]


FIGURES = (
    "speedup_over_<peer>_<size>",
    "speedup_over_<peer>_<size>_worst_kind",
    "speedup_over_<peer>_<size>_<kind>",
    "counts_as_tiktoken_share",
    "growing_session_turns",
    "growing_session_seconds",
    "growing_session_count_request_seconds",
    "growing_session_speedup_over_<peer>",
    "growing_session_cost_per_turn_<turn>_over_10",
    "longest_stall_ms_<what>",
    "worst_growth",
    "cores",
    "load_before",
)


def run(data: Path | None) -> Report:
    """Return MB/s, calls/s and ratios."""
    load = os.getloadavg()[0]
    texts = sources(data)
    encode = o200k()
    import litellm

    contenders: dict[str, Count] = {
        "foveate": lambda text: foveate.count(text).tokens,
        "tiktoken": lambda text: len(encode(text)),
        "litellm": lambda text: litellm.token_counter(model=_MODEL, text=text),
    }
    timed, agreeing = _time_side_by_side(texts, contenders)
    session = time_growing_session(texts, encode)
    waits = _waits(texts["prose"].take(_MEGABYTE), encode)
    growth = _growth()
    return Report(
        figures={
            **_speedups(timed),
            "counts_as_tiktoken_share": round(agreeing, 4),
            **_session_figures(session),
            **{f"longest_stall_ms_{name}": ms for name, ms in waits["foveate"].items()},
            "worst_growth": max(ratio for ratio, _ in growth.values()),
            "cores": os.cpu_count() or 1,
            "load_before": round(load, 2),
        },
        peers=_peers(timed, session, waits["tiktoken"]),
        rows=[*_speed_rows(timed), *session.rows, *_growth_rows(growth)],
    )


def _time_side_by_side(texts: Mapping[str, Source], contenders: Mapping[str, Count]) -> tuple[Timed, float]:
    """Return seconds of each round by kind and size, and the number of texts in which tiktoken agrees."""
    timed: dict[tuple[str, str], dict[str, list[float]]] = {}
    agreeing: list[bool] = []
    order = list(contenders)
    for kind, source in texts.items():
        for count in contenders.values():
            count(source.take(2000))  # loads its data
        for size, (size_bytes, calls) in _SIZES.items():
            seconds = timed.setdefault((kind, size), {name: [] for name in contenders})
            for _ in range(_ROUNDS):
                new_texts = [source.take(size_bytes) for _ in range(calls)]
                tokens = {}
                for name in order:
                    count = contenders[name]
                    started = time.perf_counter()
                    tokens[name] = [count(text) for text in new_texts]
                    seconds[name].append(time.perf_counter() - started)
                agreeing += [
                    ours == theirs for ours, theirs in zip(tokens["foveate"], tokens["tiktoken"], strict=True)
                ]
                order.append(order.pop(0))
    return timed, sum(agreeing) / len(agreeing)


def _speedup(timed: Timed, kind: str, size: str, over: str) -> float:
    rounds = timed[kind, size]
    return statistics.median(
        theirs / ours for theirs, ours in zip(rounds[over], rounds["foveate"], strict=True)
    )


def _kinds(timed: Timed) -> list[str]:
    return list(dict.fromkeys(kind for kind, _ in timed))


def _speedups(timed: Timed) -> dict[str, float]:
    """Return by size the geometric mean over kinds and the worst kind, then each kind."""
    figures: dict[str, float] = {}
    for over in ("tiktoken", "litellm"):
        for size in _SIZES:
            speedups = {kind: _speedup(timed, kind, size, over) for kind in _kinds(timed)}
            name = f"speedup_over_{over}_{size}"
            figures[name] = statistics.geometric_mean(speedups.values())
            figures[f"{name}_worst_kind"] = min(speedups.values())
            figures |= {f"{name}_{kind}": ratio for kind, ratio in speedups.items()}
    return {name: round(value, 2) for name, value in figures.items()}


def _speed_rows(timed: Timed) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for (kind, size), seconds in timed.items():
        size_bytes, calls = _SIZES[size]
        for who, rounds in seconds.items():
            per_call = statistics.median(rounds) / calls
            rows.append(
                {
                    "measure": "texts",
                    "who": who,
                    "kind": kind,
                    "bytes": size_bytes,
                    "mb_per_second": round(size_bytes / per_call / 1e6, 3),
                    "calls_per_second": round(1 / per_call, 1),
                }
            )
    return rows


def _mb_per_second(timed: Timed, who: str) -> dict[str, float]:
    return {
        f"mb_per_second_{size}_{kind}": round(
            _SIZES[size][0] * _SIZES[size][1] / statistics.median(s[who]) / 1e6, 3
        )
        for (kind, size), s in timed.items()
    }


def _session_figures(session: SessionTimings) -> dict[str, float]:
    ours, turn = session.total_seconds["foveate"], session.turn_seconds
    over = {
        "tiktoken_memo": "tiktoken_memo",
        "litellm": "litellm",
        "langchain": "langchain",
    }
    return {
        "growing_session_turns": TURNS,
        "growing_session_seconds": round(ours, 4),
        "growing_session_count_request_seconds": round(session.total_seconds["foveate.count_request"], 4),
        **{
            f"growing_session_speedup_over_{name}": round(session.total_seconds[who] / ours, 2)
            for name, who in over.items()
        },
        **{
            f"growing_session_cost_per_turn_{later}_over_10": round(turn[later] / turn[10], 3)
            for later in WINDOWS[1:]
        },
    }


def _peers(timed: Timed, session: SessionTimings, waits: Mapping[str, float]) -> dict[str, dict[str, object]]:
    total = {name: round(seconds, 4) for name, seconds in session.total_seconds.items()}
    stalled = {f"longest_stall_ms_{name}": ms for name, ms in waits.items()}
    return {
        "tiktoken": {
            **_mb_per_second(timed, "tiktoken"),
            "growing_session_seconds": total["tiktoken_memo"],
            **stalled,
        },
        "litellm": {**_mb_per_second(timed, "litellm"), "growing_session_seconds": total["litellm"]},
        "langchain": {"growing_session_seconds": total["langchain"]},
    }


def _waits(prose: str, encode: Callable[[str], list[int]]) -> dict[str, dict[str, float]]:
    """Return the longest stalls that Foveate and tiktoken cause. A number in front makes every text new."""
    one_letter = "a" * _MEGABYTE
    with_special_tokens = prose.replace("\n\n", "\n<|endoftext|>\n")
    messages = [{"role": "user", "content": prose[at : at + 1500]} for at in range(0, _MEGABYTE - 1500, 1500)]
    body = {"model": _MODEL, "messages": messages}

    def converse(number: int) -> None:
        conversation = Conversation(body)
        conversation.append({"role": "user", "content": f"{number}"})
        conversation.count()

    def count_request(number: int) -> None:
        foveate.count_request({**body, "messages": [{"role": "user", "content": f"{number}"}, *messages]})

    cascade = FallbackCounter(counter_for)
    request = formats.parse_request(body)

    async def count_request_on_loop(number: int) -> None:
        first = f'{{"role": "user", "content": "{number}"}}'.encode()
        await cascade.count_request(replace(request, messages=(first, *request.messages)))

    ours = stalls.longest_stalls_ms(
        {
            "1mb_prose": lambda number: foveate.count(f"{number}{prose}"),
            "1mb_one_letter": lambda number: foveate.count(f"{number}{one_letter}"),
            "1mb_special_tokens": lambda number: foveate.count(f"{number}{with_special_tokens}"),
            "conversation": converse,
            "count_request": count_request,
            "python_loop": stalls.python_loop,
        }
    )
    ours |= {
        f"event_loop_{name}": ms
        for name, ms in stalls.longest_loop_stalls_ms(
            {
                "1mb_prose": lambda number: cascade.count_text(f"{number}{prose}", _MODEL),
                "1mb_one_letter": lambda number: cascade.count_text(f"{number}{one_letter}", _MODEL),
                "request": count_request_on_loop,
            }
        ).items()
    }
    theirs = stalls.longest_stalls_ms({"1mb_prose": lambda number: encode(f"{number}{prose}")})
    return {"foveate": ours, "tiktoken": theirs}


def _growth() -> dict[str, tuple[float, float]]:
    """Return time(4n) / (4 time(n)) for inputs that are hard on tokenizers."""
    units = {
        "one letter": "a",
        "spaces": " ",
        "newlines": "\n",
        "punctuation": "!",
        "mixed punctuation": "?!.,;:-_()[]{}/\\'\"",
        "digits": "7",
        "emoji": "😀",
        "combining marks": "\u0301",
        "letters with marks": "e\u0301",
        "cjk without punctuation": cjk(_MEGABYTE, stops=False),
    }
    return {name: _growth_ratio(unit) for name, unit in units.items()}


def _growth_ratio(unit: str) -> tuple[float, float]:
    """Return the ratio, and the seconds of the larger input."""
    small = _min_seconds(_repeat_to_size(unit, _MEGABYTE // 4))
    large = _min_seconds(_repeat_to_size(unit, _MEGABYTE))
    return round(large / (4 * small), 3), large


def _repeat_to_size(unit: str, size_bytes: int) -> str:
    width = len(unit.encode())
    return (unit * (size_bytes // width + 1)).encode()[:size_bytes].decode("utf-8", "ignore")


def _min_seconds(text: str) -> float:
    times = []
    for number in range(5):
        fresh = f"{number}{text}"
        started = time.perf_counter()
        foveate.count(fresh)
        times.append(time.perf_counter() - started)
    return min(times)


def _growth_rows(growth: Mapping[str, tuple[float, float]]) -> Sequence[Mapping[str, Cell]]:
    return [
        {
            "measure": "1 MB over 4 × 250 KB",
            "who": "foveate",
            "kind": name,
            "ratio": ratio,
            "seconds": round(s, 4),
        }
        for name, (ratio, s) in growth.items()
    ]
