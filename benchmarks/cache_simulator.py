"""Cache reads and writes that the simulator predicts, compared with recorded usage; causes of differences.

The simulator serves each request of a log in order of time, including sub-agents, as replay does
(`foveate.replay.simulator.reconstruct`). The score compares the reported usage with what the simulator predicts
before it sees how the input divides into reads and writes: it knows the log, the total, and the usage of
earlier requests. The first request of a conversation is not scored: its reads depend on the system prompts of
earlier conversations.

The log does not contain everything, so two things are assumed: agents put their breakpoints on the end of the
system prompt, the last message of the model and the last of the user; and a turn uses thinking if one of its
responses contains some.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import BadData, Cell, Report
from benchmarks.recorded import DATA
from foveate.errors import UnreadableInput
from foveate.model import CacheUsage
from foveate.replay.recording import Recording
from foveate.replay.recording_files import find_files, group_sessions, read_session
from foveate.replay.simulator.reconstruct import ReconstructedCall, UsageFinding, reconstruct_calls

# A read or a write agrees if its error is at most this share of the request's input tokens.
TOLERANCE = 0.02
# Misses without a trace in the log; the tokens read show where the prompt changed.
_UNSEEN_START = "not in the log: all was another, system prompt and tools too"
_UNSEEN_LATER = "not in the log: what comes after the system prompt was another"
_UNSEEN = (_UNSEEN_START, _UNSEEN_LATER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A request, its reported usage, and the predicted usage; `cause` is set if the peer's read is wrong."""

    recording: Recording
    is_agent: bool
    reported: CacheUsage
    ours: CacheUsage
    peer: CacheUsage
    cause: str

    @property
    def is_ours(self) -> bool:
        """Return whether Foveate's reads and writes agree with the usage."""
        return _agree(self.ours, self.reported)

    @property
    def is_peers(self) -> bool:
        """Return whether the peer's reads and writes agree with the usage."""
        return _agree(self.peer, self.reported)


FIGURES = (
    "requests",
    "scored",
    "within_2pct",
    "read_within_2pct",
    "hard",
    "hard_within_2pct",
    "hard_with_a_cause",
    "where_the_log_shows_why",
    "broken_lines",
)


def run(data: Path | None) -> Report:
    """`within_2pct` is the share of scored requests whose read and written tokens both agree with the usage.

    Hard requests are those whose read the peer predicts wrongly. `where_the_log_shows_why` leaves out hard ones
    without a trace in the log, so it is selected after the fact.
    """
    recordings = _read_recordings(data or DATA / "sessions")
    scored = [prediction for recording in recordings for prediction in _predict(recording)]
    if not scored:
        raise BadData("no log shows two requests in a row")
    hard = [prediction for prediction in scored if prediction.cause]
    explained = [prediction for prediction in hard if prediction.cause not in _UNSEEN]
    logged = [prediction for prediction in scored if prediction.cause not in _UNSEEN]
    return Report(
        figures={
            "requests": sum(len(recording.calls) for recording in recordings),
            "scored": len(scored),
            "within_2pct": _share([prediction.is_ours for prediction in scored]),
            "read_within_2pct": _share([_near(p.ours.read, p.reported) for p in scored]),
            "hard": len(hard),
            "hard_within_2pct": _share([prediction.is_ours for prediction in hard]),
            "hard_with_a_cause": len(explained),
            "where_the_log_shows_why": _share([prediction.is_ours for prediction in logged]),
            "broken_lines": sum(len(recording.unreadable) for recording in recordings),
        },
        peers={
            "last read + last write": {
                "within_2pct": _share([prediction.is_peers for prediction in scored]),
                "read_within_2pct": _share([_near(p.peer.read, p.reported) for p in scored]),
                "hard_within_2pct": 0.0,
            }
        },
        rows=[
            *_shares("agent", scored, _agent),
            *_shares("log", scored, lambda prediction: prediction.recording.name),
            *_shares("cause", hard, lambda prediction: prediction.cause),
            *_misses(scored),
        ],
    )


def _read_recordings(path_: Path) -> list[Recording]:
    path_ = path_ / "sessions" if (path_ / "sessions").is_dir() else path_
    try:
        sessions, _ = group_sessions([path for path in find_files([path_]).files if ".jsonl" in path.name])
        recordings = [recording for session in sessions for recording in read_session(session)]
    except UnreadableInput as error:
        raise BadData(str(error)) from None
    return [recording for recording in recordings if any(call.usage is not None for call in recording.calls)]


def _predict(recording: Recording) -> Iterator[Prediction]:
    last: dict[str, ReconstructedCall] = {}
    main = recording.calls[0].conversation
    for call in reconstruct_calls(recording):
        previous = last.get(call.call.conversation)
        last[call.call.conversation] = call
        if previous is None or previous.call.usage is None or call.call.usage is None:
            continue
        usage, peer = call.call.usage.cache, _peer(previous.call.usage.cache, call.call.usage.cache)
        yield Prediction(
            recording=recording,
            is_agent=call.call.conversation != main,
            reported=usage,
            ours=call.expected,
            peer=peer,
            cause="" if _near(peer.read, usage) else _cause(previous, call, usage),
        )


def _agent(prediction: Prediction) -> str:
    return f"{prediction.recording.source}{', sub-agent' * prediction.is_agent}"


def _peer(last: CacheUsage, usage: CacheUsage) -> CacheUsage:
    read = min(usage.input_tokens, last.input_tokens - last.uncached)
    return CacheUsage(read=read, written_5m=usage.input_tokens - read)


def _cause(previous: ReconstructedCall, call: ReconstructedCall, usage: CacheUsage) -> str:
    """Return why a request reads less than the previous one left in the cache, as far as the log shows."""
    if previous.call.model != call.call.model:
        return "another model"
    if call.rules.ttls and call.call.at - previous.call.at > call.rules.ttls[0].seconds:
        return "its time ran out"
    if previous.call.has_thinking != call.call.has_thinking:
        return "thinking switched on or off"
    if call.finding is not UsageFinding.NOTHING:
        return _UNSEEN_LATER if usage.read else _UNSEEN_START
    if call.last_node.descends_from(previous.last_node):
        return "sent before the last one was answered"
    return "earlier thinking left out" if previous.last_node.first_thinking is not None else "edited history"


def _agree(expected: CacheUsage, usage: CacheUsage) -> bool:
    allowed = TOLERANCE * usage.input_tokens
    written = expected.written_5m + expected.written_1h - usage.written_5m - usage.written_1h
    return abs(expected.read - usage.read) <= allowed and abs(written) <= allowed


def _near(read: int, usage: CacheUsage) -> bool:
    return abs(read - usage.read) <= TOLERANCE * usage.input_tokens


def _share(agreed: Sequence[bool]) -> float:
    return sum(agreed) / len(agreed) if agreed else 1.0


def _shares(
    key: str, scored: Sequence[Prediction], name: Callable[[Prediction], str]
) -> Iterator[Mapping[str, Cell]]:
    groups: dict[str, list[Prediction]] = {}
    for prediction in scored:
        groups.setdefault(name(prediction), []).append(prediction)
    for group, predictions in groups.items():
        yield {
            "of": key,
            "name": group,
            "requests": len(predictions),
            "ours": _share([prediction.is_ours for prediction in predictions]),
            "peer": _share([prediction.is_peers for prediction in predictions]),
        }


def _misses(scored: Sequence[Prediction]) -> Iterator[Mapping[str, Cell]]:
    for prediction in scored:
        usage, ours = prediction.reported, prediction.ours
        if not prediction.is_ours or prediction.cause:
            yield {
                "of": "request",
                "name": prediction.recording.name,
                "cause": prediction.cause or "-",
                "agrees": prediction.is_ours,
                "billed_read": usage.read,
                "billed_written": usage.written_5m + usage.written_1h,
                "read": ours.read,
                "written": ours.written_5m + ours.written_1h,
            }
