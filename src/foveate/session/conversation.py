"""What a request shows of the conversation that it belongs to."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from foveate.session.chain import HASH_BYTES, Chain
from foveate.session.ids import named_id, session_id
from foveate.session.naming import client_name, is_retry
from foveate.session.turns import Session
from foveate.tokens.memo import digest
from foveate.values import Format, Request
from foveate.wire.answer_parts import is_from_model
from foveate.wire.around import around_of, parameters_of
from foveate.wire.body import as_record, as_text, value

# The fields that hold a system prompt or tools, in all formats.
_SETTING = ("system", "instructions", "tools", "systemInstruction", "system_instruction", "toolConfig")
_DIGEST = object()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What one request shows of its conversation.

    `messages` are those of `chain`. `named` is the id of its session if the client names it, and `parent_id` of
    the one that started it. `scope` separates names and response ids of different callers. `previous` is the id
    of the response that the provider is to continue from, and `is_partial` says that the provider has earlier
    messages that the request does not show. `is_retry`: the client says that it repeats a request. `setting`
    computes the digest of its system prompt and its tools.
    """

    agent: str
    caller: str
    format: Format
    chain: Chain
    messages: Sequence[bytes]
    setting: Callable[[], bytes]
    named: str | None = None
    parent_id: str | None = None
    scope: str = ""
    previous: str = ""
    is_partial: bool = False
    is_retry: bool = False

    @property
    def tip(self) -> bytes:
        """The hash of its last message, with all that came before."""
        last = self.chain.hashes[-1] if self.chain else b""
        return digest(self.previous.encode("utf-8", "replace"), last)[:HASH_BYTES] if self.previous else last

    def continues(self, session: Session) -> bool:
        """Return whether it says all that a session has said, and more."""
        at = session.messages
        return not self.is_partial and 0 < at < len(self.chain) and self.chain.hashes[at - 1] == session.tip

    def has_answer_before(self, end: int) -> bool:
        """Return whether a model wrote one of its first messages."""
        return any(is_from_model(raw) for raw in reversed(self.messages[:end]))


def conversation_of(
    request: Request,
    chain: Chain,
    *,
    agent: str,
    caller: str = "",
    scope: str = "",
    header: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Conversation:
    """Describe the conversation of a request.

    `caller` identifies who sends it, and `scope` separates names and response ids of different callers.
    `header` is what `x-foveate-session` says, and `headers` are those in which clients name conversations.
    """
    parameters = parameters_of(request)
    name = client_name(headers or {}, parameters) if header is None else None
    thread = as_record(value(parameters.get("thread")))
    previous = as_text(value(parameters.get("previous_response_id")) or thread.get("previous_message_id"))
    named = None
    if header is not None:
        named = named_id(agent, header, scope)
    elif name is not None:
        named = name.id(agent, scope)
    return Conversation(
        agent=agent,
        caller=session_id("caller", agent, caller),
        format=request.format,
        chain=chain,
        messages=request.messages[chain.head :],
        setting=partial(_setting, request, chain.head),
        named=named,
        parent_id=name.parent_id(agent, scope) if name is not None else None,
        scope=scope,
        previous=previous,
        is_retry=is_retry(headers or {}),
        is_partial=bool(previous) or "conversation" in parameters,
    )


def _setting(request: Request, head: int) -> bytes:
    """Return a digest of the system prompt and tools of a request."""
    around = around_of(request)
    found: bytes | None = around.known.get(_DIGEST) if around is not None else None
    if found is None:
        fields = parameters_of(request)
        found = digest(*(bytes(fields.get(name) or b"") for name in _SETTING))[:HASH_BYTES]
        if around is not None:
            around.known[_DIGEST] = found
    return digest(found, *request.messages[:head])[:HASH_BYTES] if head else found
