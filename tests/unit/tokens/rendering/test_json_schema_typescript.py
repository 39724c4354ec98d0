"""Tools as the TypeScript types that OpenAI's models see."""

import json
from typing import Any

from foveate.model import Tool
from foveate.tokens.rendering.json_schema import write_function_type


def render(properties: dict[str, Any], *, description: str = "", is_2023: bool = False) -> str:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    data = json.dumps(parameters).encode()
    tool = Tool(kind="function", name="f", description=description, parameters=data, raw=b"{}")
    return write_function_type(tool, is_2023=is_2023)


def test_every_line_of_a_description_is_a_comment_without_indentation() -> None:
    text = render({}, description="Look it up.\n\n    Args:\n        word: the word\n    ")

    assert text == "// Look it up.\n//\n// Args:\n// word: the word\ntype f = () => any"


def test_an_empty_comment_line_separates_title_and_description() -> None:
    text = render({"city": {"type": "string", "title": "City", "description": "Where"}})

    assert text == "type f = (_: {\n// City\n//\n// Where\ncity: string,\n}) => any"


def test_titles_are_omitted_for_models_that_do_not_see_them() -> None:
    assert (
        render({"city": {"type": "string", "title": "City"}}, is_2023=True)
        == "type f = (_: {\ncity: string,\n}) => any"
    )


def test_a_parameter_called_title_is_not_a_title() -> None:
    text = render({"title": {"type": "string", "title": "Title"}}, is_2023=True)

    assert text == "type f = (_: {\ntitle: string,\n}) => any"


def test_a_multiline_type_in_an_array_uses_array_syntax() -> None:
    step = {"type": "object", "title": "Step", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    text = render({"steps": {"type": "array", "items": step}})

    assert text == "type f = (_: {\nsteps: Array<\n// Step\n{ n: number }\n>,\n}) => any"


def test_each_of_several_types_repeats_the_description() -> None:
    text = render({"tool": {"type": ["string", "null"], "description": "Which"}})

    assert text == "type f = (_: {\n// Which\ntool: \n// Which\nstring | \n// Which\nnull,\n}) => any"


def test_a_name_that_is_not_an_identifier_is_quoted() -> None:
    assert render({"team:": {"type": "string"}}) == 'type f = (_: { "team:": string }) => any'
