"""A client of the model that writes summaries, with scripted responses."""

import asyncio
import json
from collections.abc import Mapping

import msgspec

from foveate.http import JsonClient, JsonReply
from tests.support.stores.recording_ledger import RecordingLedger

URL = "https://a.example/v1/messages"
MODEL = "claude-opus-4-5"
CALLS_A_TOOL = "calls a tool"  # and gets the history as data at once
NEVER = "thinks forever"
WHEN_ALLOWED = "thinks until it may answer"
BODY = json.dumps(
    {"model": MODEL, "max_tokens": 1_000, "messages": [{"role": "user", "content": "Sum it up. " * 100}]}
).encode()


class ScriptedModel(JsonClient):
    """Sends scripted responses and records the open reservations of each call."""

    def __init__(self, ledger: RecordingLedger, *responses: str | Exception, input_tokens: int = 1_000) -> None:
        super().__init__(timeout_seconds=300)
        self.is_called = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._input_tokens = input_tokens
        self.reserved_ids: list[list[str]] = []
        self.bodies: list[bytes] = []
        self._ledger = ledger
        self._responses = list(responses)

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> JsonReply:
        self.reserved_ids.append(list(self._ledger.open))
        self.bodies.append(body)
        response = self._responses.pop(0)
        if isinstance(response, Exception):
            raise response
        if response == NEVER or not self.may_answer.is_set():
            self.is_called.set()
            await (asyncio.sleep(3600) if response == NEVER else self.may_answer.wait())
        usage_body = {
            "content": [{"type": "tool_use" if response == CALLS_A_TOOL else "text", "text": response}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": self._input_tokens, "output_tokens": 100 if self._input_tokens else 0},
        }
        return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in usage_body.items()}
