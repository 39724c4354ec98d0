"""Embeddings: only the name of their model may change; they are held to the caps and booked as all calls."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from foveate import wire
from foveate.cost.admission import Admission, Admitted
from foveate.cost.ledger import Call, Category, Entry
from foveate.cost.savings import pricing, unchanged
from foveate.engine.behind import Behind
from foveate.engine.calls import Done, Incoming, Outgoing, check_model
from foveate.engine.cost_features import (
    Feature,
    header_features,
    unknown_embedding_fields,
    without_allowed,
)
from foveate.engine.exchange import Exchange
from foveate.engine.options import MoneyOptions
from foveate.engine.steps.names import ROUTE
from foveate.engine.uncounted import Uncounted, check_unknown, let_through
from foveate.engine.watch import UNWATCHED, Watch
from foveate.errors import BadEdit, DuplicateKey, MalformedRequest
from foveate.session.counting import beside
from foveate.session.ids import named_id
from foveate.tokens import counter_for
from foveate.values import NOTHING, CacheUsage, Format, SetParameter, TokenCount, Usage
from foveate.wire.body import fields, value
from foveate.wire.duplicate_keys import check_unique_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsAsked:
    """Whose vectors are asked for, how many tokens are read for them, and features of unknown cost."""

    model: str
    count: TokenCount
    features: tuple[Feature, ...] = ()


def embeddings_asked(body: bytes, served_model: str = "") -> EmbeddingsAsked:
    """What a request for embeddings says: texts, lists of token ids, or one of either.

    `served_model` takes the place of the model in the body.

    Raises:
        DuplicateKey: one of its objects has the same key twice.
        MalformedRequest: it has no model, or none of that name can be, or its input is something else.
    """
    found = fields(body)
    check_unique_keys(body, found)
    model, given = served_model or value(found.get("model")), value(found.get("input"))
    if not isinstance(model, str) or not model:
        raise MalformedRequest("no model in the request for embeddings")
    check_model(model)
    counter = counter_for(model)

    def counted(part: object) -> TokenCount:
        if isinstance(part, str):
            return counter.text(part)
        if isinstance(part, list) and all(type(token) is int for token in part):
            return TokenCount(len(part), exact=True, upper=len(part))
        raise MalformedRequest("the input of embeddings is a text, a list of token ids, or a list of these")

    is_many = isinstance(given, list) and not all(type(token) is int for token in given)
    return EmbeddingsAsked(
        model=model,
        count=sum(map(counted, given if is_many else [given]), NOTHING),
        features=unknown_embedding_fields(found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """Prepares requests for embeddings, in the place of the engine's steps."""

    admission: Admission
    options: Callable[[], MoneyOptions]
    uncounted: Uncounted
    clock: Callable[[], float]
    behind: Behind
    watch: Watch = UNWATCHED

    async def prepare(self, incoming: Incoming) -> Exchange:
        """The request as it came; one that cannot be read is let through where no cap holds.

        Raises:
            DuplicateKey: its upstream could read another value than Foveate does.
            CallRefused: a cap keeps it from being made.
            RequestLimitExceeded: it has more inputs or values than are read.
        """
        outgoing, size_bytes = Outgoing(body=incoming.body), len(incoming.body)
        await beside(lambda: incoming.limits.check(incoming.body), size_bytes)
        try:
            outgoing = await beside(lambda: _named(incoming), size_bytes)
            asked = await beside(lambda: embeddings_asked(outgoing.body, incoming.served_model), size_bytes)
        except DuplicateKey:
            raise
        except (MalformedRequest, BadEdit) as error:
            await self.uncounted(incoming.id, incoming.agent, f"the request cannot be read ({error})")
            return self._exchange(incoming, outgoing)
        now = self.clock()
        call = Call(
            id=incoming.id,
            agent=incoming.agent,
            session_id=_session_id(incoming),
            provider=incoming.provider,
            model=asked.model,
            category=Category.MAIN,
            at=now,
            is_subscription=incoming.is_subscription,
        )
        options = self.options()
        ceiling = options.prices.ceiling(
            asked.model,
            provider=incoming.provider,
            input_tokens=asked.count.upper,
            output_tokens=0,
            at=now,
        )
        unknown = (*asked.features, *header_features(incoming.cost_headers))
        if features := without_allowed(unknown, options.allow_fields):
            check_unknown([cap for cap in options.caps if cap.holds(call)], str(features[0]))
        admitted = await let_through(
            self.admission,
            call,
            ceiling,
            options.caps,
            caught_up=self.behind.caught_up,
        )
        self.admission.announce(call, ceiling=ceiling, estimated_input_tokens=asked.count.tokens)
        noted = _Noted(self, admitted, asked.count)
        return self._exchange(incoming, outgoing, came_at=now, note=noted, admitted=admitted)

    def _exchange(
        self,
        incoming: Incoming,
        outgoing: Outgoing,
        *,
        came_at: float | None = None,
        note: "_Noted | None" = None,
        admitted: Admitted | None = None,
    ) -> Exchange:
        return Exchange(
            incoming,
            None,
            outgoing,
            settle=(),
            clock=self.clock,
            watch=self.watch,
            came_at=came_at,
            note=note,
            behind=self.behind,
            admitted=admitted,
        )


def _session_id(incoming: Incoming) -> str:
    """Return the id of the session that a header names; each request without the header is its own session."""
    if not incoming.session:
        return incoming.id
    return named_id(incoming.agent, incoming.session, incoming.name_scope)


def _named(incoming: Incoming) -> Outgoing:
    """The request with the name that its model has at the upstream; all else is as it came.

    Raises:
        MalformedRequest: it is no JSON object.
        BadEdit: the name cannot be put in.
    """
    if incoming.model is None:
        return Outgoing(body=incoming.body)
    named = SetParameter(path=("model",), value=incoming.model, reason="its name at the upstream")
    request = wire.read(incoming.body, Format.CHAT)
    return Outgoing(body=wire.write(request, (named,)), done=(Done(ROUTE, named),))


@dataclass(frozen=True, slots=True)
class _Noted:
    """Says what one call has cost."""

    of: Embeddings
    admitted: Admitted
    count: TokenCount

    def __call__(self, exchange: Exchange) -> None:
        """Jot down what it was billed, where it may be."""
        usage, has_bill, call = exchange.usage, exchange.has_bill, self.admitted.call
        if not has_bill and not exchange.may_be_billed:
            self.of.admission.withdraw(call.id)
            return
        prices = self.of.options().prices
        price = pricing(prices, call)
        entry = Entry(
            call=call,
            usage=usage or Usage(cache=CacheUsage()),
            dollars=price(usage) if usage is not None and has_bill else None,
            estimated_input_tokens=self.count.tokens,
            estimated_dollars=self.admitted.ceiling,
            is_partial=not exchange.is_whole,
        )
        exchange.entry = replace(entry, savings=unchanged(entry.dollars))
        self.of.admission.jot(exchange.entry)
