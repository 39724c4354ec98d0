"""Remember how a session was answered, so that its next request is recognised."""

from dataclasses import dataclass

from foveate.engine.exchange import Exchange
from foveate.engine.stored_sizes import StoredSizes
from foveate.session.answers import answer_rows
from foveate.session.news import stored
from foveate.session.sessions import Sessions
from foveate.session.turns import Answers, Turns


@dataclass(frozen=True, slots=True)
class RememberAnswer:
    """Notes digests of each answer, and that its session waits for none any more."""

    sessions: Sessions
    turns: Turns
    sizes: StoredSizes

    def __call__(self, exchange: Exchange) -> None:
        """Note it."""
        work = exchange.work
        if work is None or work.found is None or work.flight is None:
            return
        session, spoken = work.found.session, exchange.incoming.spoken
        is_answered = 200 <= exchange.status < 300
        rows = []
        if is_answered:
            parts, scope = exchange.answer_parts(), exchange.incoming.name_scope
            rows = answer_rows(
                session, spoken, parts, exchange.ended_at, scope=scope, is_stored=work.uses_thread
            )
            if exchange.has_bill and exchange.is_whole and exchange.usage is not None:
                self.sizes.record(exchange.incoming, work.came, parts.id, exchange.usage)
        self.sessions.end(session, work.flight, rows, is_answered=is_answered)
        work.flight = None
        if rows:
            work.news.append(stored(Answers(rows=rows), self.turns))
