"""Digests that identify a model's answer, when it passes and when a client sends it back."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from foveate.session.chain import HASH_BYTES, HashChain
from foveate.session.ids import is_unique_name
from foveate.session.turns import AnswerRecord, Session
from foveate.tokens.memo import hash_bytes
from foveate.values import Format
from foveate.wire.answer_parts import MAX_TEXT_CHARS, AnswerParts, is_from_model, read_message_parts

# Some clients put texts of their own behind the last answer, each with an "Ok." that no model wrote.
_MAX_ANSWERS = 8
MAX_MESSAGES = 64
# Shorter texts ("I am sorry, but …") may be answers in several sessions.
_MIN_TEXT_CHARS = 120
# Ids of some hosts only number the calls of one answer: `functions.read:0`.
_RANDOM_ID = re.compile(r"(?=[^0-9]*[0-9])[A-Za-z0-9_-]{0,64}[A-Za-z0-9]{16,128}")


class AnswerDigests(msgspec.Struct, frozen=True):
    """Digests of one answer.

    An `exact` one covers all that was said before, the most telling one first. A `loose` one covers the answer
    alone: it is found in a history that its client has rearranged, and others may have got the same answer. A
    `short` one covers a text alone that is too short to say anything by itself. `is_cut`: they do not cover the
    end of a long text, in which answers may differ. `is_unique`: no other session got the same answer, since it
    has a random id.
    """

    exact: tuple[bytes, ...] = ()
    loose: tuple[bytes, ...] = ()
    short: tuple[bytes, ...] = ()
    is_cut: bool = False
    is_unique: bool = False

    @property
    def all(self) -> tuple[bytes, ...]:
        """Return all of them."""
        return self.exact + self.loose + self.short


def make_answer_records(
    session: Session,
    api_format: Format,
    parts: AnswerParts,
    at: float,
    *,
    scope: str = "",
    is_stored: bool = False,
) -> list[AnswerRecord]:
    """Return what is stored of an answer that a session has just got.

    `scope` separates callers, who may get responses with the same ids. `is_stored`: the provider stores the
    answer, so that it can be continued by its id. It stores all responses of the Responses API.
    """
    digests: tuple[bytes, ...] = ()
    if session.caller:
        digests = _digest_answer(session.agent, session.caller, session.tip, parts).all
    if (is_stored or api_format is Format.RESPONSES) and parts.id:
        digests += (digest_response_id(session.agent, parts.id, scope),)
    return [
        AnswerRecord(digest=answer_digest, session_id=session.id, tip=session.tip, at=at)
        for answer_digest in digests
    ]


def digest_response_id(agent: str, response_id: str, scope: str) -> bytes:
    """Return the digest of a provider's id of a response; some servers just number their responses."""
    key = "response", agent, response_id
    return _digest(*key) if is_unique_name(response_id) else _digest(*key, scope)


def digest_sent_back_answers(
    agent: str, caller: str, api_format: Format, chain: HashChain, messages: Sequence[bytes]
) -> Iterator[AnswerDigests]:
    """Yield digests of the last answers in a request, the latest first.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    end = len(messages)
    lowest, count = max(0, end - MAX_MESSAGES), 0
    while end > lowest and count < _MAX_ANSWERS:
        if not is_from_model(messages[end - 1]):
            end -= 1
            continue
        start = end - 1
        while start > lowest and is_from_model(messages[start - 1]):
            start -= 1
        before = chain.hashes[start - 1] if start else b""
        yield _digest_answer(agent, caller, before, read_message_parts(api_format, messages[start:end]))
        end, count = start, count + 1


def _digest_answer(agent: str, caller: str, tip: bytes, parts: AnswerParts) -> AnswerDigests:
    call, exact = parts.tool_calls[0] if parts.tool_calls else "", []
    if call:
        exact.append(_digest("tool call", agent, caller, tip, call))
    if parts.text:
        exact.append(_digest("text", agent, caller, tip, parts.text))
    loose: tuple[bytes, ...] = ()
    if _RANDOM_ID.fullmatch(call):
        return AnswerDigests(tuple(exact), (_digest("tool call", agent, caller, call),), is_unique=True)
    if not call and len(parts.text) >= _MIN_TEXT_CHARS:
        loose = (_digest("text", agent, caller, parts.text),)
    elif not call and parts.text:
        return AnswerDigests(tuple(exact), short=(_digest("text", agent, caller, parts.text),))
    return AnswerDigests(tuple(exact), loose, is_cut=not call and len(parts.text) >= MAX_TEXT_CHARS)


def _digest(*parts: str | bytes) -> bytes:
    encoded = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in parts]
    return hash_bytes(*encoded)[:HASH_BYTES]
