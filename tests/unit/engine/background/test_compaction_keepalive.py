"""Before a cache expires, either a keep-alive request is sent or the session is compacted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from foveate.compaction.edit_timing import EditPrices, EditState, Moment, ScheduledEdits, TokenPrices
from foveate.compaction.forecast import Forecast
from foveate.cost.admission import Admission
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.background.compaction import SessionCompactor
from foveate.engine.options import SpendingOptions
from foveate.engine.request_context import RequestContext
from foveate.engine.spending.edit_planner import EditAssessment
from tests.support.clients.summarizer import ScriptedModel
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore
from tests.support.stores.recording_ledger import RecordingLedger

ASSESSMENT = EditAssessment(
    state=EditState(moment=Moment.EXPIRY, request_tokens=90_000, preamble_tokens=0, cached_tokens=90_000),
    forecast=Forecast(requests=(), growth_tokens=1_000.0),
    prices=EditPrices(
        base=TokenPrices(uncached=5e-7, read=5e-8, write=6.25e-7, output=2.5e-6),
        tiers=((80_000, TokenPrices(uncached=1e-6, read=1e-7, write=1.25e-6, output=5e-6)),),
    ),
    tokens_per_raw_token=1.0,
)
PLAN = ScheduledEdits(compacts=True, gain_dollars=0.3, cost_dollars=0.1)


class PlannedKeepAlive:
    def __init__(self, saved_tokens: float) -> None:
        self._saved_tokens = saved_tokens

    def saved_tokens(self, context: RequestContext) -> float:
        del context
        return self._saved_tokens

    def forget(self, context: RequestContext) -> Callable[[], None]:
        del context
        return lambda: None


@pytest.mark.parametrize(("saved_tokens", "keeps_alive"), [(0, False), (199_000, False), (201_000, True)])
def test_the_one_that_is_worth_more_is_chosen(saved_tokens: float, keeps_alive: bool) -> None:
    ledger = RecordingLedger()
    compactor = SessionCompactor(
        InMemoryCompactionStore(),
        ScriptedModel(ledger),
        Admission(ledger, clock=lambda: 0.0),
        lambda: SpendingOptions(caps=(), prices=PriceBook()),
        holder="this one",
        clock=lambda: 0.0,
    )
    compactor.keep_alive = PlannedKeepAlive(saved_tokens)
    context = cast(RequestContext, SimpleNamespace())

    assert compactor.keep_alive_pays_more(context, ASSESSMENT, PLAN) is keeps_alive
    compactor.keep_alive = None
    assert not compactor.keep_alive_pays_more(context, ASSESSMENT, PLAN)
