"""Reads result files of tau-bench: a list of runs, each with the messages of its agent (`traj`).

Every assistant message was requested with all messages before it. The file contains neither tools nor usage
nor times; the model is part of the file name that tau-bench chooses.
"""

import re
from dataclasses import replace
from typing import Any

import msgspec

from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.model import Format
from foveate.replay.readers.log_file import TOO_DEEP, LogFile, describe_decode_error
from foveate.replay.readers.message_tree import MessageTree
from foveate.replay.recording import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)

_RUN_DECODER = msgspec.json.Decoder()
_ROLES = frozenset(("system", "user", "assistant", "tool"))
_SENT_MEMBERS = ("role", "content", "tool_calls", "tool_call_id", "name")
_FILE_NAME = re.compile(r"(?:tool-calling|few-shot|react|act)-(?P<model>.+)-\d+(?:\.\d+)?_range_")


def read_tau_bench(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the runs of a result file, each as a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    name_match = _FILE_NAME.match(file.name)
    reader = _RunReader(
        file.name, name_match["model"] if name_match else model or "", is_named=bool(name_match)
    )
    recordings = []
    for number, raw in file.objects():
        try:
            run = as_dict(_RUN_DECODER.decode(raw))
            recordings.append(reader.read_run(run))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            file.report_unreadable(number, describe_decode_error(error))
        except RecursionError:
            file.report_unreadable(number, TOO_DEEP)
    with_calls = [recording for recording in recordings if recording.calls]
    return [
        replace(recording, unreadable=tuple(file.unreadable), size_bytes=file.size_bytes)
        if not number
        else recording
        for number, recording in enumerate(with_calls)
    ]


class _RunReader:
    def __init__(self, file_name: str, model: str, *, is_named: bool) -> None:
        self._file_name = file_name
        self._model = model
        self._is_named = is_named
        self._tree = MessageTree()
        self._runs = 0

    def read_run(self, run: dict[str, Any]) -> Recording:
        self._runs += 1
        task, trial = run.get("task_id"), run.get("trial")
        name = f"{self._file_name}:{task if isinstance(task, int | str) else self._runs}"
        name = f"{name}:{trial}" if isinstance(trial, int) and trial else name
        calls = []
        last: RecordedMessage | None = None
        for number, entry in enumerate(as_list(run.get("traj"))):
            message = as_dict(entry)
            if as_text(message.get("role")) not in _ROLES:
                continue
            raw = to_json(
                {member: message[member] for member in _SENT_MEMBERS if message.get(member) is not None}
            )
            if message["role"] == "assistant" and last is not None:
                calls.append(self._make_call(name, number, last, raw))
            last = self._tree.append(last, raw)
        lacks = find_missing_parts(calls) | {MissingPart.TOOLS}
        return Recording(
            name=name,
            source=RecordingSource.TAU_BENCH,
            format=Format.CHAT,
            calls=tuple(calls),
            missing=lacks if self._is_named else lacks | {MissingPart.MODEL},
        )

    def _make_call(self, name: str, number: int, last: RecordedMessage, response: bytes) -> RecordedCall:
        return RecordedCall(
            id=f"{name}:{number}",
            conversation=name,
            model=self._model,
            at=0.0,
            response_at=0.0,
            last_message=last,
            response=response,
        )
