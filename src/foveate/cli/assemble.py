"""`foveate assemble`: assemble sections into a prompt that fits its budget."""

import errno
import os
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.count import DEFAULT_MODEL
from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import report_errors
from foveate.cli.shared.options import MODEL_METAVAR, TOKENIZER_HELP
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.budget import Budget, Prompt, Section
    from foveate.tokens import RequestCounter


STANDARD_STREAM = "-"
"""Standard input for `--sections` or `--budget`, standard output for `--output`."""


def command(
    sections: Annotated[
        str,
        typer.Option(
            "--sections",
            metavar="PATH",
            help="Sections of the prompt: a YAML or JSON file with a list, a folder with one file per section, "
            "or - for standard input.",
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="FILE",
            help="Token budget: a YAML file, or - for standard input. Instead of a file, you can give "
            "the way in which sections are cut: truncate_low_priority, drop_low_priority or progressive. "
            "If it has no total, the total is --total-tokens, else the environment variable "
            "CONTEXT_MAX_TOKENS, else the model's context window.",
        ),
    ] = None,
    total_tokens: Annotated[
        int | None,
        typer.Option(
            "--total-tokens",
            metavar="N",
            help="Maximum tokens of prompt and response together; overrides the total in --budget.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar=MODEL_METAVAR, help="Model whose tokenizer and context window apply."
        ),
    ] = DEFAULT_MODEL,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help=TOKENIZER_HELP),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the prompt to this file. With -, write the prompt to standard output and the table to "
            "standard error. Default: print only the table.",
        ),
    ] = None,
    show_budget: Annotated[
        bool,
        typer.Option(
            "--show-budget", help="Add a section to the prompt that tells the model its token budget."
        ),
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="List every cut with its reason.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object, including the prompt.")
    ] = False,
) -> None:
    """Assemble sections into a prompt that fits a token budget, and show the tokens of each section.

    Sections with the lowest priority are cut first; priorities are set in the sections or in the budget. Among
    sections of equal priority, the last is cut first.

    Example: foveate assemble --sections parts/ --budget budget.yaml --explain
    """
    with report_errors(as_json=json):
        for option, name in (("--sections", sections), ("--budget", budget), ("--output", output)):
            if name == "":
                raise BadOption(f"{option} needs a file name")
        if json and output == STANDARD_STREAM:
            raise BadOption("--json already prints the prompt: leave out --output -, or give a file name")
        if sections == budget == STANDARD_STREAM:
            raise BadOption(
                "only one of --sections and --budget can be standard input: give a file for the other"
            )
        if total_tokens is not None and total_tokens < 1:
            raise BadOption(f"--total-tokens takes a number of tokens, 1 or more, not {total_tokens}")
        if output is not None and output != STANDARD_STREAM:
            _check_output(Path(output), sections, budget, tokenizer)
        with console.show_progress("assembling"):
            import foveate

            loaded_sections, loaded_budget = _load_sections(sections), _load_budget(budget, total_tokens)
            counter = _make_counter(model, tokenizer)
            prompt = foveate.assemble(loaded_sections, loaded_budget, counter, show_budget=show_budget)
        if output is not None:
            _write_prompt(prompt.text, output)
        if json:
            console.print_object(_prompt_object(prompt, model))
        else:
            _print_chart(prompt, model, to_stderr=output == STANDARD_STREAM, explain=explain)
            _print_notes(prompt, loaded_budget, model, explain=explain)


def _check_output(output: Path, sections: str, budget: str | None, tokenizer: str | None) -> None:
    """Reject an output that would overwrite an input or become a section of the next run.

    Raises:
        BadOption: the output is one of the inputs, or lies in the folder of the sections.
    """
    inputs = {"--sections": sections, "--budget": budget, "--tokenizer": tokenizer}
    for option, name in inputs.items():
        if name is not None and _is_same(output, Path(name)):
            raise BadOption(f"--output {output} is also the input of {option}: choose another name")
    folder = Path(sections)
    with suppress(OSError, ValueError):  # reading the input reports the error
        parents = output.parent, Path(os.path.realpath(output)).parent
        is_inside = any(_is_same(parent, folder) for parent in parents)
        if is_inside or (folder.is_dir() and any(_is_same(output, file) for file in folder.iterdir())):
            raise BadOption(f"--output {output} is in the folder of the sections: choose another folder")


def _is_same(path: Path, other: Path) -> bool:
    """Missing paths are never the same."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # ValueError: the name contains a null byte
        return False


def _load_sections(name: str) -> "tuple[Section, ...]":
    from foveate.config import load_sections, parse_sections

    if name == STANDARD_STREAM:
        return parse_sections(console.read_standard_input(), "standard input")
    return load_sections(Path(name))


def _load_budget(name: str | None, total_tokens: int | None) -> "Budget":
    from foveate.budget import Budget

    budget = Budget() if name is None else _load_named_budget(name)
    return budget if total_tokens is None else replace(budget, total_tokens=total_tokens)


def _load_named_budget(name: str) -> "Budget":
    """Load a budget file. If the file does not exist, accept the name of a built-in ladder."""
    from foveate.budget import Budget
    from foveate.budget.ladder import BUILT_IN_LADDERS
    from foveate.config import load_budget

    if name == STANDARD_STREAM:
        return _parse_budget(console.read_standard_input())
    try:
        return load_budget(Path(name))
    except UnreadableInput as error:
        if error.reason != os.strerror(errno.ENOENT):
            raise
        if name in BUILT_IN_LADDERS:
            return Budget(ladder=BUILT_IN_LADDERS[name])
        reason = f"{error.reason}, and it is not a ladder ({', '.join(BUILT_IN_LADDERS)})"
        raise UnreadableInput(error.source, reason) from None


def _parse_budget(data: bytes) -> "Budget":
    from foveate.budget import budget_from_data
    from foveate.config.document import parse_document

    document = parse_document(data, "standard input")
    try:
        return budget_from_data(document.data)
    except BadOption as error:
        raise document.error(str(error), error.path) from None


def _make_counter(model: str, tokenizer: str | None) -> "RequestCounter":
    from foveate.tokens import CounterOptions
    from foveate.tokens.offline_counters import offline_counter_factory

    vocabulary = None if tokenizer is None else Path(tokenizer)
    return offline_counter_factory(CounterOptions(vocabulary=vocabulary))(model)


def _write_prompt(text: str, name: str) -> None:
    from foveate.config.files import replace_file
    from foveate.tokens.tokenizers.bpe import replace_surrogates

    # The tokens were counted without surrogates too.
    data = replace_surrogates(text).encode()
    if name == STANDARD_STREAM:
        console.print_raw(data)
    else:
        replace_file(Path(name), data)


def _prompt_object(prompt: "Prompt", model: str) -> dict[str, object]:
    return {
        "limit_tokens": prompt.limit_tokens,
        "tokens": prompt.tokens,
        "text": prompt.text,
        "sections": [
            {
                "name": section.name,
                "priority": section.priority,
                "before": section.before,
                "after": section.after,
                "action": section.action,
            }
            for section in prompt.sections
        ],
        "cuts": [asdict(cut) for cut in prompt.cuts],
        "count": asdict(prompt.count),
        "model": model,
        "limit_source": prompt.limit_source,
        "unmatched": prompt.unmatched,
    }


def _print_chart(prompt: "Prompt", model: str, *, to_stderr: bool, explain: bool) -> None:
    from foveate.cli.assemble_output import draw_prompt

    display = console.display_for(sys.stderr if to_stderr else sys.stdout)
    chart = draw_prompt(prompt, model=model, display=display, explain=explain)
    if to_stderr:
        console.print_to_stderr(chart)
    else:
        console.print_text(chart)


def _print_notes(prompt: "Prompt", budget: "Budget", model: str, *, explain: bool) -> None:
    from foveate.cli.assemble_output import prompt_notes

    for note in prompt_notes(prompt, budget, model=model, explain=explain):
        console.print_note(note)
