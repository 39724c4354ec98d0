"""Which tool results can be cleared: superseded and stale ones, by the tools of each agent."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.staleness import (
    CLEARED_PREFIX,
    ClearingReason,
    ToolKind,
    describe_call,
    find_clearable_results,
    placeholder_text,
)
from foveate.model import Format, Image, MediaSource, Message, Opaque, Part, Text, ToolCall, ToolResult

LONG = "a line of the result\n" * 100
FILLER = "I look at something else."


def tool_call(name: str, arguments: Mapping[str, object], call_id: str = "") -> ToolCall:
    return ToolCall(name=name, arguments=json.dumps(arguments), format=Format.ANTHROPIC, id=call_id)


class Session:
    """A conversation of tool calls, each answered at once."""

    def __init__(self) -> None:
        self.messages: list[Message] = [Message(role="user", parts=(Text("Find the fault."),))]

    def use(
        self, name: str, arguments: Mapping[str, object], text: str = LONG, *, is_error: bool = False
    ) -> "Session":
        call_id = f"call_{len(self.messages)}"
        parts: tuple[Part, ...] = (Text(text),) if text else ()
        self.messages.append(Message(role="assistant", parts=(tool_call(name, arguments, call_id),)))
        self.messages.append(
            Message(role="user", parts=(ToolResult(parts=parts, id=call_id, is_error=is_error),))
        )
        return self

    def say(self, text: str = FILLER, turns: int = 1) -> "Session":
        for _ in range(turns):
            self.messages.append(Message(role="assistant", parts=(Text(text),)))
            self.messages.append(Message(role="user", parts=(Text("Go on."),)))
        return self

    def cleared(self) -> dict[int, ClearingReason]:
        return {result.message: result.reason for result in find_clearable_results(self.messages)}


# One read, one command and one search of each agent, as it calls them.
AGENT_CALLS = [
    ("Claude Code", "Read", {"file_path": "/src/app.py"}, ToolKind.READ, "/src/app.py"),
    ("Claude Code", "Bash", {"command": "pytest -q", "description": "Run"}, ToolKind.RUN, "pytest -q"),
    ("Claude Code", "Grep", {"pattern": "def main", "path": "src"}, ToolKind.SEARCH, "def main"),
    ("Claude Code", "Glob", {"pattern": "**/*.py"}, ToolKind.SEARCH, "**/*.py"),
    ("Claude Code", "LS", {"path": "/src"}, ToolKind.LIST, "/src"),
    (
        "Claude Code",
        "WebFetch",
        {"url": "https://a.example", "prompt": "?"},
        ToolKind.FETCH,
        "https://a.example",
    ),
    ("Codex", "shell", {"command": ["bash", "-lc", "ls -la"]}, ToolKind.RUN, "ls -la"),
    ("Codex", "exec_command", {"cmd": "cat app.py"}, ToolKind.RUN, "cat app.py"),
    ("Codex", "read_file", {"file_path": "/src/app.py"}, ToolKind.READ, "/src/app.py"),
    ("Codex", "list_dir", {"dir_path": "/src"}, ToolKind.LIST, "/src"),
    ("Codex", "grep_files", {"pattern": "main"}, ToolKind.SEARCH, "main"),
    ("opencode", "read", {"filePath": "/src/app.py"}, ToolKind.READ, "/src/app.py"),
    ("opencode", "bash", {"command": "go test"}, ToolKind.RUN, "go test"),
    ("pi", "read", {"path": "app.py"}, ToolKind.READ, "app.py"),
    ("pi", "find", {"pattern": "*.ts"}, ToolKind.SEARCH, "*.ts"),
    ("OpenHands", "execute_bash", {"command": "make"}, ToolKind.RUN, "make"),
    ("OpenHands", "str_replace_editor", {"command": "view", "path": "/a.py"}, ToolKind.READ, "/a.py"),
    ("OpenHands", "file_editor", {"command": "view", "path": "/a.py"}, ToolKind.READ, "/a.py"),
    ("OpenHands", "terminal", {"command": "make"}, ToolKind.RUN, "make"),
    ("MCP", "mcp__files__read_file", {"path": "a.py"}, ToolKind.READ, "a.py"),
]
# Results that cannot be had again, or that the model works from.
OTHER_CALLS = [
    ("Claude Code", "Task", {"prompt": "Find the callers."}),
    ("Claude Code", "TodoWrite", {"todos": []}),
    ("Claude Code", "AskUserQuestion", {"question": "Which one?"}),
    ("Claude Code", "ExitPlanMode", {"plan": "Do it."}),
    ("Codex", "update_plan", {"plan": []}),
    ("Codex", "apply_patch", {"input": "*** Begin Patch"}),
    ("opencode", "task", {"prompt": "Find it."}),
    ("pi", "edit", {"path": "app.py", "oldText": "a", "newText": "b"}),
    ("OpenHands", "str_replace_editor", {"command": "str_replace", "path": "/a.py"}),
    ("OpenHands", "think", {"thought": "Hm."}),
    ("MCP", "mcp__tickets__search", {"id": "7"}),
]


@pytest.mark.parametrize(("agent", "name", "arguments", "kind", "argument"), AGENT_CALLS)
def test_the_tools_of_coding_agents_are_known(
    agent: str, name: str, arguments: dict[str, object], kind: ToolKind, argument: str
) -> None:
    use = describe_call(tool_call(name, arguments))

    assert use is not None, agent
    assert (use.kind, use.argument) == (kind, argument)


@pytest.mark.parametrize(("agent", "name", "arguments", "kind", "argument"), AGENT_CALLS)
def test_a_repeated_call_supersedes_the_first_result(
    agent: str, name: str, arguments: dict[str, object], kind: ToolKind, argument: str
) -> None:
    session = Session().use(name, arguments).use(name, arguments).say()

    assert session.cleared() == {2: ClearingReason.SUPERSEDED}, (agent, kind, argument)


@pytest.mark.parametrize(("agent", "name", "arguments"), OTHER_CALLS)
def test_results_that_cannot_be_had_again_are_never_cleared(
    agent: str, name: str, arguments: dict[str, object]
) -> None:
    session = Session().use(name, arguments).use(name, arguments).say(turns=40)

    assert not session.cleared(), agent


def test_aider_has_no_tool_results_to_clear() -> None:
    files = "I have *added these files to the chat*:\n\napp.py\n```\n" + LONG + "```"
    messages = [
        Message(role="user", parts=(Text(files),)),
        Message(role="assistant", parts=(Text("Ok."),)),
    ] * 20

    assert not find_clearable_results(messages)


def test_a_whole_read_supersedes_a_partial_one_but_not_the_reverse() -> None:
    part, whole = {"file_path": "a.py", "offset": 10, "limit": 20}, {"file_path": "a.py"}

    assert Session().use("Read", part).use("Read", whole).say().cleared() == {2: ClearingReason.SUPERSEDED}
    assert not Session().use("Read", whole).use("Read", part).say().cleared()


def test_writing_a_whole_file_supersedes_its_read_and_an_edit_does_not() -> None:
    read, write = {"file_path": "a.py"}, {"file_path": "a.py", "content": LONG}
    edit = {"file_path": "a.py", "old_string": "a", "new_string": "b"}

    assert 2 in Session().use("Read", read).use("Write", write, "ok").say().cleared()
    assert not Session().use("Read", read).use("Edit", edit, "ok").say().cleared()


def test_a_note_that_the_file_is_unchanged_supersedes_nothing() -> None:
    read = {"file_path": "a.py"}
    session = Session().use("Read", read).use("Read", read, "File unchanged since the last read.").say()

    assert not session.cleared()


def test_a_failed_repetition_supersedes_nothing_and_a_success_supersedes_a_failure() -> None:
    command = {"command": "make"}

    assert not Session().use("Bash", command).use("Bash", command, LONG, is_error=True).say().cleared()
    assert Session().use("Bash", command, LONG, is_error=True).use("Bash", command, "ok").say().cleared() == {
        2: ClearingReason.SUPERSEDED
    }


def test_an_old_result_is_stale_unless_the_model_used_it_recently() -> None:
    read = {"file_path": "/src/app.py"}

    assert Session().use("Read", read).say(turns=12).cleared() == {2: ClearingReason.STALE}
    assert not Session().use("Read", read).say(turns=4).cleared()
    assert not Session().use("Read", read).say(turns=12).say("Now app.py is next.").cleared()
    edit = {"file_path": "/src/app.py", "old_string": "a", "new_string": "b"}
    assert not Session().use("Read", read).say(turns=12).use("Edit", edit, "ok").cleared()


def test_errors_short_results_and_unknown_content_are_not_stale() -> None:
    command = {"command": "make"}
    assert not Session().use("Bash", command, LONG, is_error=True).say(turns=20).cleared()
    assert not Session().use("Bash", command, "ok").say(turns=20).cleared()
    session = Session().use("Bash", command).say(turns=20)
    opaque = ToolResult(parts=(Text(LONG), Opaque("search_result", b"{}")), id="call_1")
    session.messages[2] = Message(role="user", parts=(opaque,))
    assert not session.cleared()


def test_a_screenshot_can_be_cleared() -> None:
    session = Session().use("Read", {"file_path": "page.png"}).say(turns=20)
    image = Image(source=MediaSource.INLINE)
    session.messages[2] = Message(role="user", parts=(ToolResult(parts=(image,), id="call_1"),))

    assert session.cleared() == {2: ClearingReason.STALE}


def test_a_result_that_the_model_has_not_answered_is_never_cleared() -> None:
    read = {"file_path": "a.py"}

    assert set(Session().use("Read", read).use("Read", read).cleared()) == {2}


def test_a_cleared_result_is_not_cleared_again_and_supersedes_nothing() -> None:
    read = {"file_path": "a.py"}
    placeholder = placeholder_text(describe_call(tool_call("Read", read)), LONG)

    assert not Session().use("Read", read, placeholder * 10).say(turns=20).cleared()
    assert not Session().use("Read", read).use("Read", read, placeholder * 30).say().cleared()


def test_a_placeholder_names_tool_argument_size_and_first_line() -> None:
    use = describe_call(tool_call("Read", {"file_path": "src/app.py"}))

    assert placeholder_text(use, "\n  import os\nimport re\n") == (
        "[cleared: 23 characters of Read src/app.py; it began: import os]"
    )
    assert placeholder_text(None, "") == "[cleared: 0 characters of tool output]"


@given(
    name=st.sampled_from(("Read", "bash", "x")),
    argument=st.text(max_size=2_000),
    text=st.text(max_size=5_000),
)
def test_a_placeholder_is_always_one_short_line(name: str, argument: str, text: str) -> None:
    use = describe_call(tool_call(name, {"file_path": argument}))

    placeholder = placeholder_text(use, text)

    assert placeholder.startswith(CLEARED_PREFIX)
    assert len(placeholder) < 500
    assert len(placeholder.splitlines()) == 1


def test_broken_arguments_make_a_tool_unknown() -> None:
    for arguments in ("", "[]", "{", '"x"', "{}", "[" * 100_000):
        assert describe_call(ToolCall(name="Read", arguments=arguments, format=Format.ANTHROPIC)) is None


def test_two_thousand_results_are_judged_in_a_second() -> None:
    session = Session()
    for number in range(2_000):
        session.use("Read", {"file_path": f"src/{number % 500}.py"})

    assert len(session.cleared()) >= 1_400
