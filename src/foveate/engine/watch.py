"""Who is told what becomes of requests, for metrics: the engine tells, and knows nothing of who listens."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from foveate.cost.admission import Settled
    from foveate.cost.ledger import Entry
    from foveate.engine.calls import Incoming, Problem
    from foveate.engine.exchange import Exchange
    from foveate.engine.explaining import SeenBreak
    from foveate.errors import FoveateError
    from foveate.fold.folding import Folded


class Watch(Protocol):
    """Is told what becomes of requests. It is told on their way: whatever it does has to be quick."""

    def failed(self, incoming: "Incoming", problem: "Problem") -> None:
        """A step failed, and the request goes out without it; or something that is done at its end."""

    def took(self, step: str, seconds: float) -> None:
        """How long a step has taken."""

    def refused(self, agent: str, error: "FoveateError") -> None:
        """A request was answered with an error of our own: a cap, the window, a provider out of reach."""

    def ended(self, exchange: "Exchange") -> None:
        """An exchange has come to its end, and all that is done with it is done."""

    def billed(self, entry: "Entry", settled: "Settled") -> None:
        """A call was billed, and what became of its bill."""

    def folded(self, agent: str, folded: "Folded") -> None:
        """What became of a fold of one of an agent's sessions."""

    def broke(self, seen: "SeenBreak") -> None:
        """A request could not read what the one before it had left in the provider's cache."""


class Unwatched:
    """Tells nobody."""

    def failed(self, incoming: "Incoming", problem: "Problem") -> None:
        """Nothing."""

    def took(self, step: str, seconds: float) -> None:
        """Nothing."""

    def refused(self, agent: str, error: "FoveateError") -> None:
        """Nothing."""

    def ended(self, exchange: "Exchange") -> None:
        """Nothing."""

    def billed(self, entry: "Entry", settled: "Settled") -> None:
        """Nothing."""

    def folded(self, agent: str, folded: "Folded") -> None:
        """Nothing."""

    def broke(self, seen: "SeenBreak") -> None:
        """Nothing."""


UNWATCHED = Unwatched()
