import sys
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foveate.compaction.facts.extract import Fact, extract_facts
from foveate.compaction.facts.rules import FactKind
from foveate.compaction.facts.texts import Speaker, message_texts
from foveate.model import Document, Format, MediaSource, Message, Text, Thinking, ToolCall
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.fact_conversations import (
    conversations,
    model_message,
    result_message,
    tool_call,
    user_message,
)


def fact_texts(messages: Sequence[Message], kind: FactKind) -> list[str]:
    return [fact.text for fact in extract_facts(messages) if fact.kind is kind]


def find_fact(messages: Sequence[Message], text: str) -> Fact:
    (match,) = [fact for fact in extract_facts(messages) if fact.text == text]
    return match


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("see src/app/main.py, line 3", FactKind.PATH, ["src/app/main.py"]),
        ("in /etc/hosts and ~/notes/a.md.", FactKind.PATH, ["/etc/hosts", "~/notes/a.md"]),
        ("File main.py:12: in f", FactKind.PATH, ["main.py"]),
        (r"at C:\Users\ana\app.exe now", FactKind.PATH, [r"C:\Users\ana\app.exe"]),
        ("und/oder, 1/2, and/or, km/h", FactKind.PATH, []),
        ("данные/отчёт.csv", FactKind.PATH, ["данные/отчёт.csv"]),
        ("https://x.org/a?b=c, then", FactKind.URL, ["https://x.org/a?b=c"]),
        (
            "snake_case camelCase Pascal2Case CONSTANT run() plain",
            FactKind.IDENTIFIER,
            ["snake_case", "camelCase", "Pascal2Case", "CONSTANT", "run"],
        ),
        ("import @scope/some-pkg, or @scope/pkg/lib.", FactKind.PATH, ["@scope/some-pkg", "@scope/pkg/lib"]),
        ("color: #88C0D0; or #fff", FactKind.IDENTIFIER, ["#88C0D0", "#fff"]),
        ("commit 1a2b3c4d, issue #42, ABC-7", FactKind.IDENTIFIER, ["1a2b3c4d", "#42", "ABC-7"]),
        (
            "id 123e4567-e89b-12d3-a456-426614174000 --dry-run",
            FactKind.IDENTIFIER,
            ["123e4567-e89b-12d3-a456-426614174000", "--dry-run"],
        ),
        ("self.sent_bytes[0].maxSize", FactKind.IDENTIFIER, ["sent_bytes", "maxSize"]),
        ("größeÄnderung", FactKind.IDENTIFIER, ["größeÄnderung"]),
        ("took 15 ms, 20%, 1,234 rows and 7 apples", FactKind.NUMBER, ["15 ms", "20%", "1,234 rows"]),
        (
            "10 MB/s at 60 fps, 3.2GB, 1e-5, 1920x1080 since 2026-01-15",
            FactKind.NUMBER,
            ["10 MB/s", "60 fps", "3.2GB", "1e-5", "1920x1080", "2026-01-15"],
        ),
        ("3.2GB in 200ms", FactKind.IDENTIFIER, []),
        ("Python 3.11.4 and v2", FactKind.VERSION, ["3.11.4", "v2"]),
        ('it says "no luck here"', FactKind.QUOTED, ["no luck here"]),
        ("ask Ana Lopez in Lisbon", FactKind.NAME, ["Ana Lopez", "Lisbon"]),
        ("Never push to main. Thanks.", FactKind.CONSTRAINT, ["Never push to main."]),
        ("必须使用中文。谢谢。", FactKind.CONSTRAINT, ["必须使用中文。"]),
        ("нельзя удалять файлы", FactKind.CONSTRAINT, ["нельзя удалять файлы"]),
        ("- [ ] write docs\n- [x] write code", FactKind.TASK, ["write docs"]),
        ("Let's use Redis instead of files.", FactKind.DECISION, ["Let's use Redis instead of files."]),
    ],
)
def test_facts_of_a_user_text(text: str, kind: FactKind, expected: list[str]) -> None:
    assert fact_texts([user_message(text)], kind) == expected


def test_a_fact_has_speakers_counts_and_positions() -> None:
    messages = [
        user_message("look at a/b.py and a/b.py"),
        model_message(Thinking("a/b.py is the one"), tool_call("Read", file_path="a/b.py")),
        result_message("a/b.py\n" * 3),
        model_message("done with load_all"),
    ]

    fact = find_fact(messages, "a/b.py")

    assert (fact.first_index, fact.last_index, fact.last_non_tool_index, fact.occurrences) == (0, 2, 1, 7)
    assert [fact.count_messages_by(speaker) for speaker in Speaker] == [1, 1, 1, 0, 1]


def test_a_fact_of_a_tool_alone_has_no_other_source() -> None:
    assert find_fact([user_message("go"), result_message("x/y/z.py")], "x/y/z.py").last_non_tool_index == -1


def test_long_arguments_count_as_written_text() -> None:
    writing = tool_call("Write", path="a/b.py", content="def load_all(): pass\n" * 50)

    assert find_fact([model_message(writing)], "a/b.py").count_messages_by(Speaker.CALL_ARGUMENT) == 1
    assert find_fact([model_message(writing)], "load_all").count_messages_by(Speaker.WRITTEN_TEXT) == 1


def test_arguments_that_are_not_json_are_read_as_text() -> None:
    truncated_call = ToolCall(name="run", arguments='{"path": "a/b.py', format=Format.CHAT)

    assert find_fact([model_message(truncated_call)], "a/b.py").count_messages_by(Speaker.CALL_ARGUMENT) == 1


def test_an_escaped_line_end_is_not_a_path() -> None:
    assert fact_texts([result_message(r"first_name\nlast_name")], FactKind.IDENTIFIER) == [
        "first_name",
        "last_name",
    ]
    assert fact_texts([result_message(r"first_name\nlast_name")], FactKind.PATH) == []


def test_line_numbers_of_listed_files_are_not_facts() -> None:
    assert fact_texts([result_message("  101→import os\n  102\tx = 4096")], FactKind.NUMBER) == ["4096"]


def test_only_the_user_sets_constraints() -> None:
    sentence = "You must never do this."

    assert fact_texts([user_message(sentence)], FactKind.CONSTRAINT) == [sentence]
    assert fact_texts([model_message(sentence), result_message(sentence)], FactKind.CONSTRAINT) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "I don't want any new dependency",
        "i really do not like this colour",
        "don't you dare to touch main, ok?",
        "can you make sure it works?",
        "I don't know why, but never do that again",
        "we don't use tabs",
    ],
)
def test_polite_orders_are_constraints_too(sentence: str) -> None:
    assert fact_texts([user_message(sentence)], FactKind.CONSTRAINT) == [sentence]


@pytest.mark.parametrize(
    "sentence",
    [
        "i don't understand, does it capture the theme?",
        "I still don't know how it works",
        "wait, do we only have a single link color?",
        "why must it be so?",
        "and is it always required?",
    ],
)
def test_questions_and_doubts_are_not_constraints(sentence: str) -> None:
    assert fact_texts([user_message(sentence)], FactKind.CONSTRAINT) == []


def test_open_items_of_the_last_todo_list_are_tasks() -> None:
    first = tool_call("TodoWrite", todos=[{"content": "write the code", "status": "in_progress"}])
    last = tool_call(
        "TodoWrite",
        todos=[
            {"content": "write the code", "status": "completed"},
            {"content": "ship it", "status": "pending"},
        ],
    )

    assert fact_texts([model_message(first), model_message(last)], FactKind.TASK) == ["ship it"]


def test_code_that_handles_errors_is_not_an_error() -> None:
    result = result_message(
        "  12→    raise ValueError('x')\nexcept KeyError as error:\nif failed {\n"
        "ModuleNotFoundError: No module named 'x'\nnpm error code 2"
    )

    assert fact_texts([result], FactKind.ERROR) == [
        "ModuleNotFoundError: No module named 'x'",
        "npm error code 2",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "SyntaxError: invalid syntax (a.py, line 3)",
        "E   KeyError: ('a', 'b')",
        "Error: connect ECONNREFUSED (see https://x.org)",
        "Segmentation fault (core dumped)",
        "npm ERR! code ELIFECYCLE",
        "Process exited with code 1",
        "1 failed, 3 passed in 0.2s",
    ],
)
def test_a_reported_error_may_end_in_a_bracket(line: str) -> None:
    assert fact_texts([result_message(line)], FactKind.ERROR) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "All tests passed, 0 failed",
        "compiled with no error",
        "Process exited with code 0",
        "Error: 0",
        "error: string;",
        "handle(error)",
        "Whenever the file holds an error the page shows it in red so that you can fix it at once",
    ],
)
def test_lines_about_errors_or_without_any_are_not_errors(line: str) -> None:
    assert fact_texts([result_message(line)], FactKind.ERROR) == []


def test_the_text_of_a_document_counts_as_a_tool_result() -> None:
    document = Document(source=MediaSource.INLINE, media_type="text/plain", text="see load_all")

    assert list(message_texts(Message(role="user", parts=(document,)))) == [
        (Speaker.TOOL_RESULT, "see load_all")
    ]


@given(conversations)
def test_every_fact_occurs_in_its_messages_word_for_word(messages: list[Message]) -> None:
    for fact in extract_facts(messages):
        for index in (fact.first_index, fact.last_index):
            texts = [text for _, text in message_texts(messages[index])]
            assert any(fact.text in text or fact.text in " ".join(text.split()) for text in texts), fact


_TEXT_PIECES = (
    "a",
    "1",
    "/",
    "\\",
    " ",
    ".",
    "-",
    "_",
    "`",
    '"',
    "\n",
    "#",
    "A",
    "必",
    "must ",
    "error ",
    "- [ ] ",
    "http://",
)


@given(
    st.lists(st.sampled_from(_TEXT_PIECES), min_size=1, max_size=3),
    st.sampled_from(("user", "assistant", "tool")),
)
@example(["- [ ] ", "A", " "], "user")  # each article began a phrase of all words after it
@settings(max_examples=limit_examples(40))
def test_extraction_takes_linear_time(pieces: list[str], role: str) -> None:
    """Interpreter steps are counted, not seconds; the test below bounds the time of the patterns."""
    piece = "".join(pieces)

    single, double = (_count_calls(Message(role=role, parts=(Text(piece * copies),))) for copies in (400, 800))

    assert double <= 2.2 * single + 2000


def _count_calls(message: Message) -> int:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    previous_profile = sys.getprofile()
    sys.setprofile(count)
    try:
        extract_facts([message])
    finally:
        sys.setprofile(previous_profile)
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("piece", [*_TEXT_PIECES, "a/", "a\\b", "1,", "A a ", "... "])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_hundred_kilobytes_of_any_text_are_extracted_quickly(piece: str, role: str) -> None:
    start_seconds = time.process_time()

    extract_facts([Message(role=role, parts=(Text(piece * (100_000 // len(piece))),))])

    # A pattern with quadratic time would take a minute or more.
    assert time.process_time() - start_seconds < 20


def test_constraints_of_a_pasted_text_are_orders_and_never_rows_of_tables() -> None:
    page = "# Gateway\n\n" + "\n".join(
        [
            *(f"The gateway never retries request number {number} of a session." for number in range(20)),
            "Clients must send a key.",
            "Never store it.",
            "| the same, always 1 hour | 0.179 |",
        ]
    )

    assert fact_texts([user_message(page)], FactKind.CONSTRAINT) == [
        "Clients must send a key.",
        "Never store it.",
    ]
