"""Savings of the edits of traced requests."""

from dataclasses import replace as with_
from decimal import Decimal

import pytest
from msgspec.structs import replace

from foveate.cli.explain.traces import _COMPACTION_STEP, _OVERFLOW_STEP, price_edits
from foveate.engine.steps.history import ApplyCompactions
from foveate.engine.steps.overflow import FitWindow
from foveate.model import CacheUsage, ComparisonOutcome, Savings
from foveate.session.traces import ChargedTrace, TracedCharge, TracedEdit
from tests.support.stores.records import TRACE

CHARGE = TracedCharge(
    cache=CacheUsage(uncached=10, read=30_000, written_5m=4_000, written_1h=600),
    output_tokens=77,
    dollars=Decimal("0.0271"),
    savings=Savings(
        comparison=ComparisonOutcome.SIMULATED,
        without=Decimal("0.135"),
        breakpoints=Decimal("0.08"),
        compaction=Decimal("0.03"),
        context=Decimal("-0.002"),
        keep_alive=Decimal(0),
        simulation_error=Decimal("0.0001"),
    ),
)


def make_edit(step: str, does: str, saved_tokens: int) -> TracedEdit:
    return TracedEdit(step=step, does=does, place="messages[3]", reason="why", saved_tokens=saved_tokens)


def make_trace(*edits: TracedEdit, charge: TracedCharge | None = CHARGE) -> ChargedTrace:
    return ChargedTrace(trace=replace(TRACE, edits=edits), charge=charge)


def test_step_names_match_those_of_the_engine() -> None:
    assert (ApplyCompactions.name, FitWindow.name) == (_COMPACTION_STEP, _OVERFLOW_STEP)


def test_the_saving_of_a_kind_is_split_among_its_edits_by_tokens() -> None:
    edits = price_edits(
        make_trace(
            make_edit("cache", "mark 1h", 3_000),
            make_edit("cache", "mark 5m", 1_000),
            make_edit("fold", "replace", 8_000),
            make_edit("fold", "drop", 0),
            make_edit("fold", "cut", 500),
            make_edit("room", "cut", 1_500),
            make_edit("sections", "insert", -40),
            make_edit("usage", "set", 0),
        )
    )

    assert [edit.dollars for edit in edits] == [
        Decimal("0.06"),
        Decimal("0.02"),
        Decimal("0.024"),
        Decimal(0),
        Decimal("0.0015"),
        Decimal("0.0045"),
        Decimal("-0.002"),
        None,
    ]


@pytest.mark.parametrize("charge", [None, with_(CHARGE, savings=Savings())])
def test_unknown_savings_stay_unknown(charge: TracedCharge | None) -> None:
    (edit,) = price_edits(make_trace(make_edit("cache", "mark", 100), charge=charge))

    assert edit.dollars is None
