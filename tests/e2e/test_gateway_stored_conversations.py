"""OpenAI's stored conversations through the gateway: their size comes from usage or is unknown."""

import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest

from foveate.cost.caps import Cap, CapScope, UnknownPricePolicy
from tests.support.oracles.system_state import wait_until
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox
from tests.support.servers.scripted_upstream import http_response, respond_always, running_upstream

MODEL = "gpt-4.1"
LONG = "Be kind. " * 3000
STORED_TOKENS = 6000
"""`LONG` has more tokens than this."""


def open_client(gateway: RunningGateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0)


def read_counts(folder: Path, calls: int) -> list[tuple[int | None, str]]:
    """Return the counted tokens and the session of each request, requests of unknown size first."""

    def read() -> list[tuple[int | None, str]]:
        with sqlite3.connect(folder / "gateway.sqlite") as store:
            return store.execute("SELECT tokens, session_id FROM traces_v1 ORDER BY tokens").fetchall()

    return wait_until(read, lambda rows: len(rows) >= calls)


@pytest.mark.parametrize("streams", [False, True])
def test_a_request_that_continues_a_known_response_is_counted_completely(tmp_path: Path, streams: bool) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        open_client(gateway) as client,
    ):

        def respond(text: str, previous: str | None) -> Any:
            arguments: Any = {"model": MODEL, "input": text, "previous_response_id": previous}
            if not streams:
                return client.responses.create(**arguments)
            events: list[Any] = list(client.responses.create(**arguments, stream=True))
            return events[-1].response

        first = respond(LONG, None)
        second = respond("More", first.id)
        respond("And more", second.id)
        counts = read_counts(tmp_path, 3)

    assert gateway.failed_steps == []
    assert min(tokens or 0 for tokens, _ in counts) > STORED_TOKENS
    assert len({session for _, session in counts}) == 1
    reported_tokens = second.usage.input_tokens
    assert 0.99 * reported_tokens < (counts[1][0] or 0) < 1.01 * reported_tokens


def test_a_gateway_that_did_not_see_the_response_shows_the_size_as_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "restarted"
    folder.mkdir()
    with running_sandbox() as sandbox:
        with running_gateway(sandbox.url, tmp_path) as gateway, open_client(gateway) as client:
            first = client.responses.create(model=MODEL, input=LONG)
        with running_gateway(sandbox.url, folder) as gateway, open_client(gateway) as client:
            second = client.responses.create(model=MODEL, input="More", previous_response_id=first.id)
            assert [tokens for tokens, _ in read_counts(folder, 1)] == [None]
            client.responses.create(model=MODEL, input="More", previous_response_id=second.id)
            counts = read_counts(folder, 2)

    assert counts[0][0] is None
    assert (counts[1][0] or 0) > STORED_TOKENS, "the usage of the first response gives the size"


def test_a_cap_rejects_requests_of_unknown_size_and_reserves_for_known_ones(tmp_path: Path) -> None:
    call_cap, day = (
        Cap(scope=CapScope.CALL, dollars=Decimal("0.05")),
        Cap(scope=CapScope.DAY, dollars=Decimal(100)),
    )
    arguments: Any = {"model": MODEL, "input": "More", "max_output_tokens": 1000}
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, caps=[call_cap, day]) as gateway,
        open_client(gateway) as client,
    ):
        first = client.responses.create(**arguments | {"input": LONG})
        client.responses.create(**arguments, previous_response_id=first.id)
        with pytest.raises(openai.APIStatusError) as large_error:
            client.responses.create(**arguments | {"input": 3 * LONG}, previous_response_id=first.id)
        with pytest.raises(openai.APIStatusError) as unknown_error:
            client.responses.create(**arguments, previous_response_id="resp_unseen")
        with pytest.raises(openai.APIStatusError) as conversation:
            client.responses.create(**arguments, conversation="conv_unseen")

    assert "may cost" in str(large_error.value)
    for error in (unknown_error, conversation):
        assert error.value.status_code == 402
        assert "its size is unknown; send the whole conversation" in str(error.value)


def test_a_cap_that_allows_unknown_sizes_reserves_the_context_window(tmp_path: Path) -> None:
    caps = [Cap(scope=CapScope.DAY, dollars=Decimal(1), unknown=UnknownPricePolicy.ALLOW)]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, caps=caps) as gateway,
        open_client(gateway) as client,
        pytest.raises(openai.APIStatusError, match="may cost"),
    ):
        client.responses.create(model=MODEL, input="More", previous_response_id="resp_unseen")


def test_the_size_of_a_conversation_is_known_until_its_items_change(tmp_path: Path) -> None:
    text = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": MODEL,
        "output": [],
        "usage": {"input_tokens": 7000, "output_tokens": 100, "total_tokens": 7100},
    }
    with (
        running_upstream(respond_always(http_response(json.dumps(text).encode()))) as upstream,
        running_gateway(upstream.url, tmp_path) as gateway,
        open_client(gateway) as client,
    ):
        arguments: Any = {"model": MODEL, "input": "More", "conversation": {"id": "conv_1"}}
        client.responses.create(**arguments)
        client.responses.create(**arguments | {"conversation": "conv_1"})
        client.post("/conversations/conv_1/items", body={"items": []}, cast_to=object)
        client.responses.create(**arguments)
        counts = read_counts(tmp_path, 3)

    assert [tokens for tokens, _ in counts[:2]] == [None, None]
    assert 7100 < (counts[2][0] or 0) < 7150
