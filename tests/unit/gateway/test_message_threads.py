"""Stored message threads: limits of memory and time, claims and ownership."""

import json
from collections.abc import Callable

import pytest

from foveate.config.settings import ServerSettings, Settings, StoreSettings, UpstreamSettings
from foveate.errors import MalformedRequest, ThreadRefused
from foveate.formats.message_threads import (
    ALREADY_CONTINUED,
    CONTINUE_IN_FLIGHT,
    FINGERPRINT_MISMATCH,
    NOT_FOUND,
    UNSUPPORTED_REQUEST,
    ThreadHistory,
)
from foveate.gateway.config import build_gateway_options
from foveate.gateway.message_threads import ThreadStore, ThreadTurn, begin_turn, hash_owner
from foveate.gateway.request import ClientRequest, parse_request
from foveate.gateway.response import build_error_response, may_retry
from foveate.gateway.routing import ThreadMode
from foveate.model import Format

OWNER, OTHER = b"owner", b"other"
BETA = b"message-threads-2026-08-12"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_history(size_bytes: int = 10) -> ThreadHistory:
    return ThreadHistory(b"", b"", b"m" * size_bytes)


def error_code(call: Callable[[], object]) -> str:
    with pytest.raises(ThreadRefused) as error:
        call()
    return error.value.thread_code


def make_request(
    path: str = "/v1/messages",
    *,
    key: bytes = b"sk-1",
    key_header: bytes = b"x-api-key",
    agent: bytes = b"SDK",
    beta: bytes = BETA,
) -> ClientRequest:
    headers = [(key_header, key), (b"user-agent", agent), (b"anthropic-beta", beta)]
    return parse_request(
        {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    )


def make_body(thread: object, **fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [], "thread": thread} | fields).encode()


async def begin(
    threads: ThreadStore, body: bytes, *, claims: bool = True, request: ClientRequest | None = None
) -> ThreadTurn:
    turn = await begin_turn(threads, ThreadMode.HOLD, request or make_request(), "default", body, claims=claims)
    assert turn is not None
    return turn


def test_a_thread_is_found_only_by_its_owner() -> None:
    threads = ThreadStore(Clock())
    threads.store(OWNER, "msg_1", make_history())

    assert threads.history(OWNER, "msg_1") == make_history()
    assert error_code(lambda: threads.history(OTHER, "msg_1")) == NOT_FOUND
    assert error_code(lambda: threads.history(OWNER, "msg_2")) == NOT_FOUND


def test_owners_differ_by_agent_and_by_every_credential() -> None:
    owners = {
        hash_owner(make_request(), "ana"),
        hash_owner(make_request(), "ben"),
        hash_owner(make_request(key=b"sk-2"), "ana"),
        hash_owner(make_request(key=b"sk-ant-oat-1"), "ana"),
        hash_owner(make_request(key=b"sk-ant-oat-2"), "ana"),
        hash_owner(make_request(key=b"fov-1", key_header=b"x-foveate-key"), "ana"),
        hash_owner(make_request(key=b"fov-2", key_header=b"x-foveate-key"), "ana"),
    }

    assert len(owners) == 7
    assert hash_owner(make_request(agent=b"other/2"), "ana") in owners


def test_a_thread_expires_an_hour_after_its_last_request() -> None:
    clock = Clock()
    threads = ThreadStore(clock)
    threads.store(OWNER, "msg_1", make_history())
    clock.now += 3599
    threads.claim(OWNER, "msg_1")
    threads.release(OWNER, "msg_1")
    clock.now += 3599
    threads.claim(OWNER, "msg_1")
    threads.release(OWNER, "msg_1")
    clock.now += 3601

    assert error_code(lambda: threads.claim(OWNER, "msg_1")) == NOT_FOUND
    assert (len(threads), threads.size_bytes) == (0, 0)


def test_the_least_recently_used_threads_are_dropped() -> None:
    threads = ThreadStore(Clock(), max_bytes=10_000)
    for number in range(100):
        threads.store(OWNER, f"msg_{number}", make_history(2_000))

    assert threads.size_bytes <= 10_000
    assert error_code(lambda: threads.history(OWNER, "msg_0")) == NOT_FOUND
    assert threads.history(OWNER, "msg_99") == make_history(2_000)


def test_a_long_thread_is_stored_once() -> None:
    """Each response replaces the previous one, of which only the id is stored."""
    threads = ThreadStore(Clock())
    threads.store(OWNER, "msg_0", make_history())
    for number in range(200):
        threads.claim(OWNER, f"msg_{number}")
        threads.mark_continued(OWNER, f"msg_{number}")
        threads.store(OWNER, f"msg_{number + 1}", make_history(10_000 * number))

    assert threads.size_bytes < 10_000 * 200 + 1024 * 201


def test_a_response_is_continued_once() -> None:
    threads = ThreadStore(Clock())
    threads.store(OWNER, "msg_1", make_history())
    threads.claim(OWNER, "msg_1")

    assert error_code(lambda: threads.claim(OWNER, "msg_1")) == CONTINUE_IN_FLIGHT
    assert threads.history(OWNER, "msg_1") == make_history()
    threads.release(OWNER, "msg_1")
    threads.claim(OWNER, "msg_1")
    threads.mark_continued(OWNER, "msg_1")
    assert error_code(lambda: threads.claim(OWNER, "msg_1")) == ALREADY_CONTINUED


def test_an_ambiguous_response_id_cannot_be_continued() -> None:
    threads = ThreadStore(Clock())
    threads.store(OWNER, "msg_1", make_history(1))
    threads.store(OWNER, "msg_1", make_history(2))

    assert error_code(lambda: threads.claim(OWNER, "msg_1")) == NOT_FOUND


async def test_a_turn_is_sent_complete_and_without_its_beta() -> None:
    threads = ThreadStore(Clock())
    threads.store(
        hash_owner(make_request(), "default"), "msg_1", ThreadHistory(b'"Be kind."', b"", b'{"role":"user"}')
    )
    request = make_request(beta=b"other-1," + BETA)
    turn = await begin(
        threads, make_body({"type": "continue", "previous_message_id": "msg_1"}), request=request
    )

    assert json.loads(turn.body) == {"model": "m", "messages": [{"role": "user"}], "system": "Be kind."}
    assert dict(turn.request.raw_headers)[b"anthropic-beta"] == b"other-1"
    assert turn.request.headers["anthropic-beta"] == "other-1"
    created = await begin(threads, make_body({"type": "create"}))
    assert b"anthropic-beta" not in dict(created.request.raw_headers)


async def test_a_turn_without_a_response_can_be_repeated() -> None:
    threads = ThreadStore(Clock())
    threads.store(hash_owner(make_request(), "default"), "msg_1", make_history())
    body = make_body({"type": "continue", "previous_message_id": "msg_1"})
    count_turn = await begin(threads, body, claims=False)
    first = await begin(threads, body)
    with pytest.raises(ThreadRefused):
        await begin(threads, body)
    first.close()

    assert (await begin(threads, body)).body == count_turn.body


async def test_counting_a_turn_does_not_end_the_claim_of_another_request() -> None:
    """Regression: after it, two requests could continue from the same response at once."""
    threads = ThreadStore(Clock())
    threads.store(hash_owner(make_request(), "default"), "msg_1", make_history())
    body = make_body({"type": "continue", "previous_message_id": "msg_1"})
    await begin(threads, body)
    (await begin(threads, body, claims=False)).close()

    with pytest.raises(ThreadRefused) as error:
        await begin(threads, body)
    assert error.value.thread_code == CONTINUE_IN_FLIGHT


async def test_fields_that_a_thread_fixes_cannot_change() -> None:
    threads = ThreadStore(Clock())
    threads.store(hash_owner(make_request(), "default"), "msg_1", ThreadHistory(b'"Be kind."', b"", b"{}"))
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    with pytest.raises(ThreadRefused, match="`system` and `tools`") as error:
        await begin(threads, make_body(thread, system="Be rude.", tools=[{}]))

    assert error.value.thread_code == FINGERPRINT_MISMATCH
    assert json.loads((await begin(threads, make_body(thread, system="Be kind."))).body)["system"] == "Be kind."


async def test_other_requests_and_passed_threads_are_unchanged() -> None:
    threads, create = ThreadStore(Clock()), make_body({"type": "create"})
    for mode, request, body in (
        (ThreadMode.PASS, make_request(), create),
        (ThreadMode.HOLD, make_request(), b'{"messages":[]}'),
        (ThreadMode.REFUSE, make_request(), b'{"messages":[]}'),
        (ThreadMode.HOLD, make_request("/v1/chat/completions"), create),
    ):
        assert await begin_turn(threads, mode, request, "default", body, claims=True) is None
    with pytest.raises(ThreadRefused) as error:
        await begin_turn(threads, ThreadMode.REFUSE, make_request(), "default", create, claims=True)
    assert error.value.thread_code == UNSUPPORTED_REQUEST
    with pytest.raises(MalformedRequest):
        await begin_turn(threads, ThreadMode.HOLD, make_request(), "default", make_body("create"), claims=True)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [(NOT_FOUND, 404, "not_found_error")]
    + [
        (code, 400, "invalid_request_error")
        for code in (ALREADY_CONTINUED, CONTINUE_IN_FLIGHT, FINGERPRINT_MISMATCH, UNSUPPORTED_REQUEST)
    ],
)
def test_each_error_has_the_status_and_the_details_of_the_provider(code: str, status: int, kind: str) -> None:
    error = ThreadRefused(code, "no")
    error_response = build_error_response(error, Format.ANTHROPIC)

    assert (error_response.status, error_response.kind, error_response.details) == (
        status,
        kind,
        {"error_code": code},
    )
    assert not may_retry(error)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        (Settings(), ThreadMode.HOLD),
        (Settings(server=ServerSettings(workers=2)), ThreadMode.REFUSE),
        (Settings(store=StoreSettings(url="postgresql://db/foveate")), ThreadMode.REFUSE),
        (Settings(store=StoreSettings(url="sqlite:///a.sqlite")), ThreadMode.HOLD),
    ],
)
def test_threads_are_held_by_default_if_there_is_one_process(settings: Settings, mode: ThreadMode) -> None:
    upstreams = build_gateway_options(settings, {}).routing.upstreams

    assert {upstream.threads for upstream in upstreams.values()} == {mode}


def test_the_thread_mode_is_configured_per_upstream() -> None:
    settings = Settings(
        server=ServerSettings(workers=2), upstreams={"anthropic": UpstreamSettings(threads="pass")}
    )
    upstreams = build_gateway_options(settings, {}).routing.upstreams

    assert upstreams["anthropic"].threads is ThreadMode.PASS
    assert upstreams["vllm"].threads is ThreadMode.REFUSE
