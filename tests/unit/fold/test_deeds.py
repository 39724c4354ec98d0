"""What was done: files touched and errors met."""

from foveate.fold.deeds import errors_met, files_touched
from foveate.values import Message, Text, ToolResult
from tests.unit.fold.chatter import call, model, result, user


def test_a_file_is_known_by_the_weightiest_thing_done_to_it_and_the_latest_comes_first() -> None:
    messages = [
        model(call("Read", file_path="a.py")),
        model(call("str_replace_based_edit_tool", path="b.py"), call("Edit", file_path="a.py")),
        model(call("Read", file_path="b.py")),
        model(call("Read", file_path="c.py")),
        model(call("Bash", command="cat d.py")),
    ]

    found = [(file.path, file.deed) for file in files_touched(messages)]

    assert found == [("c.py", "read"), ("b.py", "edited"), ("a.py", "edited")]


def test_an_error_is_gone_when_the_same_call_went_well_later() -> None:
    failing = [model(call("Bash", command="make test")), result("ValueError: no such key")]
    passing = [model(call("Bash", command="make test")), result("12 passed")]
    other = [model(call("Bash", command="ls")), result("a.py")]

    assert [error.gone for error in errors_met(failing + other)] == [False]
    assert [error.gone for error in errors_met(failing + passing)] == [True]
    assert [error.gone for error in errors_met(failing + passing + failing)] == [False]


def test_an_error_is_the_tool_s_that_answered_with_it() -> None:
    failing = [model(call("Bash", command="make test")), result("ValueError: no such key")]
    named = Message(role="tool", parts=(ToolResult(parts=(Text("fatal: no"),), name="run\nme"),))

    assert [error.tool for error in errors_met([*failing, named])] == ["run me", "Bash"]
    assert [error.tool for error in errors_met([result("fatal: no")])] == [""]


def test_a_result_that_is_an_error_and_names_none_is_known_by_its_beginning() -> None:
    messages = [
        user("go"),
        model(call("Bash", command="x")),
        result("\nnothing to do here\nbye", is_error=True),
    ]

    assert [error.text for error in errors_met(messages)] == ["nothing to do here"]
