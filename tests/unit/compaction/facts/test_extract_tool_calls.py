from foveate.compaction.facts.extract import find_tool_errors, find_touched_files
from foveate.model import Message, Text, ToolResult
from tests.support.strategies.fact_conversations import model_message, result_message, tool_call, user_message


def test_files_have_their_strongest_action_and_the_latest_comes_first() -> None:
    messages = [
        model_message(tool_call("Read", file_path="a.py")),
        model_message(
            tool_call("str_replace_based_edit_tool", path="b.py"), tool_call("Edit", file_path="a.py")
        ),
        model_message(tool_call("Read", file_path="b.py")),
        model_message(tool_call("Read", file_path="c.py")),
        model_message(tool_call("Bash", command="cat d.py")),
    ]

    actions = [(file.path, file.action) for file in find_touched_files(messages)]

    assert actions == [("c.py", "read"), ("b.py", "edited"), ("a.py", "edited")]


def test_an_error_is_resolved_if_the_same_call_succeeds_later() -> None:
    failing = [model_message(tool_call("Bash", command="make test")), result_message("ValueError: no such key")]
    passing = [model_message(tool_call("Bash", command="make test")), result_message("12 passed")]
    other = [model_message(tool_call("Bash", command="ls")), result_message("a.py")]

    assert [error.is_resolved for error in find_tool_errors(failing + other)] == [False]
    assert [error.is_resolved for error in find_tool_errors(failing + passing)] == [True]
    assert [error.is_resolved for error in find_tool_errors(failing + passing + failing)] == [False]


def test_an_error_belongs_to_the_tool_that_returned_it() -> None:
    failing = [model_message(tool_call("Bash", command="make test")), result_message("ValueError: no such key")]
    named_result = Message(role="tool", parts=(ToolResult(parts=(Text("fatal: no"),), name="run\nme"),))

    assert [error.tool for error in find_tool_errors([*failing, named_result])] == ["run me", "Bash"]
    assert [error.tool for error in find_tool_errors([result_message("fatal: no")])] == [""]


def test_an_error_result_without_an_error_line_gives_its_first_line() -> None:
    messages = [
        user_message("go"),
        model_message(tool_call("Bash", command="x")),
        result_message("\nnothing to do here\nbye", is_error=True),
    ]

    assert [error.text for error in find_tool_errors(messages)] == ["nothing to do here"]
