"""Remember how a session was answered, so that its next request is recognised."""

from dataclasses import dataclass

from foveate.engine.exchange import Exchange
from foveate.session.answers import answer_rows
from foveate.session.news import stored
from foveate.session.sessions import Sessions
from foveate.session.turns import Answers, Turns


@dataclass(frozen=True, slots=True)
class RememberAnswer:
    """Notes digests of each answer, and that its session waits for none any more."""

    sessions: Sessions
    turns: Turns

    def __call__(self, exchange: Exchange) -> None:
        """Note it."""
        work = exchange.work
        if work is None or work.found is None or work.flight is None:
            return
        session, spoken = work.found.session, exchange.incoming.spoken
        is_answered = 200 <= exchange.status < 300
        rows = []
        if is_answered:
            scope = exchange.incoming.name_scope
            rows = answer_rows(session, spoken, exchange.answer_parts(), exchange.ended_at, scope=scope)
        self.sessions.end(session, work.flight, rows, is_answered=is_answered)
        work.flight = None
        if rows:
            work.news.append(stored(Answers(rows=rows), self.turns))
