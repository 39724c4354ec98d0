"""Result files of tau-bench: a list of runs, each with the messages of its agent (`traj`).

Every assistant message was requested with all messages before it. The file holds neither tools nor usage nor
times; the model is part of the file name that tau-bench chooses.
"""

import re
from dataclasses import replace
from typing import Any

import msgspec

from foveate.replay.growing import Growing
from foveate.replay.log_files import TOO_DEEP, LogFile, why_broken
from foveate.replay.recordings import Call, Lacking, Recording, Said, Source, lacks_of
from foveate.values import Format
from foveate.wire.body import as_list, as_record, as_text, compact

_RUNS = msgspec.json.Decoder()
_ROLES = frozenset(("system", "user", "assistant", "tool"))
_MEMBERS = ("role", "content", "tool_calls", "tool_call_id", "name")
_FILE_NAME = re.compile(r"(?:tool-calling|few-shot|react|act)-(?P<model>.+)-\d+(?:\.\d+)?_range_")


def read_tau_bench(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the runs of a result file, each as a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    named = _FILE_NAME.match(file.name)
    reader = _Reader(file.name, named["model"] if named else model or "", is_named=bool(named))
    recordings = []
    for number, raw in file.objects():
        try:
            run = as_record(_RUNS.decode(raw))
            recordings.append(reader.recording(run))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            file.broke(number, why_broken(error))
        except RecursionError:
            file.broke(number, TOO_DEEP)
    with_calls = [recording for recording in recordings if recording.calls]
    return [
        replace(recording, broken=tuple(file.broken), size_bytes=file.size_bytes) if not number else recording
        for number, recording in enumerate(with_calls)
    ]


class _Reader:
    """Reads the runs of one file. They share the system prompt."""

    def __init__(self, file_name: str, model: str, *, is_named: bool) -> None:
        self._file_name = file_name
        self._model = model
        self._is_named = is_named
        self._tree = Growing()
        self._runs = 0

    def recording(self, run: dict[str, Any]) -> Recording:
        self._runs += 1
        task, trial = run.get("task_id"), run.get("trial")
        name = f"{self._file_name}:{task if isinstance(task, int | str) else self._runs}"
        name = f"{name}:{trial}" if isinstance(trial, int) and trial else name
        calls = []
        last: Said | None = None
        for number, entry in enumerate(as_list(run.get("traj"))):
            message = as_record(entry)
            if as_text(message.get("role")) not in _ROLES:
                continue
            raw = compact({member: message[member] for member in _MEMBERS if message.get(member) is not None})
            if message["role"] == "assistant" and last is not None:
                calls.append(self._call(name, number, last, raw))
            last = self._tree.hung(last, raw)
        lacks = lacks_of(calls) | {Lacking.TOOLS}
        return Recording(
            name=name,
            source=Source.TAU_BENCH,
            format=Format.CHAT,
            calls=tuple(calls),
            lacks=lacks if self._is_named else lacks | {Lacking.MODEL},
        )

    def _call(self, name: str, number: int, last: Said, answer: bytes) -> Call:
        return Call(
            id=f"{name}:{number}",
            conversation=name,
            model=self._model,
            at=0.0,
            answers_at=0.0,
            last=last,
            answer=answer,
        )
