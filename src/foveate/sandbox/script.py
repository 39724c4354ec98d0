"""Scripts: what the sandbox answers to each request, and which faults it simulates.

A script is a YAML or JSON file with a list of steps, or with `steps` and `repeat`. A request can also bring a
step: as JSON in the header `x-sandbox-answer`, or between `[[sandbox` and `]]` in the text of its last message.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from foveate.config.document import read_document
from foveate.errors import BadOption

STEP_HEADER = "x-sandbox-answer"
# Atomic, because a later marker cannot match if the first one does not.
_MARKER = re.compile(r"(?>.*?\[\[sandbox\s*(?=\{))(\{.*\})\s*\]\]", re.DOTALL)
_PATH_PREFIX = " - at `$"
_PATH_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")

Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call; without `input`, one that conforms to the tool's schema is generated."""

    name: str
    input: dict[str, Any] | None = None


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One response, or a fault.

    `status` is returned instead of a response; `overloaded` stands for the provider's status for that.
    `delay_seconds` pass before the first byte, `pace_seconds` between events of a stream. A stream is cut off
    after `disconnect_after` events, or reports after `fail_after` events that the provider is overloaded; a
    response that is not streamed is then not sent.
    """

    text: str | None = None
    thinking: str | None = None
    tools: tuple[ScriptedCall, ...] = ()
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None
    message: str = ""
    overloaded: bool = False
    retry_after_seconds: Seconds | None = None
    delay_seconds: Seconds = 0
    pace_seconds: Seconds = 0
    disconnect_after: Annotated[int, msgspec.Meta(ge=0)] | None = None
    fail_after: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps, one for each accepted request; then the default response follows, or the first step again."""

    steps: tuple[ScriptStep, ...] = ()
    repeat: bool = False

    def step(self, number: int) -> ScriptStep | None:
        """Return the step of a request, counted from 0."""
        if self.repeat and self.steps:
            return self.steps[number % len(self.steps)]
        return self.steps[number] if number < len(self.steps) else None


def read_script(path: Path) -> Script:
    """Read a script file.

    Raises:
        UnreadableInput: the file does not exist, or is not text.
        BadSetting: not valid YAML or JSON, or an unknown key or wrong type; names line and key.
    """
    document = read_document(path)
    data = {"steps": document.data} if isinstance(document.data, list) else document.data
    try:
        return msgspec.convert(data, Script)
    except msgspec.ValidationError as error:
        reason, path_steps = _split_error(error)
        if isinstance(document.data, list):
            path_steps = path_steps[1:]
        raise document.error(reason, path_steps) from None


def find_requested_step(header: str | None, text: str) -> ScriptStep | None:
    """Return the step that a request brings in a header or in the text of its last message.

    Raises:
        BadOption: not valid JSON, or an unknown key or wrong type.
    """
    match = _MARKER.match(text) if header is None else None
    encoded = header if header is not None else match[1] if match else None
    if encoded is None:
        return None
    try:
        return msgspec.json.decode(encoded, type=ScriptStep)
    except msgspec.ValidationError as error:
        reason, path_steps = _split_error(error)
        raise BadOption(f"{STEP_HEADER}: {reason}", path=path_steps) from None
    except msgspec.DecodeError as error:
        raise BadOption(f"{STEP_HEADER}: not JSON: {error}") from None


def _split_error(error: msgspec.ValidationError) -> tuple[str, tuple[str | int, ...]]:
    reason, _, path = str(error).partition(_PATH_PREFIX)
    path_steps = tuple(
        int(index) if index else name for name, index in _PATH_STEP.findall(path.removesuffix("`"))
    )
    return reason[:1].lower() + reason[1:], path_steps
