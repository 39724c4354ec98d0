"""The step that injects an agent's sections: each may be missing, and none makes a request too large."""

import asyncio
from dataclasses import replace

from foveate.engine.calls import Problem
from foveate.engine.injecting.fitting import NO_PART, Part
from foveate.engine.injecting.gathering import BYTES_PER_TOKEN, NAME, Gathering, Money
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.injecting.placing import (
    Placed,
    edits_at,
    joins_strings,
    last_user_message,
    speaks,
    stable_edits,
    turn_edits,
    words_of,
)
from foveate.engine.injecting.sources import PATIENCE_SECONDS, Sources
from foveate.engine.injecting.staying import Said, SaidBefore, Stay, has_to_stay, place_now
from foveate.engine.work import Work
from foveate.fold.thoughts import unbound_thoughts
from foveate.values import NOTHING, Area, Edit, Insert, Place, SetParameter, TokenCount

_NO_SECTIONS = SectionOptions()
# The last of what the user said; what is looked for stands rarely farther up.
_QUERY_CHARS = 2_000
_REASON = "said here before, and what the model has thought since stands after it"


class Inject:
    """Puts an agent's sections into its requests."""

    name = NAME

    def __init__(
        self, sources: Sources, money: Money | None = None, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._gathering = Gathering(sources, money)
        self._patience_seconds = patience_seconds
        self._said = SaidBefore()
        self._agents: set[str] = set()
        """Those that have, or had, sections."""

    async def take(self, work: Work) -> None:
        """Inject what there is, as far as there is room for it."""
        options = work.options.sections
        if options is None or options == _NO_SECTIONS:
            if not self._has_injected(work):
                return
            options = _NO_SECTIONS  # what was injected before is gone now, and thoughts may stand after it
        until = asyncio.get_running_loop().time() + self._patience_seconds
        options = await self._gathering.limited(work, options, until=until)
        stays = has_to_stay(work.request, work.rules)
        joins = joins_strings(work.request, work.rules)
        room = _room(work)
        stable = await self._gathering.stable(work, options, room, until=until)
        edits: list[Edit] = list(stable_edits(work.request, stable.sections, joins=joins))
        shift = int(any(_is_first_message(edit) for edit in edits))
        added = stable.count
        said, known = self._before(work)
        if stays:
            found = _again(work, said, known, stable, room, joins=joins)
            if found is None:
                reason = "nothing is injected: thoughts of before would not be taken, and cannot be left out"
                work.problems.append(Problem(f"{NAME}/thoughts", reason))
                return
            again, said, tokens = found
            edits += again
            added += tokens
        turn = NO_PART
        if not stays or _is_due(work, said, known):
            turn = await self._gathering.turn(
                work,
                options,
                said.words,
                stable=stable,
                added=added,
                room_tokens=None if room is None else room - added.upper,
                until=until,
            )
        placed = turn_edits(work.request, turn.sections, joins=joins)
        edits += placed.edits
        self._keep(work, _with_turn(work, said, turn, placed) if stays else said, known)
        if edits:
            await work.edit(self.name, edits)
            _count(work, added + turn.count if placed.edits else added)
        if not stays:
            work.passing = tuple(
                Place(place.area, place.index + shift, place.block) for place in placed.passing
            )
        work.problems += [Problem(f"{NAME}/room", why) for why in (*stable.left_out, *turn.left_out)]

    def _has_injected(self, work: Work) -> bool:
        """Whether something was put into this conversation before that its thoughts are bound to."""
        if work.incoming.agent not in self._agents or work.chain is None or not work.rules.binds_thinking:
            return False
        found, _ = self._said.of(work.incoming.agent, work.chain)
        return found is not None and bool(found.stable or found.stays or found.since)

    def _before(self, work: Work) -> tuple[Said, int]:
        """What is known of the conversation, with the user's last words, and up to which of its messages."""
        if work.chain is None:
            return Said(), 0
        found, known = self._said.of(work.incoming.agent, work.chain)
        said = found or Said()
        for index in range(len(work.came.messages) - 1, work.chain.head + known - 1, -1):
            if words := words_of(work.came, index):
                return replace(said, words=words[-_QUERY_CHARS:]), known
        return said, known

    def _keep(self, work: Work, said: Said, known: int) -> None:
        """Remember what was said, for the next request of the conversation."""
        if work.chain is not None and (known < len(work.chain) or said.since):
            self._said.keep(work.incoming.agent, work.chain, said)
            self._agents.add(work.incoming.agent)


def _is_due(work: Work, said: Said, known: int) -> bool:
    """Whether something is to be said that will stay: where the user speaks anew, or nothing was said yet."""
    if work.chain is None or known == len(work.chain):  # the same once more, as after an answer that was lost
        return bool(work.chain is not None and not said.stays)
    last = last_user_message(work.request)
    return last is not None and (speaks(work.request, last) or not said.stays)


def _again(
    work: Work, said: Said, known: int, stable: Part, room: int | None, *, joins: bool
) -> tuple[list[Edit], Said, TokenCount] | None:
    """What has to be repeated, and how many tokens that is; and what is done about thoughts of before.

    Where nothing is known, where the system prompt is another one now, and where there is no room for it, there
    is a new beginning: thoughts of before are left out, on models that would not take them. None where they
    cannot be.
    """
    head = work.chain.head if work.chain is not None else 0
    tokens = sum(stay.tokens for stay in said.stays)
    again = TokenCount(tokens, False, tokens + tokens // 8) if tokens else NOTHING
    fits = room is None or again.upper <= room - stable.count.upper
    if not (known and fits and said.stable == stable.version):
        said = Said(words=said.words, since=len(work.came.messages) - head, stable=stable.version)
        again = NOTHING
    edits: list[Edit] = []
    for stay in said.stays:
        place = place_now(work.request, work.came, head + stay.at)
        if place is not None:
            edits += edits_at(work.request, place, stay.texts, _REASON, joins=joins)
    if not work.rules.binds_thinking or not said.since:
        return edits, said, again
    if said.asks is not None:
        return [*edits, said.asks], said, again
    end = head + said.since + len(work.request.messages) - len(work.came.messages)
    earlier = replace(work.request, messages=work.request.messages[: max(0, end)])
    thoughts = unbound_thoughts(earlier, work.model, changed_from=0)
    if thoughts is None:
        return None
    asks = next((edit for edit in thoughts if isinstance(edit, SetParameter)), None)
    return [*edits, *thoughts], replace(said, asks=asks, since=said.since if thoughts else 0), again


def _with_turn(work: Work, said: Said, turn: Part, placed: Placed) -> Said:
    """What was said, and what is said now."""
    if not placed.edits or work.chain is None:
        return said
    at = placed.edits[0].place.index + len(work.came.messages) - len(work.request.messages) - work.chain.head
    texts = tuple((section.text, section.tokens) for section in turn.sections)
    return replace(said, stays=(*said.stays, Stay(at, texts)))


def _room(work: Work) -> int | None:
    """How many tokens there are beside the request; None where nobody knows the window."""
    if work.window_tokens is None:
        return None
    limit = work.window_tokens - work.output_reserve
    if work.count is None:
        return max(0, limit - len(work.request.body) // BYTES_PER_TOKEN)
    return max(0, int((limit - work.count.upper) / max(1.0, work.rate)))


def _count(work: Work, added: TokenCount) -> None:
    """Have the count of the request be that with what was put into it."""
    rate = work.rate
    if work.estimate is not None:
        work.estimate = replace(work.estimate, total=work.estimate.total + added)
    if work.count is not None:
        upper = round(added.upper * max(1.0, rate))
        work.count += TokenCount(round(added.tokens * rate), added.exact, upper)


def _is_first_message(edit: Edit) -> bool:
    """Whether it puts a message before all others."""
    if not isinstance(edit, Insert) or edit.place.area is not Area.MESSAGES:
        return False
    return (edit.place.index, edit.place.block) == (0, None)
