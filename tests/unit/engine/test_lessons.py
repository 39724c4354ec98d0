"""What bills teach is kept now and then, together, and a store that is away costs nothing but that."""

from collections.abc import Mapping

from foveate.engine.behind import Behind
from foveate.engine.calibrating import Calibrations
from foveate.engine.calls import Incoming, Outgoing
from foveate.engine.exchange import Exchange
from foveate.engine.lessons import KeepLessons, calibrations_of
from foveate.engine.watch import UNWATCHED
from foveate.errors import StoreUnavailable
from foveate.tokens.calibration import Calibration, Learner
from foveate.values import Format

ONE = ("anthropic", "claude-opus-9")
INCOMING = Incoming(
    id="r", agent="ana", spoken=Format.ANTHROPIC, provider="anthropic", upstream="anthropic", body=b""
)


def an_exchange() -> Exchange:
    return Exchange(
        INCOMING, None, Outgoing(body=b""), settle=(), clock=lambda: 0.0, watch=UNWATCHED, behind=Behind()
    )


class Shelf:
    """Remembers what it is to keep, unless it is away."""

    def __init__(self) -> None:
        self.kept: list[Mapping[Learner, Calibration]] = []
        self.is_away = False

    async def learnt(self, *, limit: int) -> Mapping[Learner, Calibration]:
        self._there()
        return self.kept[-1]

    async def keep(self, lessons: Mapping[Learner, Calibration], *, now: float) -> None:
        self._there()
        self.kept.append(lessons)

    def _there(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store", "it is away")


async def test_what_was_learnt_since_is_kept_together_and_known_after_a_restart() -> None:
    shelf, bills = Shelf(), Calibrations()
    keeping = KeepLessons(shelf, bills, clock=lambda: 1.0, every_seconds=60)
    for _ in range(3):
        bills.observed(ONE, 1_000, 1_300)
        keeping(an_exchange())
    await keeping.close()

    assert shelf.kept == [{ONE: bills.of(ONE)}]
    assert (await calibrations_of(shelf)).of(ONE).responses == 3


async def test_nothing_is_written_where_nothing_was_learnt() -> None:
    shelf = Shelf()
    keeping = KeepLessons(shelf, Calibrations(), clock=lambda: 1.0, every_seconds=0)
    keeping(an_exchange())
    await keeping.close()

    assert shelf.kept == []


async def test_while_the_store_is_away_a_gateway_learns_on_and_keeps_it_later() -> None:
    shelf, bills = Shelf(), Calibrations()
    keeping = KeepLessons(shelf, bills, clock=lambda: 1.0, every_seconds=60)
    shelf.is_away = True
    assert (await calibrations_of(shelf)).of(ONE).responses == 0
    bills.observed(ONE, 1_000, 1_300)
    await keeping.close()
    shelf.is_away = False
    bills.observed(ONE, 1_000, 1_300)
    await keeping.close()

    assert [lessons[ONE].responses for lessons in shelf.kept] == [2]
