"""Problems of the gateway that pages show, with their remedies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foveate.web.formatting import format_count


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """A problem and its remedy; `path` is a page with details."""

    problem: str
    remedy: str
    path: str = ""


def list_health_problems(health: Mapping[str, Any]) -> list[HealthProblem]:
    """List all problems that `/health` reports."""
    return list(_find_health_problems(health))


def _find_health_problems(health: Mapping[str, Any]) -> Iterator[HealthProblem]:
    config, store, log = health["config"], health["store"], health["log"]
    if not config["valid"]:
        yield HealthProblem(
            f"The configuration cannot be used as it is: {config['problem']}",
            "What held before still holds. Correct the file: it takes effect with the next request.",
            "/-/configuration",
        )
    if not store["reachable"]:
        yield HealthProblem(
            f"The store does not answer: {store['problem']}",
            f"See whether {store['where']} can be reached. Until then calls under caps are refused.",
        )
    if failures := health["failures"]:
        failed_steps = ", ".join(f"{step} {_format_times(times)}" for step, times in sorted(failures.items()))
        yield HealthProblem(
            f"Steps failed in the last five minutes: {failed_steps}",
            "Their requests went out without them. The gateway's log says why.",
        )
    waiting, lost = health["bills"]["waiting"], health["bills"]["lost"]
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        yield HealthProblem(
            f"{format_count(waiting, 'bill')} {verb} to be booked, so that sums here are too low",
            "This is done as soon as the store takes them.",
        )
    if lost:
        verb = "was" if lost == 1 else "were"
        yield HealthProblem(
            f"{format_count(lost, 'bill')} {verb} lost since the gateway started,"
            " so that sums here are too low",
            "The gateway's log says why. The provider's own account has what was spent.",
        )
    if not log["written"]:
        yield HealthProblem(
            f"The log cannot be written: {log['problem']}",
            "See whether the disk has room, and whether the gateway may write there.",
        )


def _format_times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
