"""What is wrong with the gateway, by what `/health` says, and what to do about it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foveate.web.words import counted


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, and what to do; `path` is the page that shows more of it."""

    what: str
    remedy: str
    path: str = ""


def troubles(health: Mapping[str, Any]) -> list[Trouble]:
    """All that is wrong; nothing where all is well."""
    return list(_found(health))


def _found(health: Mapping[str, Any]) -> Iterator[Trouble]:
    config, store, log = health["config"], health["store"], health["log"]
    if not config["valid"]:
        yield Trouble(
            f"The configuration cannot be used as it is: {config['problem']}",
            "What held before still holds. Correct the file: it takes effect with the next request.",
            "/-/configuration",
        )
    if not store["reachable"]:
        yield Trouble(
            f"The store does not answer: {store['problem']}",
            f"See whether {store['where']} can be reached. Until then calls under caps are refused.",
        )
    if failures := health["failures"]:
        told = ", ".join(f"{step} {_times(times)}" for step, times in sorted(failures.items()))
        yield Trouble(
            f"Steps failed in the last five minutes: {told}",
            "Their requests went out without them. The gateway's log says why.",
        )
    waiting, lost = health["bills"]["waiting"], health["bills"]["lost"]
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        yield Trouble(
            f"{counted(waiting, 'bill')} {verb} to be booked, so that sums here are too low",
            "This is done as soon as the store takes them.",
        )
    if lost:
        verb = "was" if lost == 1 else "were"
        yield Trouble(
            f"{counted(lost, 'bill')} {verb} lost since the gateway started, so that sums here are too low",
            "The gateway's log says why. The provider's own account has what was spent.",
        )
    if not log["written"]:
        yield Trouble(
            f"The log cannot be written: {log['problem']}",
            "See whether the disk has room, and whether the gateway may write there.",
        )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
