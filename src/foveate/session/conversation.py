"""What a request shows of the conversation that it belongs to."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from foveate.session.chain import HASH_BYTES, HashChain
from foveate.session.ids import derive_named_session_id, derive_session_id
from foveate.session.naming import is_retry, read_client_name
from foveate.session.turns import Session
from foveate.tokens.memo import hash_bytes
from foveate.values import Format, Request
from foveate.wire.answer_parts import is_from_model
from foveate.wire.around import get_envelope, get_parameters
from foveate.wire.body import as_dict, as_text, parse_json

# The fields that hold a system prompt or tools, in all formats.
_SETTING_FIELDS = ("system", "instructions", "tools", "systemInstruction", "system_instruction", "toolConfig")
_DIGEST_KEY = object()


class ObservedConversation(msgspec.Struct, frozen=True, kw_only=True):
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
    chain: HashChain
    messages: Sequence[bytes]
    compute_setting: Callable[[], bytes]
    named_session_id: str | None = None
    parent_id: str | None = None
    scope: str = ""
    previous_response_id: str = ""
    is_partial: bool = False
    is_retry: bool = False

    @property
    def tip(self) -> bytes:
        """The hash of its last message, with all that came before."""
        last = self.chain.hashes[-1] if self.chain else b""
        return (
            hash_bytes(self.previous_response_id.encode("utf-8", "replace"), last)[:HASH_BYTES]
            if self.previous_response_id
            else last
        )

    def continues(self, session: Session) -> bool:
        """Return whether it says all that a session has said, and more."""
        at = session.messages
        return not self.is_partial and 0 < at < len(self.chain) and self.chain.hashes[at - 1] == session.tip

    def has_answer_before(self, end: int) -> bool:
        """Return whether a model wrote one of its first messages."""
        return any(is_from_model(raw) for raw in reversed(self.messages[:end]))


def observe_conversation(
    request: Request,
    chain: HashChain,
    *,
    agent: str,
    caller: str = "",
    scope: str = "",
    header: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObservedConversation:
    """Describe the conversation of a request.

    `caller` identifies who sends it, and `scope` separates names and response ids of different callers.
    `header` is what `x-foveate-session` says, and `headers` are those in which clients name conversations.
    """
    parameters = get_parameters(request)
    name = read_client_name(headers or {}, parameters) if header is None else None
    thread = as_dict(parse_json(parameters.get("thread")))
    previous_response_id = as_text(
        parse_json(parameters.get("previous_response_id")) or thread.get("previous_message_id")
    )
    named_session_id = None
    if header is not None:
        named_session_id = derive_named_session_id(agent, header, scope)
    elif name is not None:
        named_session_id = name.session_id(agent, scope)
    return ObservedConversation(
        agent=agent,
        caller=derive_session_id("caller", agent, caller),
        format=request.format,
        chain=chain,
        messages=request.messages[chain.leading_system_messages :],
        compute_setting=partial(_digest_setting, request, chain.leading_system_messages),
        named_session_id=named_session_id,
        parent_id=name.parent_session_id(agent, scope) if name is not None else None,
        scope=scope,
        previous_response_id=previous_response_id,
        is_retry=is_retry(headers or {}),
        is_partial=bool(previous_response_id) or "conversation" in parameters,
    )


def _digest_setting(request: Request, leading_system_messages: int) -> bytes:
    """Return a digest of the system prompt and tools of a request."""
    envelope = get_envelope(request)
    setting: bytes | None = envelope.memo.get(_DIGEST_KEY) if envelope is not None else None
    if setting is None:
        fields = get_parameters(request)
        setting = hash_bytes(*(bytes(fields.get(name) or b"") for name in _SETTING_FIELDS))[:HASH_BYTES]
        if envelope is not None:
            envelope.memo[_DIGEST_KEY] = setting
    return (
        hash_bytes(setting, *request.messages[:leading_system_messages])[:HASH_BYTES]
        if leading_system_messages
        else setting
    )
