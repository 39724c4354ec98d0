"""`./bench gateway`: the load generator, the instant provider, and a short complete run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway import AIMS
from benchmarks.gateway_load import LoadResult
from benchmarks.gateway_processes import Server, cpu_seconds, upstream
from benchmarks.gateway_requests import KINDS, SESSION_BYTES, SESSION_TURNS, requests
from benchmarks.gateway_rounds import LoadCase, LoadGenerator, load_generator, rows
from benchmarks.gateway_upstream import SLOW_CHUNKS
from benchmarks.harness import BadData

ROOT = Path(__file__).parents[2]
# Other tests delay its processes, and a run with delays is not valid. The condition is a string, so that it is
# evaluated in the worker: tests are collected before workers are forked.
_BY_HAND = pytest.mark.skipif(
    "'PYTEST_XDIST_WORKER' in os.environ", reason="a benchmark wants the machine to itself: run it by hand"
)
_QUICK = [sys.executable, "-m", "benchmarks", "gateway", "--quick", "--json"]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with upstream(tmp_path_factory.mktemp("provider")) as server:
        yield server


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadGenerator]:
    with load_generator(tmp_path_factory.mktemp("load")) as process:
        yield process


def _bodies(kind: str, seed: str, number: int) -> list[Any]:
    return [json.loads(raw.partition(b"\r\n\r\n")[2]) for raw in islice(requests(kind, seed), number)]


def test_each_request_of_a_session_is_the_next_turn_of_a_tool_using_agent() -> None:
    bodies = _bodies("session", "a", 3)

    assert len(bodies[0]["messages"]) == 1 + 2 * SESSION_TURNS
    assert len(json.dumps(bodies[0])) == pytest.approx(SESSION_BYTES, rel=0.05)
    for body, longer in pairwise(bodies):
        assert longer["messages"][: len(body["messages"])] == body["messages"]
        call, result = longer["messages"][len(body["messages"]) :]
        assert call["content"][1]["id"] == result["content"][0]["tool_use_id"]
        assert longer["tools"] == body["tools"]


def test_requests_differ_unless_they_repeat_on_purpose() -> None:
    for kind in KINDS:
        request_bodies = [json.dumps(body) for seed in "ab" for body in _bodies(kind, seed, 3)]

        assert len(set(request_bodies)) == (2 if kind == "same" else 6), kind


@pytest.mark.process
@pytest.mark.parametrize("kind", ["small", "small chat", "session", "stream", "stream paced"])
def test_the_provider_answers_every_kind_of_request_and_the_client_times_it(
    provider: Server, load: LoadGenerator, kind: str
) -> None:
    result = load.measure(provider, LoadCase(kind=kind, connections=2, seconds=5.0, max_requests=3))

    assert len(result.answer_ms) == len(result.first_byte_ms) == 6
    assert all(
        0 < first <= total_ms for first, total_ms in zip(result.first_byte_ms, result.answer_ms, strict=True)
    )
    assert len(result.cold_ms) == (2 if KINDS[kind].is_cold_first else 0)
    assert len(result.piece_ms) == (6 * SLOW_CHUNKS if KINDS[kind].is_slow else 0)
    assert all(0 < ms < total_ms for ms in result.piece_ms for total_ms in result.answer_ms)


@pytest.mark.process
def test_sessions_continue_in_the_next_round(provider: Server, load: LoadGenerator) -> None:
    case = LoadCase(kind="same", connections=2, seconds=5.0, max_requests=1)

    assert load.measure(provider, case).cold_ms
    assert not load.measure(provider, case).cold_ms


@pytest.mark.process
def test_an_error_response_is_reported_and_not_timed(tmp_path: Path, load: LoadGenerator) -> None:
    log = tmp_path / "log"
    log.write_text("what the server said", encoding="utf-8")
    code = (
        "import http.server as h\n"
        "server = h.HTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler)\n"
        "print(server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        server = Server("refusing", int(process.stdout.readline()), process.pid, log)
        with pytest.raises(BadData, match=r"(?s)refusing, small: .*501.*what the server said"):
            load.measure(server, LoadCase(kind="small", connections=1, seconds=1.0))
        process.kill()


@pytest.mark.process
def test_cpu_time_includes_child_processes() -> None:
    busy = "import time; until = time.process_time() + 0.3\nwhile time.process_time() < until: pass"
    code = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); print(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_seconds(process.pid) >= 0.3


def test_overhead_is_measured_against_the_direct_call_of_the_same_round() -> None:
    def make_result(ms: float) -> LoadResult:
        return LoadResult(
            answer_ms=[ms] * 10,
            first_byte_ms=[ms] * 10,
            cold_ms=[],
            piece_ms=[],
            elapsed_seconds=1.0,
            answer_bytes=0,
            gateway_cpu_seconds=0.02,
            load_cpu_seconds=0.5,
        )

    results = {
        # The machine was busy after the first round.
        "direct": [make_result(1.0), make_result(5.0), make_result(5.0)],
        "foveate": [make_result(1.5), make_result(5.5), make_result(9.0)],
    }
    direct, foveate = rows(LoadCase(kind="small", connections=1, seconds=1.0), results)

    assert direct["added_p50_ms"] is None
    assert foveate["added_p50_ms"] == 0.5
    assert (foveate["per_second"], foveate["cpu_us"], foveate["load_cpu"]) == (10.0, 2000.0, 0.5)


@_BY_HAND
@pytest.mark.process
def test_a_short_run_measures_the_gateway_and_breaks_down_its_time() -> None:
    process = subprocess.run(
        [*_QUICK, "--only", "small,steps,foveate,foveate-usual"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert {(row["case"], row["at_once"], row["who"]) for row in report["rows"]} == {
        (case, at_once, server)
        for case, at_once in (("small", 1), ("small paced", 1), ("small", 32))
        for server in ("direct", "foveate", "foveate-usual")
    }
    # A short row may use less CPU time than the clock of processes shows.
    for server in ("direct", "foveate", "foveate-usual"):
        assert sum(row["cpu_us"] for row in report["rows"] if row["who"] == server) > 0
    assert {row["part"] for row in report["tables"]["where the time goes"]} >= {"session", "cache", "settle"}
    assert [row["aim"] for row in report["tables"]["aims"]] == [name for name, _, _ in AIMS[:2]]


@pytest.mark.process
def test_an_unknown_part_is_rejected_with_a_list_of_the_known_ones() -> None:
    process = subprocess.run([*_QUICK, "--only", "smal"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert process.returncode == 1
    assert "no smal; there are: small," in process.stderr


@_BY_HAND
@pytest.mark.process
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_no_process_is_left_running_after_the_benchmark_is_terminated(
    signal_number: signal.Signals, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [*_QUICK, "--only", "small,relay"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 30
        while len(descendants := _descendants(process.pid)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal_number)
        assert process.wait(30) == 128 + signal_number

    assert not [pid for pid in descendants if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.iterdir())


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [descendant for child in map(int, children) for descendant in (child, *_descendants(child))]
