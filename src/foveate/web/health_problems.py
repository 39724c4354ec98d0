"""Problems of the gateway that pages show, with their remedies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foveate.session.traces import describe_step
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
            f"The configuration file is invalid: {config['problem']}",
            "The previous configuration stays in effect. Correct the file;"
            " the gateway reloads it with the next request.",
            "/-/configuration",
        )
    if not store["reachable"]:
        yield HealthProblem(
            f"The store is unavailable: {store['problem']}",
            f"Check that {store['where']} is reachable. Until then, the gateway rejects calls under caps.",
        )
    if failures := health["failures"]:
        failed_steps = ", ".join(
            f"{describe_step(step)} {_format_times(times)}" for step, times in sorted(failures.items())
        )
        yield HealthProblem(
            f"Steps failed in the last five minutes: {failed_steps}",
            "The gateway sent the requests without these steps. See its log for the reason.",
        )
    waiting, lost = health["bills"]["waiting"], health["bills"]["lost"]
    if waiting:
        verb = "is" if waiting == 1 else "are"
        yield HealthProblem(
            f"{format_count(waiting, 'charge')} {verb} not stored yet, so the totals here are too low",
            "The gateway stores pending charges as soon as the store accepts them.",
        )
    if lost:
        verb = "was" if lost == 1 else "were"
        yield HealthProblem(
            f"{format_count(lost, 'charge')} {verb} lost since the gateway started,"
            " so the totals here are too low",
            "See the gateway's log for the reason, and the provider's account for the actual spending.",
        )
    if not log["written"]:
        yield HealthProblem(
            f"The gateway cannot write its log: {log['problem']}",
            "Check the free disk space and the permissions of the log file.",
        )


def _format_times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
