"""The steps of a request, each a small class: it looks at the work so far, and adds what it decides.

A step that fails is left out, and the next one goes on with what is there. So each takes for granted only what
it checks itself.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from weakref import ref

from msgspec.structs import replace

from foveate import wire
from foveate.budget.eviction import Kind, kind_of
from foveate.cache.tool_order import ListedTool, ToolList
from foveate.engine.calls import Problem
from foveate.engine.counting import Counts
from foveate.engine.marking import RefusalsHeld
from foveate.engine.remembered import Remembered
from foveate.engine.step_names import COUNT, FOLD, ROOM, SESSION, TOOLS, TURNS, USAGE
from foveate.engine.stored_sizes import StoredSizes
from foveate.engine.work import Work
from foveate.errors import DoesNotFit, StoreUnavailable
from foveate.fold.clearing import result_limit_tokens
from foveate.fold.cuts import Subject
from foveate.fold.folding import Folded
from foveate.fold.journal import Fold, Journal, Outcome
from foveate.fold.overflow import Plan, limit_turns, lower_end, plan_for
from foveate.fold.overflow import Step as Room
from foveate.fold.replacing import fold_of, folded_edits
from foveate.fold.thoughts import betas_of
from foveate.fold.truncating import truncate
from foveate.fold.uses import keep_uses, line_of
from foveate.session.chain import Chain, chain_beside
from foveate.session.conversation import Conversation, conversation_of
from foveate.session.counting import TurnCounts, beside, counted_beside
from foveate.session.news import stored
from foveate.session.sessions import Found, Sessions
from foveate.session.titles import opening_words, working_folder
from foveate.session.turns import Move, Session, Turns
from foveate.values import NOTHING, Area, Edit, Format, SetParameter, TokenCount
from foveate.wire.around import around_of, parameters_of
from foveate.wire.body import value
from foveate.wire.large_json import LARGE_BYTES

# Of fewer messages nothing can have been folded, and of a shorter request nothing cut.
_LEAST_MESSAGES = 2
_SHORT_BYTES = 1024
# By so much a message may be counted too high.
_SURELY = 0.8
# To read tools of this size takes milliseconds.
_MUCH_BYTES = 64 * 1024
_TOOL_LIST = object()

_NONE_SECONDS = 1.0
_KEPT_AGENTS = 1024

FoldNow = Callable[[Work, Subject], Awaitable[Folded | None]]


class Step(Protocol):
    """One thing that is done with every request."""

    name: str

    async def take(self, work: Work) -> None:
        """Do it, as far as it applies."""


class FindSession:
    """Which session a request belongs to."""

    name = SESSION

    def __init__(
        self,
        sessions: Sessions,
        turns: Turns,
        remembered: Remembered,
        *,
        keeps_text: Callable[[], bool] = lambda: False,
    ) -> None:
        """`keeps_text`: first words of conversations may be stored."""
        self._sessions = sessions
        self._keeps_text = keeps_text
        self._turns = turns
        self._remembered = remembered

    async def take(self, work: Work) -> None:
        """Find it, and what is remembered of it."""
        work.chain = chain = await chain_beside(work.came)
        conversation = conversation_in(work, chain)
        try:
            found = await self._sessions.find(conversation, now=work.now)
        except StoreUnavailable:
            if conversation.named is not None:  # its id needs no store
                self._begin(work, self._sessions.named(conversation, now=work.now))
            raise
        self._begin(work, found)

    def _begin(self, work: Work, found: Found) -> None:
        agent = work.incoming.agent
        if found.is_new:
            found = replace(found, session=self._labelled(work, found.session))
        work.found = found
        work.flight = self._sessions.begin(found)
        if found.is_changed:
            work.news.append(stored(Move(session=found.session, turns=found.turns), self._turns))
        chain = work.chain
        assert chain is not None
        before = self._remembered.session(agent, work.session_id)
        work.state = replace(
            before.heard(work.now),
            messages=before.messages if found.is_aside else len(chain),
            tip=before.tip if found.is_aside else chain.hashes[-1] if chain else b"",
            is_whole=before.is_whole and self._remembered.has_seen_all(agent, found, chain, work.came),
        )
        if before.asked_at is not None:
            self._remembered.heard(agent, max(0.0, work.now - before.asked_at))
        self._remembered.put(agent, work.session_id, work.state)

    def _labelled(self, work: Work, session: Session) -> Session:
        head = work.chain.head if work.chain is not None else 0
        opening = opening_words(work.came.messages[head:]) if self._keeps_text() else None
        return replace(session, folder=working_folder(work.came, head), opening=opening)


def conversation_in(work: Work, chain: Chain) -> Conversation:
    """Describe the conversation of a request."""
    incoming = work.incoming
    return conversation_of(
        work.came,
        chain,
        agent=incoming.agent,
        caller=incoming.caller,
        scope=incoming.name_scope,
        header=incoming.session,
        headers=incoming.naming,
    )


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


class Count:
    """How many tokens would be sent."""

    name = COUNT

    def __init__(self, turns: Turns, reading: Counts, sizes: StoredSizes | None = None) -> None:
        """`sizes`: what is known of conversations that providers store."""
        self._counts = TurnCounts(turns)
        self._reading = reading
        self._sizes = sizes or StoredSizes()

    async def take(self, work: Work) -> None:
        """Count what would be sent by now. Unknown: the size of what continues an unknown conversation."""
        if not work.options.token_counter:
            return
        if work.request.continues_stored:
            await self._take_stored(work)
            return
        if await self._reading.asked(work):
            return
        if work.request is work.came and work.chain is not None and work.found is not None:
            agent = work.incoming.agent
            known = await self._counts.counted(
                agent, work.request, work.chain, work.counter, known=work.found.known
            )
            if known.new:
                work.news.append(self._counts.news(agent, known))
            counted = known.count
        else:
            counted = await counted_beside(work.request, work.counter)
        self._reading.read(work, counted)

    async def _take_stored(self, work: Work) -> None:
        """Count a request together with the messages that the provider stores, if their size is known."""
        work.is_unexplained = True
        stored = self._sizes.size_of(work.incoming, work.came)
        if stored is not None:
            counted = await counted_beside(work.request, work.counter)
            work.count = stored + counted.total
        elif work.request.format is Format.RESPONSES:
            work.count = await self._reading.asked_for_stored(work)
        work.counts_stored = work.count is not None

    async def surely(self, work: Work) -> None:
        """Be sure of it where it can be had, since a decision hangs on it."""
        await self._reading.surely(work)


class MakeRoom:
    """A request that does not fit is folded, cleared, shortened, refused or passed, as its agent wishes."""

    name = ROOM

    def __init__(self, history: ReplaceHistory, count: Count, fold_now: FoldNow) -> None:
        self._history = history
        self._count = count
        self._turns = LimitTurns()
        self._fold_now = fold_now

    async def take(self, work: Work, beside_it: TokenCount = NOTHING) -> None:
        """Make it fit, with so many raw tokens of required sections beside it.

        Raises:
            DoesNotFit: it does not, and no more may be done.
        """
        window_tokens = work.window_tokens
        if work.count is None or window_tokens is None or work.request.continues_stored:
            return
        sections = round(beside_it.tokens * work.rate)
        size_bytes = len(work.request.body)
        reserve = await beside(lambda: work.output_reserve, size_bytes, least_bytes=LARGE_BYTES)
        limit = window_tokens - reserve - sections
        if work.count.tokens > limit:
            await self._count.surely(work)
        if work.count.tokens <= limit:
            return
        if await self._history.found_anew(work):
            await self._turns.take(work)
            await self._count.take(work)
            if work.count.tokens <= limit:
                return
        if await _can_fold(work, limit) and await self._folded(work) and work.count.tokens <= limit:
            return
        plan = await beside(lambda: _plan(work, limit), len(work.request.body))
        if plan.ends_with is Room.REFUSE:
            raise DoesNotFit(
                tokens=lower_end(work.count),
                limit_tokens=limit,
                window_tokens=window_tokens,
                reason=f"{plan.reason}; required sections take {sections:,} more" if sections else plan.reason,
            )
        if plan.edits:
            await work.edit(self.name, plan.edits)
            await self._count.take(work)

    async def _folded(self, work: Work) -> bool:
        """Whether a fold was made, or found, that reaches farther than what the request was made with."""
        if work.chain is None or work.found is None or work.count is None or work.window_tokens is None:
            return False
        folded = await self._fold_now(work, subject_of(work, must_fit=True))
        if folded is None or folded.fold is None or folded.fold.outcome is not Outcome.OK:
            return False
        work.folds = [folded.fold, *work.folds]
        await self._history.replace(work)
        await self._turns.take(work)
        await self._count.take(work)
        return True


async def _can_fold(work: Work, limit_tokens: int) -> bool:
    """Whether a fold may make room. Where it cannot, each would be paid for in vain.

    It cannot where the answer alone takes the whole window, or what is asked last alone is too long for it.
    """
    if not work.options.compaction or limit_tokens <= 0 or not work.request.messages:
        return False
    raw = work.request.messages[-1]
    last = await beside(lambda: wire.message(work.request.format, raw), len(raw))
    if kind_of(last) is Kind.RESULTS:  # these can be shortened
        return True
    counted = await beside(lambda: work.counter.message(last).tokens, len(raw))
    return _SURELY * counted * work.rate <= limit_tokens


def _plan(work: Work, limit_tokens: int) -> Plan:
    """How a request that does not fit can be made to."""
    assert work.count is not None
    messages = [wire.message(work.request.format, raw) for raw in work.request.messages]
    tokens = [round(work.counter.message(message).tokens * work.rate) for message in messages]
    return plan_for(
        work.request,
        messages,
        tokens,
        work.count,
        limit_tokens=limit_tokens,
        options=work.options.overflow,
        can_fold=False,
        model=work.model,
    )


def subject_of(work: Work, *, must_fit: bool) -> Subject:
    """What a fold of this request has to know."""
    assert work.chain is not None
    assert work.count is not None
    assert work.window_tokens is not None
    return Subject(
        agent=work.incoming.agent,
        session_id=work.session_id,
        request=work.came,
        chain=work.chain,
        sent=work.request,
        sent_tokens=work.billed_tokens or work.count.tokens,
        window_tokens=work.window_tokens,
        output_reserve=work.output_reserve,
        earlier=work.fold,
        must_fit=must_fit,
    )


class OrderTools:
    """The same tools are sent in the same order."""

    name = TOOLS

    def __init__(self, remembered: Remembered) -> None:
        self._remembered = remembered

    async def take(self, work: Work) -> None:
        """Have them in the order that the session had first."""
        if not work.options.prompt_cache or len(work.request.tools) < 2 or work.found is None:
            return
        around = around_of(work.request)
        if around is not None and work.state.settled is not None and work.state.settled() is around:
            return
        listed: ToolList | None = around.known.get(_TOOL_LIST) if around is not None else None
        if listed is None:
            size_bytes = sum(map(len, work.request.tools))
            listed = await beside(lambda: _listed(work), size_bytes, least_bytes=_MUCH_BYTES)
            if around is not None:
                around.known[_TOOL_LIST] = listed
        edit, orders = work.state.tools.settled(listed)
        settled = ref(around) if edit is None and around is not None else None
        work.state = work.state.listed(orders, settled)
        self._remembered.put(work.incoming.agent, work.session_id, work.state)
        if edit is not None:
            await work.edit(self.name, (edit,))


def _listed(work: Work) -> ToolList:
    front = wire.front_blocks(work.request, wire.trail(work.request))
    blocks = {block.place.index: block for block in front if block.place.area is Area.TOOLS}
    return ToolList.of(
        [
            ListedTool(
                name=wire.tool(work.request.format, raw).name,
                said=blocks[place].said if place in blocks else raw,
                mark=blocks[place].mark if place in blocks else None,
            )
            for place, raw in enumerate(work.request.tools)
        ]
    )


class AskForUsage:
    """A streamed chat tells its bill only where it is asked to."""

    name = USAGE

    def __init__(self, refusals: RefusalsHeld) -> None:
        self._refusals = refusals

    async def take(self, work: Work) -> None:
        """Ask, where the client has not."""
        if work.request.format is not Format.CHAT or not self._refusals.take_parameter(work, "stream_options"):
            return
        found = parameters_of(work.request)
        if value(found.get("stream")) is not True:
            return
        asked = value(found.get("stream_options"))
        if isinstance(asked, dict) and asked.get("include_usage") is True:
            return
        if asked is not None and not isinstance(asked, dict):
            return  # nothing can be set in it, and the provider says so
        work.parameters += (
            SetParameter(
                path=("stream_options", "include_usage"),
                value=True,
                reason="a streamed chat is billed in silence unless it is asked; the extra chunk is taken out",
            ),
        )
