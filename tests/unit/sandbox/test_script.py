"""Scripts: read from YAML and JSON, with errors that name the line and the key."""

from pathlib import Path

import pytest

from foveate.errors import BadSetting, UnreadableInput
from foveate.sandbox.script import Script, ScriptedCall, ScriptStep, read_script

ROOT = Path(__file__).parents[3]


def write_script(tmp_path: Path, text: str, name: str = "script.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_script_can_be_a_list_of_steps(tmp_path: Path) -> None:
    path = write_script(tmp_path, "- text: One.\n- tools: [{name: look, input: {path: a}}]\n  thinking: Hm.\n")

    assert read_script(path) == Script(
        steps=(
            ScriptStep(text="One."),
            ScriptStep(tools=(ScriptedCall(name="look", input={"path": "a"}),), thinking="Hm."),
        )
    )


def test_a_script_can_be_json_and_repeat(tmp_path: Path) -> None:
    script = read_script(
        write_script(tmp_path, '{"steps": [{"text": "a"}, {"text": "b"}], "repeat": true}', "s.json")
    )

    assert [script.step(number) for number in range(3)] == [
        ScriptStep(text="a"),
        ScriptStep(text="b"),
        ScriptStep(text="a"),
    ]


def test_no_step_follows_the_last() -> None:
    assert Script(steps=(ScriptStep(text="a"),)).step(1) is None
    assert Script(repeat=True).step(0) is None


def test_the_example_can_be_read() -> None:
    script = read_script(ROOT / "examples" / "sandbox.yaml")

    assert script.repeat
    assert len(script.steps) == 4


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("- text: a\n- txet: b\n", 2, "1", "unknown field `txet`"),
        ("steps:\n- text: a\n- status: 200\n", 3, "steps.1.status", ">= 400"),
        ("- text: a\n  delay_seconds: soon\n", 2, "0.delay_seconds", "expected `float`"),
        ("- tools: [{input: {}}]\n", 1, "0.tools.0", "missing required field `name`"),
        ("repeat: maybe\n", 1, "repeat", "expected `bool`"),
    ],
)
def test_errors_in_a_script_name_the_line(tmp_path: Path, text: str, line: int, key: str, message: str) -> None:
    with pytest.raises(BadSetting) as raised:
        read_script(write_script(tmp_path, text))

    assert (raised.value.line, raised.value.key) == (line, key)
    assert message in raised.value.reason


def test_a_missing_script_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="No such file"):
        read_script(tmp_path / "nothing.yaml")
