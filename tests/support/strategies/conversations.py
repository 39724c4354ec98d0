"""Random conversations in all formats, with their true structure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, groupby

from hypothesis import strategies as st

from foveate.model import (
    Document,
    Format,
    Image,
    MediaSource,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)

SYSTEM = -1
BEFORE_ANY_QUESTION = 0
# Formats in which results are in user messages, next to other content.
_USER_ANSWERS = (Format.ANTHROPIC, Format.BEDROCK, Format.GEMINI)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A message with its tokens, turn and step, and its calls and results by number."""

    message: Message
    tokens: int
    turn: int
    step: int
    is_question: bool = False
    calls: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratedConversation:
    """A conversation whose structure is known from how it was generated."""

    lines: tuple[Line, ...]

    @property
    def messages(self) -> list[Message]:
        return [line.message for line in self.lines]

    @property
    def tokens(self) -> list[int]:
        return [line.tokens for line in self.lines]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Positions of every call with a result, and of that result."""
        calls = {number: place for place, line in enumerate(self.lines) for number in line.calls}
        answers = {number: place for place, line in enumerate(self.lines) for number in line.answers}
        return [(calls[number], answers[number]) for number in calls.keys() & answers.keys()]

    @property
    def turns(self) -> list[tuple[int, ...]]:
        """Positions of each turn; messages before the first user message are one too."""
        return self._group_by(self.non_system_indexes, lambda line: line.turn)

    @property
    def steps(self) -> list[tuple[int, ...]]:
        """Positions of each step of the last turn; its user message is one too."""
        return self._group_by(self.turns[-1], lambda line: line.step) if self.turns else []

    @property
    def non_system_indexes(self) -> tuple[int, ...]:
        return tuple(place for place, line in enumerate(self.lines) if line.turn != SYSTEM)

    @property
    def evictable(self) -> list[tuple[int, ...]]:
        """Everything that may be evicted, in the required order."""
        if not self.turns:
            return []
        *earlier, last = self.turns
        questions = [place for place in last if self.lines[place].is_question]
        held = {*questions[-1:], last[-1]}
        if self.opens_with_question(last):
            held.add(last[0])
        return earlier + [step for step in self.steps if not held & set(step)]

    def turns_in(self, places: Iterable[int]) -> int:
        """Number of turns of these positions, without messages before the first user message."""
        return len({self.lines[place].turn for place in places} - {SYSTEM, BEFORE_ANY_QUESTION})

    def tokens_in(self, places: Iterable[int]) -> int:
        return sum(self.lines[place].tokens for place in places)

    def is_model(self, place: int) -> bool:
        line = self.lines[place]
        return line.message.role in ("assistant", "model") and not line.answers

    def opens_with_question(self, places: Sequence[int]) -> bool:
        return self.lines[places[0]].is_question

    def _group_by(self, places: Sequence[int], label: Callable[[Line], int]) -> list[tuple[int, ...]]:
        return [tuple(group) for _, group in groupby(places, lambda place: label(self.lines[place]))]


class _Writer:
    """Generates a conversation, and records the turn and step of each message."""

    def __init__(self, draw: st.DrawFn, api_format: Format) -> None:
        self._draw = draw
        self._format = api_format
        self._tokens = cycle(draw(st.lists(_TOKENS, min_size=1, max_size=7)))
        self._reuses_ids = draw(st.booleans())
        self._turn = BEFORE_ANY_QUESTION
        self._step = 0
        self._calls = 0
        self._open: list[tuple[int, ToolCall]] = []
        self.lines: list[Line] = []

    def question(self, *, is_new: bool = True) -> None:
        """One or more user messages, which open a turn unless results are missing."""
        if is_new:
            self._turn += 1
            self._step += 1
        for parts in self._draw(_QUESTIONS):
            self._add("user", parts, is_question=True)

    def speech(self) -> None:
        """One or more messages of the model, without calls."""
        self._step += 1
        for parts in self._draw(_STATEMENTS):
            self._add(self._model, parts)

    def call(self, *, is_new: bool = True) -> None:
        """One or more messages with calls, of which some may never get a result."""
        self._step += is_new
        names = self._draw(st.lists(st.sampled_from(("read", "search")), min_size=1, max_size=3))
        calls = [self._new_call(name, index) for index, name in enumerate(names)]
        self._open += calls
        if self._draw(_RARELY):
            calls.append(self._new_call("lost", len(calls)))
        thinking_parts = self._draw(st.lists(_THINKING | _WORDS, max_size=2))
        if self._format is Format.RESPONSES:
            for thinking_part in thinking_parts:
                self._add(self._model, (thinking_part,))
            for number, call in calls:
                self._add(self._model, (_as_item(call),), calls=(number,))
        else:
            numbers = tuple(number for number, _ in calls)
            self._add(self._model, (*thinking_parts, *(call for _, call in calls)), calls=numbers)

    def answer(self, *, leave: int = 0) -> None:
        """The results of open calls, in one or more messages, except the last `leave` of them."""
        answered, self._open = self._open[: len(self._open) - leave], self._open[len(self._open) - leave :]
        strays = self._draw(_RARELY)
        results: list[tuple[tuple[int, ...], Part]] = [((number,), _result(call)) for number, call in answered]
        if results and strays:
            results.append(((), ToolResult(parts=(), id="" if self._is_nameless else "stray", name="stray")))
        if self._format in _USER_ANSWERS:
            at = self._draw(st.integers(0, len(results)))
            for some in filter(None, (results[:at], results[at:])):
                self._answer_as_user([result for _, result in some], sum((numbers for numbers, _ in some), ()))
        else:
            for numbers, result in results:
                is_item = isinstance(result, Opaque)
                self._add("assistant" if is_item else "tool", (result,), answers=numbers)

    @property
    def open_calls(self) -> int:
        return len(self._open)

    @property
    def _model(self) -> str:
        return "model" if self._format is Format.GEMINI else "assistant"

    @property
    def _is_nameless(self) -> bool:
        return self._format is Format.GEMINI

    def _answer_as_user(self, results: list[Part], numbers: tuple[int, ...]) -> None:
        also = self._draw(_RARELY)
        parts = (*results, Text("And what is that?")) if also else tuple(results)
        self._add("user", parts, is_question=also, answers=numbers)

    def _new_call(self, name: str, index: int) -> tuple[int, ToolCall]:
        self._calls += 1
        new_id = f"call_{index if self._reuses_ids and name != 'lost' else f'{self._calls}_{name}'}"
        call_id = "" if self._is_nameless else new_id
        return self._calls, ToolCall(name=name, arguments="{}", format=self._format, id=call_id)

    def _add(
        self,
        role: str,
        parts: Sequence[Part],
        *,
        is_question: bool = False,
        calls: tuple[int, ...] = (),
        answers: tuple[int, ...] = (),
    ) -> None:
        self.lines.append(
            Line(
                message=Message(role=role, parts=tuple(parts)),
                tokens=next(self._tokens),
                turn=self._turn,
                step=self._step,
                is_question=is_question,
                calls=calls,
                answers=answers,
            )
        )


def _as_item(call: ToolCall) -> Part:
    """In the Responses format, provider tools have their own items."""
    return Opaque("computer_call", b"{}") if call.name == "search" else call


def _result(call: ToolCall) -> Part:
    if call.format is Format.RESPONSES and call.name == "search":
        return Opaque("computer_call_output", b"{}")
    return ToolResult(parts=(Text("done"),), id=call.id, name="" if call.id else call.name)


_RARELY = st.sampled_from((False, False, False, True))
_TOKENS = st.integers(0, 40)
_WORDS: st.SearchStrategy[Part] = st.sampled_from((Text("Let me see."), Text("东京"), Text("")))
_THINKING: st.SearchStrategy[Part] = st.sampled_from((Thinking("hm", 60), Thinking("", 200)))
_ATTACHMENTS: st.SearchStrategy[Part] = st.sampled_from(
    (
        Image(source=MediaSource.URL),
        Document(source=MediaSource.FILE, media_type="application/pdf"),
        Opaque("video", b"{}"),
    )
)
_QUESTIONS: st.SearchStrategy[list[list[Part]]] = st.lists(
    st.lists(_WORDS | _ATTACHMENTS, max_size=2), min_size=1, max_size=2
)
_STATEMENTS: st.SearchStrategy[list[list[Part]]] = st.lists(
    st.lists(_WORDS | _THINKING, max_size=2), min_size=1, max_size=2
)


@st.composite
def generated_conversations(draw: st.DrawFn) -> GeneratedConversation:
    """A conversation in one of the formats, with system messages anywhere in it."""
    writer = _Writer(draw, draw(st.sampled_from(list(Format))))
    turns = draw(st.integers(0, 5))
    if draw(st.booleans()):
        _write_turn(draw, writer, has_more=turns > 0)
    for index in range(turns):
        writer.question(is_new=not writer.open_calls)
        writer.answer()
        _write_turn(draw, writer, has_more=index < turns - 1)
    return GeneratedConversation(tuple(_with_system(draw, writer.lines)))


def _write_turn(draw: st.DrawFn, writer: _Writer, *, has_more: bool) -> None:
    """Steps and a response; results of open calls may come after the next user message."""
    steps = draw(st.integers(0, 4))
    for _ in range(steps):
        is_late = writer.open_calls > 0
        writer.call(is_new=not is_late)
        writer.answer(leave=draw(st.sampled_from((0, 0, 0, 1))))
    is_open = writer.open_calls > 0
    if is_open and has_more and draw(st.booleans()):
        return
    writer.answer()
    if (has_more and not steps) or draw(st.booleans()):
        writer.speech()


def _with_system(draw: st.DrawFn, lines: list[Line]) -> Iterator[Line]:
    system_messages = [
        Message(role="system", parts=(Text("Be brief."),)),
        Message(role="developer", parts=(Text("Be kind."), Text("Be clear."))),
        Message(role="assistant", parts=(Opaque("additional_tools", b"{}"),)),
    ]
    places = draw(st.lists(st.integers(0, len(lines)), max_size=3))
    for place in range(len(lines) + 1):
        for _ in range(places.count(place)):
            message = draw(st.sampled_from(system_messages))
            yield Line(message=message, tokens=draw(_TOKENS), turn=SYSTEM, step=0)
        yield from lines[place : place + 1]


def make_long_conversation(turns: int, steps: int) -> GeneratedConversation:
    """`turns` turns of `steps` steps each, of ten tokens a message."""
    lines: list[Line] = []
    template = Line(message=Message(role="user", parts=()), tokens=10, turn=0, step=0)
    for turn in range(1, turns + 1):
        question = Message(role="user", parts=(Text("And then?"),))
        lines.append(replace(template, message=question, turn=turn, is_question=True))
        for step in range(1, steps + 1):
            number = len(lines)
            call = ToolCall(name="read", arguments="{}", format=Format.ANTHROPIC, id=f"call_{number}")
            answer = ToolResult(parts=(Text("done"),), id=call.id)
            step_line = replace(template, turn=turn, step=step)
            lines += (
                replace(step_line, message=Message(role="assistant", parts=(call,)), calls=(number,)),
                replace(step_line, message=Message(role="user", parts=(answer,)), answers=(number,)),
            )
        lines.append(
            replace(
                template, message=Message(role="assistant", parts=(Text("So."),)), turn=turn, step=steps + 1
            )
        )
    return GeneratedConversation(tuple(lines))


def new_orphans(messages: Sequence[Message], retained: Iterable[int]) -> Counter[str]:
    """Number of orphaned calls and results in what is kept that were not orphaned before."""
    return _orphans([messages[place] for place in retained]) - _orphans(messages)


def _orphans(messages: Sequence[Message]) -> Counter[str]:
    calls: Counter[str] = Counter()
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolCall):
            calls[part.id or part.name] += 1
        elif isinstance(part, ToolResult):
            calls[part.id or part.name] -= 1
    return Counter({f"{key} {count > 0}": abs(count) for key, count in calls.items()})
