"""Find the session that a request belongs to.

A client may name its conversation (`client_names.py`): then the name alone decides. Without a name, a request
continues the session

1. whose answer it sends back: the response that it names as previous, or the last of its messages that a model
   wrote, identified by the ids of its tool calls or by its text;
2. whose last request it continues word for word, if there is only one such session.

Both apply within one caller only (agent, key and program); a named previous response, within one agent. A
request without any answer starts a session, unless its client declares that it retries a failed one. A request
that continues from an earlier answer of a session is a fork, a child session. In doubt, a conversation is split
rather than merged.

A process decides by memory first (`recent_sessions.py`), which it shares with the other workers of the gateway,
then by the store. It never waits for a turn that is not stored yet. The decision is final: later writes only
follow it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from foveate.caching import hash_bytes
from foveate.formats.incremental.envelope import get_envelope, get_parameters
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.formats.json_text.parse import as_dict, as_text, parse_json
from foveate.formats.response.answers import is_from_model
from foveate.model import Format, Request
from foveate.session.answer_digests import (
    MAX_MESSAGES,
    AnswerDigests,
    digest_response_id,
    digest_sent_back_answers,
)
from foveate.session.client_names import (
    derive_named_session_id,
    derive_session_id,
    is_retry,
    new_session_id,
    read_client_name,
)
from foveate.session.hash_chain import HASH_BYTES, HashChain
from foveate.session.recent_sessions import Broadcast, InFlightRequest, RecentSessions
from foveate.session.store import AnswerRecord, Session, SessionStore, Turn
from foveate.tokens.worker_threads import run_in_thread

# Fields with a system prompt or tools, in all formats.
_PROMPT_FIELDS = ("system", "instructions", "tools", "systemInstruction", "system_instruction", "toolConfig")
_DIGEST_KEY = object()
# Hashing the prompt of a larger request could block the event loop for milliseconds.
_THREAD_BYTES = 1024 * 1024

# A request may have this many messages after the end of its session: an answer and results of its calls.
_MAX_NEW_MESSAGES = 32
# After this time, an unchanged session is stored again.
_SAVE_AGAIN_SECONDS = 60.0


class ObservedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the conversation of one request.

    `messages` are those of `chain`. `named_session_id` is set if the client names the session, and `parent_id`
    is the session that started it. `scope` separates names and response ids of different callers.
    `previous_response_id` is the response that the provider continues from; `is_partial`: the provider has
    earlier messages that the request does not contain. `is_retry`: the client declares that it repeats a
    request. `compute_prompt_digest` computes the digest of system prompt and tools; the whole request
    has `body_bytes`. `connection` is the number of the client's connection; 0 if it is unknown.
    """

    agent: str
    caller: str
    format: Format
    chain: HashChain
    messages: Sequence[bytes]
    compute_prompt_digest: Callable[[], bytes]
    body_bytes: int = 0
    named_session_id: str | None = None
    parent_id: str | None = None
    scope: str = ""
    previous_response_id: str = ""
    is_partial: bool = False
    is_retry: bool = False
    connection: int = 0

    @property
    def tip(self) -> bytes:
        """Hash of the last message with all before it."""
        last = self.chain.hashes[-1] if self.chain else b""
        return (
            hash_bytes(self.previous_response_id.encode("utf-8", "replace"), last)[:HASH_BYTES]
            if self.previous_response_id
            else last
        )

    def continues(self, session: Session) -> bool:
        at = session.messages
        return not self.is_partial and 0 < at < len(self.chain) and self.chain.hashes[at - 1] == session.tip

    def has_answer_before(self, end: int) -> bool:
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
    connection: int = 0,
) -> ObservedConversation:
    """Describe the conversation of a request.

    `caller` identifies the sender, and `scope` separates names and response ids of different callers. `header`
    is the value of `x-foveate-session`, and `headers` are those in which clients name conversations.
    `connection` is the number of the client's connection, or 0.
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
        compute_prompt_digest=partial(_compute_prompt_digest, request, chain.leading_system_messages),
        body_bytes=len(request.body),
        named_session_id=named_session_id,
        parent_id=name.parent_session_id(agent, scope) if name is not None else None,
        scope=scope,
        previous_response_id=previous_response_id,
        is_retry=is_retry(headers or {}),
        is_partial=bool(previous_response_id) or "conversation" in parameters,
        connection=connection,
    )


def _compute_prompt_digest(request: Request, leading_system_messages: int) -> bytes:
    envelope = get_envelope(request)
    prompt_digest: bytes | None = envelope.memo.get(_DIGEST_KEY) if envelope is not None else None
    if prompt_digest is None:
        fields = get_parameters(request)
        prompt_digest = hash_bytes(*(bytes(fields.get(name) or b"") for name in _PROMPT_FIELDS))[:HASH_BYTES]
        if envelope is not None:
            envelope.memo[_DIGEST_KEY] = prompt_digest
    return (
        hash_bytes(prompt_digest, *request.messages[:leading_system_messages])[:HASH_BYTES]
        if leading_system_messages
        else prompt_digest
    )


class SessionMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a request, with the request included.

    `known_messages` may have been seen before; for a new session, in `known_from_session_id`. `turns` may be
    new, and `is_changed` tells whether there is anything to store. An `is_side_request` has another system
    prompt and history than its session: agents request titles and the like under the name of the conversation.
    """

    session: Session
    known_messages: int
    is_new: bool
    known_from_session_id: str | None = None
    is_fork: bool = False
    is_changed: bool = True
    is_side_request: bool = False
    turns: Sequence[Turn] = ()


class _SessionChoice(msgspec.Struct, frozen=True):
    """The session that a request continues or forks from; None if it starts one.

    `known_messages` of a new session have been seen before, in `known_from_session_id`.
    """

    session: Session | None
    forked_at: bytes | None = None
    known_messages: int = 0
    known_from_session_id: str | None = None


_NEW_SESSION = _SessionChoice(None)


class SessionMatcher:
    """Finds the sessions of requests, and remembers them.

    `has_other_workers`: other processes serve requests with the same store; those that `broadcast` reaches tell
    each other of them.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        has_other_workers: bool = False,
        broadcast: Broadcast | None = None,
        make_id: Callable[[], str] = new_session_id,
    ) -> None:
        self._store = store
        self._has_other_workers = has_other_workers
        self._make_id = make_id
        self._recent = RecentSessions(broadcast)

    async def find(self, conversation: ObservedConversation, *, now: float) -> SessionMatch:
        """Return the session of a request. Nothing is remembered before `begin`.

        Raises:
            MalformedRequest: a message cannot be parsed.
            StoreUnavailable: the store is needed and cannot be reached.
        """
        if conversation.body_bytes >= _THREAD_BYTES:
            prompt_digest = await run_in_thread(conversation.compute_prompt_digest, conversation.body_bytes)
            conversation = replace(conversation, compute_prompt_digest=lambda: prompt_digest)
        self._recent.receive(now)
        if conversation.named_session_id is not None:
            existing = self._recent.get_session(conversation.named_session_id) or await self._store.get_session(
                conversation.named_session_id
            )
            has_history = existing is None and conversation.has_answer_before(len(conversation.chain))
            known = await self._find_last_known_turn(conversation) if has_history else None
            match = self._match_named(
                conversation,
                conversation.named_session_id,
                existing,
                now,
                known=known.position + 1 if known else 0,
            )
            return replace(match, known_from_session_id=known.session_id if known else None)
        choice = await self._choose_session(conversation)
        if choice.session is None:
            new_session = self._make_session(conversation, self._make_id(), now)
            match = self._make_match(conversation, new_session, 0, choice.known_messages, is_new=True)
            return replace(match, known_from_session_id=choice.known_from_session_id)
        if choice.forked_at is not None:
            fork = replace(
                self._make_session(conversation, self._make_id(), now),
                parent_id=choice.session.id,
                forked_at=choice.forked_at,
            )
            return self._make_match(
                conversation,
                fork,
                0,
                choice.known_messages or len(conversation.chain),
                is_new=True,
                is_fork=True,
            )
        return self._match_existing(conversation, choice.session, now)

    def find_named(self, conversation: ObservedConversation, *, now: float) -> SessionMatch:
        """Return the session that a client names, without using the store."""
        assert conversation.named_session_id is not None
        return self._match_named(
            conversation,
            conversation.named_session_id,
            self._recent.get_session(conversation.named_session_id),
            now,
        )

    def begin(self, match: SessionMatch, *, connection: int = 0) -> InFlightRequest:
        return self._recent.begin(match.session, connection=connection)

    def _match_named(
        self,
        conversation: ObservedConversation,
        id_: str,
        existing: Session | None,
        now: float,
        *,
        known: int = 0,
    ) -> SessionMatch:
        if existing is None:
            new_session = replace(self._make_session(conversation, id_, now), parent_id=conversation.parent_id)
            return self._make_match(conversation, new_session, 0, known, is_new=True)
        return self._match_existing(conversation, existing, now)

    def _match_existing(
        self, conversation: ObservedConversation, existing: Session, now: float
    ) -> SessionMatch:
        is_continued = conversation.continues(existing) or existing.tip == conversation.tip
        known = existing.messages if is_continued else 0
        is_side_request = not conversation.continues(existing) and self._is_side_request(conversation, existing)
        session = replace(
            existing,
            tip=existing.tip if is_side_request else conversation.tip,
            messages=existing.messages if is_side_request else len(conversation.chain),
            prompt_digest=existing.prompt_digest
            if is_side_request or conversation.named_session_id is None
            else conversation.compute_prompt_digest(),
            seen_at=max(existing.seen_at, now),
            parent_id=existing.parent_id or conversation.parent_id,
            caller=_session_caller(conversation) if existing.caller is None else existing.caller,
        )
        was_seen = (
            existing.tip == conversation.tip
            and existing.seen_at <= now < existing.seen_at + _SAVE_AGAIN_SECONDS
        )
        if was_seen and existing.caller is not None:
            session = existing
        match = self._make_match(conversation, session, known, known or len(conversation.chain), is_new=False)
        return replace(match, is_changed=session is not existing, is_side_request=is_side_request)

    def _is_side_request(self, conversation: ObservedConversation, existing: Session) -> bool:
        """Return whether a request has another prompt than its named session, and no more messages.

        The first request of a session may be a side request: a longer conversation takes its place.
        """
        is_longer = len(conversation.chain) > existing.messages
        return (
            conversation.named_session_id is not None
            and not is_longer
            and existing.prompt_digest not in (None, conversation.compute_prompt_digest())
        )

    def _make_session(self, conversation: ObservedConversation, id_: str, now: float) -> Session:
        return Session(
            id=id_,
            agent=conversation.agent,
            tip=conversation.tip,
            messages=len(conversation.chain),
            created_at=now,
            seen_at=now,
            caller=_session_caller(conversation),
            prompt_digest=conversation.compute_prompt_digest(),
            first_messages=len(conversation.chain),
        )

    def _make_match(
        self,
        conversation: ObservedConversation,
        session: Session,
        stored: int,
        known: int,
        *,
        is_new: bool,
        is_fork: bool = False,
    ) -> SessionMatch:
        hashes = () if conversation.is_partial else conversation.chain.hashes[stored:]
        turns = [
            Turn(hash=chain_hash, position=stored + at, session_id=session.id)
            for at, chain_hash in enumerate(hashes)
        ]
        return SessionMatch(
            session=session,
            known_messages=known,
            is_new=is_new,
            is_fork=is_fork,
            is_changed=bool(conversation.chain) or conversation.named_session_id is not None,
            turns=turns,
        )

    async def _choose_session(self, conversation: ObservedConversation) -> _SessionChoice:
        if conversation.previous_response_id:
            return await self._choose_by_response(conversation)
        answers = digest_sent_back_answers(
            conversation.agent,
            conversation.caller,
            conversation.format,
            conversation.chain,
            conversation.messages,
        )
        size_bytes = sum(map(len, conversation.messages[-MAX_MESSAGES:]))
        if size_bytes >= LARGE_BYTES:
            answers = iter(await run_in_thread(partial(tuple[AnswerDigests, ...], answers), size_bytes))
        latest = next(answers, None)
        if latest is None:
            return self._choose_retried(conversation)
        rows = self._recent.find_answers(latest.exact[:1])
        choice = self._choose_among(conversation, rows, is_cut=latest.is_cut) if rows else None
        if choice is None and not self._has_other_workers:
            choice = self._choose_by_end(
                conversation, self._find_remembered_ends(conversation)
            ) or self._choose_new_with_known_start(conversation)
        if choice is not None and self._is_certain(conversation, latest, choice):
            return choice
        return await self._choose_from_store(conversation, [latest, *answers])

    async def _choose_by_response(self, conversation: ObservedConversation) -> _SessionChoice:
        digests = [
            digest_response_id(conversation.agent, conversation.previous_response_id, conversation.scope)
        ]
        rows = self._recent.find_answers(digests) or await self._find_answers(digests)
        return self._choose_among(conversation, rows) if rows else _NEW_SESSION

    def _is_certain(
        self, conversation: ObservedConversation, latest: AnswerDigests, choice: _SessionChoice
    ) -> bool:
        """Return whether the store is not needed, because only one session is possible.

        Sessions with the same messages may have got the same text from other processes. Of these, the one whose
        last request came on the connection of this request continues: agents wait for their responses, and
        reuse their connections.
        """
        session = choice.session
        if not self._has_other_workers or session is None:
            return True
        is_continued = choice.forked_at is None and session.tip != conversation.tip
        return (
            is_continued
            and (latest.is_unique or self._recent.is_last_connection(session, conversation.connection))
            and session.prompt_digest == conversation.compute_prompt_digest()
        )

    async def _choose_from_store(
        self, conversation: ObservedConversation, answers: Sequence[AnswerDigests]
    ) -> _SessionChoice:
        latest = answers[0]
        if self._recent.find_answers(latest.exact[:1]):
            # Only another session with the same answer after the same messages can matter: a cheap query.
            rows = await self._find_answers(latest.exact[:1])
            return self._choose_among(conversation, rows, is_cut=latest.is_cut)
        rows = await self._find_answers([digest for answer in answers for digest in answer.all])
        for answer in answers:
            choice = self._choose_by_answer(conversation, answer, rows)
            if choice is not None:
                return choice
        choice = _choose_by_short_answer(answers, rows) if self._recent.is_complete else None
        if choice is not None:
            return choice
        ends = await self._store.find_sessions_ending_at(
            conversation.agent, conversation.caller, _last_hashes(conversation.chain)
        )
        sessions = {session.id: session for session in self._find_remembered_ends(conversation)}
        sessions |= {session.id: self._recent.newer_state(session) for session in ends}
        choice = self._choose_by_end(conversation, list(sessions.values()))
        if self._has_other_workers and choice is not None and choice.session is not None:
            # Another process may have continued this session, or one that ended with the same messages.
            stored = await self._store.get_session(choice.session.id)
            is_continued = stored is not None and self._recent.newer_state(stored).tip != choice.session.tip
            if is_continued or not self._recent.is_complete:
                choice = None
        return choice or await self._choose_fork(conversation)

    async def _find_answers(self, digests: Sequence[bytes]) -> list[tuple[AnswerRecord, Session]]:
        remembered = self._recent.find_answers(digests)
        seen = {(row.digest, row.session_id) for row, _ in remembered}
        stored = await self._store.find_answers(digests)
        more = [
            (row, self._recent.newer_state(session))
            for row, session in stored
            if (row.digest, session.id) not in seen
        ]
        return remembered + more

    def _choose_by_answer(
        self,
        conversation: ObservedConversation,
        digests: AnswerDigests,
        rows: Sequence[tuple[AnswerRecord, Session]],
    ) -> _SessionChoice | None:
        for number, digest in enumerate(digests.exact):
            exact = [(row, session) for row, session in rows if row.digest == digest]
            if exact and (number == 0 or len(exact) == 1):
                return self._choose_among(conversation, exact, is_cut=digests.is_cut)
        loose = {session.id: (row, session) for row, session in rows if row.digest in digests.loose}
        if len(loose) != 1 or not (digests.is_unique or self._recent.is_complete):
            return None
        ((row, session),) = loose.values()
        return _SessionChoice(session) if session.tip == row.tip or conversation.continues(session) else None

    def _choose_among(
        self,
        conversation: ObservedConversation,
        rows: Sequence[tuple[AnswerRecord, Session]],
        *,
        is_cut: bool = False,
    ) -> _SessionChoice:
        """Choose among sessions with an answer that the request sends back.

        Such sessions are equal so far, unless the answer `is_cut`: the connection distinguishes them. Other
        processes may be choosing one of them too.
        """
        if len(rows) > 1:
            prompt_digest = conversation.compute_prompt_digest()
            rows = [(row, session) for row, session in rows if session.prompt_digest == prompt_digest] or rows
        continued = [
            session for row, session in rows if session.tip == row.tip or conversation.continues(session)
        ]
        if len(continued) > 1:
            continued = [
                session
                for session in continued
                if self._recent.is_last_connection(session, conversation.connection)
            ] or continued
        if len(continued) == 1 or (continued and not is_cut and not self._has_other_workers):
            return _SessionChoice(max(continued, key=lambda session: (session.messages, session.seen_at)))
        repeated = [
            session
            for _, session in rows
            if session.tip == conversation.tip and not self._recent.is_waiting(session)
        ]
        if len(repeated) == 1 and not continued:
            return _SessionChoice(repeated[0])
        row, latest = max(rows, key=lambda row_and_session: row_and_session[1].seen_at)
        return _SessionChoice(latest, forked_at=row.tip)

    def _choose_retried(self, conversation: ObservedConversation) -> _SessionChoice:
        """Choose the session that started with the same request and failed, if the client retries."""
        failed = [
            session
            for session in self._recent.find_ending_at(conversation.caller, conversation.tip)
            if self._has_failed(session)
        ]
        if (
            conversation.is_retry
            and len(failed) == 1
            and failed[0].prompt_digest == conversation.compute_prompt_digest()
        ):
            return _SessionChoice(failed[0])
        return _NEW_SESSION

    def _choose_new_with_known_start(self, conversation: ObservedConversation) -> _SessionChoice | None:
        """Start a session if another one started with the same request: the store has nothing about it."""
        same_start = [
            session
            for session in self._recent.find_ending_at(conversation.caller, conversation.tip)
            if session.first_messages == len(conversation.chain) and session.parent_id is None
        ]
        return (
            _SessionChoice(None, known_messages=len(conversation.chain), known_from_session_id=same_start[0].id)
            if same_start
            else None
        )

    def _find_remembered_ends(self, conversation: ObservedConversation) -> list[Session]:
        ends = (
            self._recent.find_ending_at(conversation.caller, tip) for tip in _last_hashes(conversation.chain)
        )
        return next(filter(None, ends), [])

    def _choose_by_end(
        self, conversation: ObservedConversation, sessions: Sequence[Session]
    ) -> _SessionChoice | None:
        repeated = [session for session in sessions if session.tip == conversation.tip]
        if repeated:
            is_retried = conversation.is_retry and len(repeated) == 1 and self._has_failed(repeated[0])
            return _SessionChoice(repeated[0]) if is_retried else None
        continued = [session for session in sessions if conversation.continues(session)]
        max_messages = max((session.messages for session in continued), default=0)
        longest_sessions = [session for session in continued if session.messages == max_messages]
        if len(longest_sessions) != 1:
            return _NEW_SESSION if longest_sessions else None
        (session,) = longest_sessions
        has_same_prompt = session.prompt_digest in (None, conversation.compute_prompt_digest())
        if has_same_prompt or conversation.has_answer_before(max_messages):
            return _SessionChoice(session)
        return None

    def _has_failed(self, session: Session) -> bool:
        return not self._recent.is_waiting(session) and not self._recent.is_answered(session)

    async def _choose_fork(self, conversation: ObservedConversation) -> _SessionChoice:
        """Choose the session that the request forks from: they share an answer after its first request."""
        turn = await self._find_last_known_turn(conversation)
        if turn is None:
            return _NEW_SESSION
        known = turn.position + 1
        owner = self._recent.get_session(turn.session_id) or await self._store.get_session(turn.session_id)
        if owner is None or owner.caller not in (None, conversation.caller):
            return _SessionChoice(None, known_messages=known, known_from_session_id=turn.session_id)
        is_shared = any(is_from_model(raw) for raw in conversation.messages[owner.first_messages : known])
        if is_shared:
            return _SessionChoice(owner, turn.hash, known)
        return _SessionChoice(None, known_messages=known, known_from_session_id=turn.session_id)

    async def _find_last_known_turn(self, conversation: ObservedConversation) -> Turn | None:
        known = await self._store.find_turns(conversation.agent, _last_hashes(conversation.chain))
        return max(known.values(), key=lambda turn: turn.position, default=None)


def _choose_by_short_answer(
    answers: Sequence[AnswerDigests], rows: Sequence[tuple[AnswerRecord, Session]]
) -> _SessionChoice | None:
    """Choose the session that ends with this short text, if the request contains an earlier answer of it."""
    latest, *earlier = answers
    ending = {
        session.id: session for row, session in rows if row.digest in latest.short and session.tip == row.tip
    }
    if len(ending) != 1:
        return None
    ((id_, session),) = ending.items()
    others = {digest for answer in earlier for digest in answer.loose}
    return (
        _SessionChoice(session)
        if any(row.digest in others and row.session_id == id_ for row, _ in rows)
        else None
    )


def _session_caller(conversation: ObservedConversation) -> str:
    """Return the caller of a session; empty for a named one, which is found by its name alone."""
    return conversation.caller if conversation.named_session_id is None else ""


def _last_hashes(chain: HashChain) -> tuple[bytes, ...]:
    return chain.hashes[: -_MAX_NEW_MESSAGES - 1 : -1]
