"""A recording as another model would have read it."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from foveate.replay.marking import rules_then
from foveate.replay.recordings import Said
from foveate.replay.sent import Kept, Sent
from foveate.replay.sizes import Scale, tokenizer_of
from foveate.replay.stretches import Front, Stretch, rechained
from foveate.values import Format


def as_model(sent: Sequence[Sent], model: str, spoken: Format) -> list[Sent]:
    """The same calls to `model`: each message as many times as long as its counter finds it.

    What the recording does not show, and what was answered, grows as all messages together do. Where both
    models count alike, all sizes stay.
    """
    return list(map(_Other(sent, model, spoken).of, sent))


class _Other:
    def __init__(self, sent: Sequence[Sent], model: str, spoken: Format) -> None:
        self._model = model
        self._spoken = spoken
        self._scales: dict[str, Scale] = {}
        self._rates: dict[int, float] = {}
        self._stretches: dict[int, tuple[Stretch, Stretch]] = {}
        self._fronts: dict[int, tuple[Front, Front]] = {}
        self._rate = self._whole_rate(sent)

    def of(self, sent: Sent) -> Sent:
        """One call."""
        was = sent.call.model
        kept = sent.kept
        if kept is not None and kept.last is not None:
            kept = Kept(last=self._stretch(kept.last, was))
        return msgspec.structs.replace(
            sent,
            call=replace(sent.call, model=self._model),
            rules=rules_then(self._model, sent.call.at),
            front=self._front(sent.front),
            last=self._stretch(sent.last, was),
            output_tokens=round(sent.output_tokens * self._rate),
            kept=kept,
        )

    def _scale(self, model: str) -> Scale:
        name = tokenizer_of(model)
        if name not in self._scales:
            self._scales[name] = Scale(model, self._spoken)
        return self._scales[name]

    def _rate_of(self, said: Said, was: str) -> float:
        if tokenizer_of(was) == tokenizer_of(self._model):
            return 1.0
        known = self._rates.get(id(said))
        if known is None:
            before, after = (self._scale(model).message(said.raw) for model in (was, self._model))
            known = self._rates[id(said)] = after / before if before else 1.0
        return known

    def _whole_rate(self, sent: Sequence[Sent]) -> float:
        """How many times as long all messages are together."""
        seen: set[int] = set()
        before = after = 0.0
        for one in sent:
            here: Stretch | None = one.last
            while here is not None and here.said is not None and id(here.said) not in seen:
                seen.add(id(here.said))
                before += here.tokens
                after += here.tokens * self._rate_of(here.said, one.call.model)
                here = here.before
        return after / before if before else 1.0

    def _stretch(self, last: Stretch, was: str) -> Stretch:
        new = []
        here: Stretch | None = last
        while here is not None and id(here) not in self._stretches:
            new.append(here)
            here = here.before
        before = self._stretches[id(here)][1] if here is not None else None
        for stretch in reversed(new):
            rate = self._rate_of(stretch.said, was) if stretch.said is not None else 1.0
            pieces = [
                msgspec.structs.replace(piece, tokens=round(piece.tokens * rate)) for piece in stretch.pieces
            ]
            before = rechained(before, stretch, pieces)
            self._stretches[id(stretch)] = stretch, before  # the first is held, so that no other has its id
        assert before is not None
        return before

    def _front(self, front: Front) -> Front:
        if id(front) not in self._fronts:
            pieces = tuple(
                msgspec.structs.replace(piece, tokens=round(piece.tokens * self._rate))
                for piece in front.pieces
            )
            tokens = sum(piece.tokens for piece in pieces)
            made = replace(front, model=self._model, pieces=pieces, tokens=tokens)
            self._fronts[id(front)] = front, made
        return self._fronts[id(front)][1]
