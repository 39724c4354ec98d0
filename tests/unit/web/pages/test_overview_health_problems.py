"""Health problems and their remedies."""

from collections.abc import Mapping
from typing import Any

import pytest

from foveate.errors import BadSetting
from foveate.gateway.observability.health import HealthStatus, health_to_json
from foveate.web.pages.overview import list_health_problems

HEALTHY = HealthStatus(version="1", store="foveate.sqlite")


def test_a_healthy_gateway_has_no_problems() -> None:
    assert list_health_problems(health_to_json(HEALTHY)) == []


@pytest.mark.parametrize(
    ("fields", "text", "remedy"),
    [
        (
            {"config": BadSetting("foveate.yaml", "unknown setting 'prot'", line=7)},
            "foveate.yaml",
            "The previous configuration stays in effect",
        ),
        ({"store_problem": "no answer within 1 s"}, "no answer within 1 s", "foveate.sqlite"),
        ({"failures": {"fold": 2, "cache": 1}}, "prompt cache once, compaction 2 times", "without these steps"),
        ({"charges_waiting": 1}, "1 charge is not stored yet", "as soon as the store"),
        ({"charges_lost": 1_200}, "1,200 charges were lost", "See the gateway's log"),
        ({"log_problem": "the disk is full"}, "the disk is full", "free disk space"),
    ],
)
def test_every_problem_is_shown_with_a_remedy(fields: Mapping[str, Any], text: str, remedy: str) -> None:
    status = HealthStatus(version="1", store="foveate.sqlite", **fields)

    assert not status.is_healthy
    (problem,) = list_health_problems(health_to_json(status))
    assert text in problem.problem
    assert remedy in problem.remedy


def test_all_problems_are_listed() -> None:
    status = HealthStatus(
        version="1", store_problem="gone", charges_waiting=3, charges_lost=1, log_problem="full"
    )

    assert len(list_health_problems(health_to_json(status))) == 4
