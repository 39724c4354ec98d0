"""Requests for embeddings: checked against caps and recorded like all calls, and otherwise sent as they are."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from foveate import formats
from foveate.cost.admission import Admission
from foveate.cost.ledger import Call, Category
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.counting.offline_counters import load_counter
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.observer import NO_OBSERVER, Observer
from foveate.engine.options import SpendingOptions
from foveate.engine.relay import ResponseEvent, Transport, relay_call
from foveate.engine.request import AppliedEdit, IncomingRequest, UpstreamRequest, check_model_name
from foveate.engine.request_context import CostFields
from foveate.engine.spending.charges import ChargeRecorder
from foveate.engine.spending.observed_admission import AdmitUncounted, admit_call, check_unknown_cost
from foveate.engine.spending.unknown_costs import (
    CostFeature,
    header_features,
    unknown_embedding_fields,
    without_allowed,
)
from foveate.engine.steps import ROUTE
from foveate.errors import BadEdit, DuplicateKey, MalformedRequest
from foveate.formats.json_text.duplicate_keys import check_unique_keys
from foveate.formats.json_text.parse import Fields, parse_fields, parse_json
from foveate.model import ZERO_TOKENS, Format, SetParameter, TokenCount
from foveate.session.client_names import derive_named_session_id
from foveate.session.counting import run_in_thread_if_large
from foveate.tokens import counter_for
from foveate.tokens.offline_counters import CounterOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsRequest:
    model: str
    count: TokenCount
    features: tuple[CostFeature, ...] = ()


def read_embeddings_model(body: bytes, served_model: str = "") -> tuple[str, Fields]:
    """Return the model of a request for embeddings, and its fields. `served_model` overrides the model.

    Raises:
        DuplicateKey: an object has the same key twice.
        MalformedRequest: the model is missing or invalid.
    """
    body_fields = parse_fields(body)
    check_unique_keys(body, body_fields)
    model = served_model or parse_json(body_fields.get("model"))
    if not isinstance(model, str) or not model:
        raise MalformedRequest("the embeddings request has no model")
    check_model_name(model)
    return model, body_fields


def read_embeddings_request(model: str, body_fields: Fields) -> EmbeddingsRequest:
    """Count the input: texts, lists of token ids, or a single one of either.

    Raises:
        MalformedRequest: the input has another type.
    """
    inputs, counter = parse_json(body_fields.get("input")), counter_for(model)

    def count_input(part: object) -> TokenCount:
        if isinstance(part, str):
            return counter.text(part)
        if isinstance(part, list) and all(type(token) is int for token in part):
            return TokenCount(len(part), exact=True, upper=len(part))
        raise MalformedRequest("`input` must be a text, a list of token ids, or a list of these")

    is_many = isinstance(inputs, list) and not all(type(token) is int for token in inputs)
    return EmbeddingsRequest(
        model=model,
        count=sum(map(count_input, inputs if is_many else [inputs]), ZERO_TOKENS),
        features=unknown_embedding_fields(body_fields),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsEngine:
    admission: Admission
    charges: ChargeRecorder
    options: Callable[[], SpendingOptions]
    admit_uncounted: AdmitUncounted
    clock: Callable[[], float]
    completion_queue: CompletionQueue
    observer: Observer = NO_OBSERVER

    def send(self, incoming: IncomingRequest, transport: Transport) -> AsyncGenerator[ResponseEvent]:
        """Admit a request, send it, and yield its response; see `relay_call` and `prepare`."""
        return relay_call(lambda: self.prepare(incoming), transport)

    async def prepare(self, incoming: IncomingRequest) -> Exchange:
        """Admit the request. One that cannot be parsed is admitted if no cap applies.

        Raises:
            DuplicateKey: the upstream could read another value than Foveate does.
            CallRefused: a cap rejects it.
            RequestLimitExceeded: it has more inputs or values than allowed.
        """
        upstream_request, size_bytes = UpstreamRequest(body=incoming.body), len(incoming.body)
        await run_in_thread_if_large(lambda: incoming.limits.check(incoming.body), size_bytes)
        try:
            upstream_request = await run_in_thread_if_large(lambda: _rename_model(incoming), size_bytes)
            model, body_fields = await run_in_thread_if_large(
                lambda: read_embeddings_model(upstream_request.body, incoming.served_model), size_bytes
            )
            await load_counter(CounterOptions(), model)
            embeddings = await run_in_thread_if_large(
                lambda: read_embeddings_request(model, body_fields), size_bytes
            )
        except DuplicateKey:
            raise
        except (MalformedRequest, BadEdit) as error:
            await self.admit_uncounted(incoming.id, incoming.agent, f"the request cannot be read ({error})")
            return self._make_exchange(incoming, upstream_request)
        now = self.clock()
        call = Call(
            id=incoming.id,
            agent=incoming.agent,
            session_id=_session_id(incoming),
            provider=incoming.provider,
            model=embeddings.model,
            category=Category.MAIN,
            at=now,
            is_subscription=incoming.is_subscription,
        )
        options = self.options()
        ceiling = options.prices.ceiling(
            embeddings.model,
            provider=incoming.provider,
            input_tokens=embeddings.count.upper,
            output_tokens=0,
            at=now,
        )
        unknown = (*embeddings.features, *header_features(incoming.cost_headers))
        if features := without_allowed(unknown, options.allow_fields):
            check_unknown_cost([cap for cap in options.caps if cap.applies_to(call)], str(features[0]))
        reservation = await admit_call(
            self.admission,
            call,
            ceiling,
            options.caps,
            wait_for_charges=self.completion_queue.drain_all_processes,
        )
        cost = CostFields(
            call=reservation.call,
            ceiling_dollars=reservation.ceiling,
            reservation=reservation,
            estimated_input_tokens=embeddings.count.tokens,
        )
        self.charges.open(cost)
        return self._make_exchange(incoming, upstream_request, received_at=now, cost=cost)

    def _make_exchange(
        self,
        incoming: IncomingRequest,
        upstream_request: UpstreamRequest,
        *,
        received_at: float | None = None,
        cost: CostFields | None = None,
    ) -> Exchange:
        return Exchange(
            incoming,
            None,
            upstream_request,
            hooks=CallHooks(before_last_byte=(self.charges.complete,)),
            clock=self.clock,
            observer=self.observer,
            received_at=received_at,
            completer=self.completion_queue,
            cost=cost,
        )


def _session_id(incoming: IncomingRequest) -> str:
    """The session that a header names; without the header each request is its own session."""
    if not incoming.session:
        return incoming.id
    return derive_named_session_id(incoming.agent, incoming.session, incoming.session_scope)


def _rename_model(incoming: IncomingRequest) -> UpstreamRequest:
    """Replace the model by its name at the upstream.

    Raises:
        MalformedRequest: the body is not a JSON object.
        BadEdit: the name cannot be set.
    """
    if incoming.model is None:
        return UpstreamRequest(body=incoming.body)
    rename = SetParameter(path=("model",), value=incoming.model, reason="the upstream's name of the model")
    request = formats.parse_request(incoming.body, Format.CHAT)
    return UpstreamRequest(
        body=formats.apply_edits(request, (rename,)), applied_edits=(AppliedEdit(ROUTE, rename),)
    )
