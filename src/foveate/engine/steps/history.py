"""Steps that replace compacted history by its summary, and leave out turns beyond a limit."""

import time
from collections.abc import Sequence

from foveate import wire
from foveate.engine.calls import Problem
from foveate.engine.steps.names import FOLD, TURNS
from foveate.engine.work import Work
from foveate.errors import StoreUnavailable
from foveate.fold.clearing import result_limit_tokens
from foveate.fold.journal import Fold, Journal
from foveate.fold.overflow import limit_turns
from foveate.fold.replacing import fold_of, folded_edits
from foveate.fold.thoughts import betas_of
from foveate.fold.truncating import truncate
from foveate.fold.uses import keep_uses, line_of
from foveate.session.chain import Chain
from foveate.session.counting import beside
from foveate.values import Edit

# Of fewer messages nothing can have been folded, and of a shorter request nothing cut.
_LEAST_MESSAGES = 2
_SHORT_BYTES = 1024

_NONE_SECONDS = 1.0
_KEPT_AGENTS = 1024


class ReplaceHistory:
    """The head that was folded gives way to its summary, and tool results that are too long are cut."""

    name = FOLD

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._none: dict[str, float] = {}  # agents that have nothing folded, and until when that is believed

    def looks_anew(self, agent: str) -> None:
        """Something was folded for an agent."""
        self._none.pop(agent, None)

    async def take(self, work: Work) -> None:
        """Make both edits of the history as the client sent it."""
        if not work.options.compaction or work.chain is None or work.found is None:
            return
        if len(work.chain) < _LEAST_MESSAGES and len(work.came.body) < _SHORT_BYTES:
            return
        work.folds = await self._folds(work.incoming.agent, work.chain)
        await self.replace(work)

    async def found_anew(self, work: Work) -> bool:
        """Whether there are folds of it, where it was only believed that there are none; they are made then."""
        agent = work.incoming.agent
        if work.folds or work.chain is None or not (work.options.compaction and self._believes_none(agent)):
            return False
        self.looks_anew(agent)
        try:
            work.folds = await self._folds(agent, work.chain)
            if work.folds:
                await self.replace(work)
        except StoreUnavailable:  # room is made without it
            work.folds = ()
        return bool(work.folds)

    async def _folds(self, agent: str, chain: Chain) -> Sequence[Fold]:
        """What is kept of a conversation. That an agent has nothing at all is believed for a moment.

        Another process may have made its first fold by then: a request more goes out as it came.
        """
        if self._believes_none(agent):
            return ()
        found = await self._journal.folds(agent, chain.hashes)
        if not found and not await self._journal.has_folds(agent):
            if len(self._none) > _KEPT_AGENTS:
                self._none.clear()
            self._none[agent] = time.monotonic() + _NONE_SECONDS
        return found

    def _believes_none(self, agent: str) -> bool:
        return time.monotonic() < self._none.get(agent, 0.0)

    async def replace(self, work: Work) -> None:
        """The same with the folds that the work knows of."""
        assert work.chain is not None
        line = await line_of(work.chain, work.folds, self._journal, model=work.model)
        unbound = None if line is None else line.unbound()
        folded = folded_edits(work.came, work.chain, work.folds, unbound=unbound, model=work.model)
        work.fold = fold_of(work.chain, work.folds) if folded else None
        start = work.chain.head + work.fold.messages if work.fold is not None else 0
        cut: tuple[Edit, ...] = ()
        if work.window_tokens is not None and work.options.cuts_tool_results:
            made = await truncate(
                work.came,
                work.chain,
                work.folds,
                work.counter,
                self._journal,
                agent=work.incoming.agent,
                session_id=work.session_id,
                limit_tokens=result_limit_tokens(work.window_tokens, work.options.tool_result_max_pct),
                now=work.now,
                start=start,
            )
            cut = made.edits
            if made.rows:
                self.looks_anew(work.incoming.agent)
            work.cut_results += len(made.rows)
            if made.problem:
                work.problems.append(Problem(self.name, f"a cut could not be kept: {made.problem}"))
        work.done = [done for done in work.done if done.step != self.name]
        await work.edit(self.name, (*folded, *cut), of=work.came)
        if line is not None:
            # What the provider leaves out itself stands before the answer, and soon no longer will.
            await keep_uses(line, self._journal, is_applied=work.fold is not None and not betas_of(folded))


class LimitTurns:
    """Turns beyond the agent's `max_turns` are left out."""

    name = TURNS

    async def take(self, work: Work) -> None:
        """Leave out the oldest, in batches."""
        max_turns = work.options.max_turns
        work.done = [done for done in work.done if done.step != self.name]
        if max_turns is None or len(work.request.messages) <= max_turns:
            return
        edits = await beside(lambda: _turn_edits(work, max_turns), len(work.request.body))
        if edits:
            await work.edit(self.name, edits)


def _turn_edits(work: Work, max_turns: int) -> tuple[Edit, ...]:
    messages = [wire.message(work.request.format, raw) for raw in work.request.messages]
    # Raw counts, which later requests repeat: the placeholder tells them, and must stay the same.
    tokens = [work.counter.message(message).tokens for message in messages]
    return limit_turns(work.request, messages, tokens, max_turns=max_turns, model=work.model)
