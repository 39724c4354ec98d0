"""Scripts: what the sandbox answers, request by request, and what it does wrong on demand.

A script is a YAML or JSON file with a list of steps, or with `steps` and `repeat`. A step can also come with a
request: as JSON in the header `x-sandbox-answer`, or between `[[sandbox` and `]]` in the last message's text.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from foveate.config.document import read_document
from foveate.errors import BadOption

STEP_HEADER = "x-sandbox-answer"
# What the first marker does not find behind it, no later one finds either, so there is no second try.
_MARKER = re.compile(r"(?>.*?\[\[sandbox\s*(?=\{))(\{.*\})\s*\]\]", re.DOTALL)
_PATH_PREFIX = " - at `$"
_PATH_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")

Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a tool; without an `input`, with one that fits the tool's schema."""

    name: str
    input: dict[str, Any] | None = None


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer: what is thought, said and called; or what goes wrong.

    `status` is answered in the place of anything else, `overloaded` with the provider's own status for it.
    `delay_seconds` pass before the first byte and `pace_seconds` between two events of a stream.
    A stream is cut off after `disconnect_after` events, or says after `fail_after` that the provider is
    overloaded; an answer that is no stream is then not given at all.
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
    """Steps, one for each request that is accepted; afterwards the usual answer, or the first step again."""

    steps: tuple[ScriptStep, ...] = ()
    repeat: bool = False

    def step(self, number: int) -> ScriptStep | None:
        """The step of the request of that number, counted from 0."""
        if self.repeat and self.steps:
            return self.steps[number % len(self.steps)]
        return self.steps[number] if number < len(self.steps) else None


def read_script(path: Path) -> Script:
    """The script in a file.

    Raises:
        UnreadableInput: no such file, or not text.
        BadSetting: neither YAML nor JSON, or something in it that there is not; names line and key.
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
    """The step that a request brings along, in a header or else in its last message's text.

    Raises:
        BadOption: it is not JSON, or has something in it that there is not.
    """
    found = _MARKER.match(text) if header is None else None
    encoded = header if header is not None else found[1] if found else None
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
    """What is wrong, and where."""
    reason, _, path = str(error).partition(_PATH_PREFIX)
    path_steps = tuple(
        int(index) if index else name for name, index in _PATH_STEP.findall(path.removesuffix("`"))
    )
    return reason[:1].lower() + reason[1:], path_steps
