"""Digests of model answers, by which a request is recognized that sends an answer back."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from foveate.caching import hash_bytes
from foveate.formats.response.answers import MAX_TEXT_CHARS, AnswerParts, is_from_model, read_message_parts
from foveate.model import Format
from foveate.session.client_names import is_unique_name
from foveate.session.hash_chain import HASH_BYTES, HashChain
from foveate.session.store import AnswerRecord, Session

# Some clients append their own texts after the last answer, each with an "Ok." that no model wrote.
_MAX_ANSWERS = 8
MAX_MESSAGES = 64
# Shorter texts ("I am sorry, but …") may be answers in several sessions.
_MIN_TEXT_CHARS = 120
# Some hosts only number the calls within an answer: `functions.read:0`.
_RANDOM_ID = re.compile(r"(?=[^0-9]*[0-9])[A-Za-z0-9_-]{0,64}[A-Za-z0-9]{16,128}")


class AnswerDigests(msgspec.Struct, frozen=True):
    """Digests of one answer.

    `exact` ones cover all previous messages, most specific first. `loose` ones cover the answer alone: they
    match a history that the client has rearranged, but another session may have the same answer. `short` ones
    cover a text that is too short to identify anything by itself. `is_cut`: the digests do not cover the end of
    a long text. `is_unique`: the answer has a random id, so no other session has it.
    """

    exact: tuple[bytes, ...] = ()
    loose: tuple[bytes, ...] = ()
    short: tuple[bytes, ...] = ()
    is_cut: bool = False
    is_unique: bool = False

    @property
    def all(self) -> tuple[bytes, ...]:
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
    """Return the records to store for a new answer of a session.

    `scope` separates callers, who may get responses with equal ids. `is_stored`: the provider stores the
    answer, so that it can be continued by its id. The Responses API stores all of them.
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
    """Digest a provider's response id. Ids that are just numbers are scoped to the caller."""
    key = "response", agent, response_id
    return _digest(*key) if is_unique_name(response_id) else _digest(*key, scope)


def digest_sent_back_answers(
    agent: str, caller: str, api_format: Format, chain: HashChain, messages: Sequence[bytes]
) -> Iterator[AnswerDigests]:
    """Yield digests of the last answers in a request, latest first.

    Raises:
        MalformedRequest: a message cannot be parsed.
    """
    end = len(messages)
    min_start, count = max(0, end - MAX_MESSAGES), 0
    while end > min_start and count < _MAX_ANSWERS:
        if not is_from_model(messages[end - 1]):
            end -= 1
            continue
        start = end - 1
        while start > min_start and is_from_model(messages[start - 1]):
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
