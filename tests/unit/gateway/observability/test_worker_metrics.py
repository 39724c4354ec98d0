"""Metrics of several workers are summed, and gauges of dead ones are dropped."""

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.engine.metrics import definitions
from foveate.engine.metrics.registry import MetricsRegistry, Sample, merge_samples
from foveate.gateway.observability import worker_metrics
from tests.support.harness.example_limits import limit_examples


def make_samples(requests: int, *, open_requests: int, read: int, is_valid: bool) -> list[Sample]:
    registry = MetricsRegistry()
    registry.scalar(definitions.REQUESTS, "ana", "anthropic", "m", "200").value += requests
    registry.scalar(definitions.OPEN_REQUESTS).value = open_requests
    registry.scalar(definitions.CONFIG_VALID).value = int(is_valid)
    registry.scalar(definitions.WINDOW_READ, "ana").value = read
    registry.scalar(definitions.WINDOW_INPUT, "ana").value = 100
    registry.histogram(definitions.ADDED_SECONDS).observe(0.001 * requests)
    return registry.samples()


def write_metrics(folder: Path, requests: int) -> None:
    worker_metrics.write_samples(folder, make_samples(requests, open_requests=1, read=50, is_valid=True))


def run_worker(folder: Path, requests: int) -> int:
    process = multiprocessing.get_context("spawn").Process(target=write_metrics, args=(folder, requests))
    process.start()
    process.join()
    assert process.pid is not None
    assert process.exitcode == 0
    return process.pid


def sample_values(samples: list[Sample]) -> dict[str, list[float]]:
    return {sample.name: sample.values for sample in samples}


@pytest.mark.slow
@pytest.mark.process
def test_any_worker_shows_the_metrics_of_all_and_the_counters_of_dead_ones() -> None:
    environment: dict[str, str] = {}
    folder = worker_metrics.create_folder(environment)
    try:
        assert worker_metrics.find_folder(environment) == folder
        first, second = run_worker(folder, 3), run_worker(folder, 4)
        write_metrics(folder, 1000)  # our own file is not another worker's
        own_samples = make_samples(5, open_requests=2, read=90, is_valid=False)

        merged = sample_values(merge_samples([(own_samples, True), *worker_metrics.read_other_workers(folder)]))
        assert merged["foveate_requests_total"] == [12]
        assert merged["foveate_open_requests"] == [4]
        assert merged["foveate_config_valid"] == [0]
        assert merged["foveate_cache_window_read_tokens"] == [190]
        assert sum(merged["foveate_added_seconds"][1:]) == 3

        worker_metrics.mark_worker_dead(first, folder)
        worker_metrics.mark_worker_dead(second, folder)
        worker_metrics.mark_worker_dead(second, folder)
        merged = sample_values(merge_samples([(own_samples, True), *worker_metrics.read_other_workers(folder)]))
        assert merged["foveate_requests_total"] == [12]
        assert merged["foveate_open_requests"] == [2]
    finally:
        worker_metrics.remove_folder(folder)
    assert not folder.exists()


def test_each_start_creates_a_new_folder() -> None:
    folders = [worker_metrics.create_folder({}) for _ in range(2)]
    for folder in folders:
        worker_metrics.remove_folder(folder)

    assert folders[0] != folders[1]
    assert worker_metrics.find_folder({}) is None


def test_a_deleted_folder_is_recreated_at_the_next_write(tmp_path: Path) -> None:
    """Regression: /metrics failed until a restart once somebody had deleted the folder."""
    folder = worker_metrics.create_folder({}, parent=tmp_path)
    worker_metrics.remove_folder(folder)

    assert worker_metrics.read_other_workers(folder) == []
    write_metrics(folder, 3)
    assert [path.suffix for path in folder.iterdir()] == [".live"]
    assert folder.stat().st_mode & 0o777 == 0o700


def create_folder_and_die(parent: Path) -> None:
    worker_metrics.create_folder({}, parent=parent)
    os._exit(0)


@pytest.mark.process
def test_folders_of_killed_gateways_are_removed_but_not_those_in_use(tmp_path: Path) -> None:
    """Regression: the folder of a killed gateway stayed forever."""
    process = multiprocessing.get_context("spawn").Process(target=create_folder_and_die, args=(tmp_path,))
    process.start()
    process.join()
    (abandoned,) = tmp_path.iterdir()
    in_use = worker_metrics.create_folder({}, parent=tmp_path)
    assert abandoned.exists()  # it has just been written to
    for folder in (abandoned, in_use):
        os.utime(folder, (0, 0))

    new = worker_metrics.create_folder({}, parent=tmp_path)

    assert {*tmp_path.iterdir()} == {in_use, new}


@settings(max_examples=limit_examples(50))
@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=6))
def test_counters_survive_crashes_and_are_never_counted_twice(workers: list[tuple[int, bool]]) -> None:
    processes = [
        (make_samples(number, open_requests=number, read=0, is_valid=True), is_alive)
        for number, is_alive in workers
    ]

    merged = sample_values(merge_samples(processes))

    assert merged["foveate_requests_total"] == [sum(number for number, _ in workers)]
    alive = [number for number, is_alive in workers if is_alive]
    assert merged.get("foveate_open_requests", [0]) == [sum(alive)]
