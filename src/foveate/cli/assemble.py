"""`foveate assemble`: sections joined to a prompt that fits, and a picture of what was cut."""

import errno
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.count import DEFAULT_MODEL
from foveate.cli.exits import telling
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.budget import Budget, Prompt, Section
    from foveate.tokens import RequestCounter

STANDARD = "-"
"""Standard input for `--sections`, standard output for `--output`."""


def command(
    sections: Annotated[
        str,
        typer.Option(
            "--sections",
            metavar="FILE_OR_DIR",
            help="A YAML or JSON list of sections, or a folder with one file a section; - is standard input.",
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="FILE",
            help="A budget (YAML), or a built-in ladder: truncate_low_priority, drop_low_priority, "
            "progressive. Without one, CONTEXT_MAX_TOKENS or the model's window.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The model that the prompt is for.")
    ] = DEFAULT_MODEL,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A tokenizer.json or .tiktoken file to count with."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the prompt there; - is standard output, and the picture goes to standard error.",
        ),
    ] = None,
    show_budget: Annotated[
        bool, typer.Option("--show-budget", help="Add a section in which the agent sees its budget.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="List every cut and its reason.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, the text in it.")] = False,
) -> None:
    """Put sections together to a prompt that fits its budget, and show what each section got.

    Example: foveate assemble --sections parts/ --budget budget.yaml --explain
    """
    with telling(as_json=json):
        for option, name in (("--sections", sections), ("--budget", budget), ("--output", output)):
            if name == "":
                raise BadOption(f"{option} needs the name of a file")
        if json and output == STANDARD:
            raise BadOption("the prompt is in what --json prints: leave out --output -, or name a file")
        with screen.patience("assembling"):
            prompt = _assembled(sections, budget, model, tokenizer, show_budget=show_budget)
        if output is not None:
            _write(prompt.text, output)
        if json:
            screen.print_object(_as_object(prompt, model))
        else:
            _draw(prompt, model, aside=output == STANDARD, explain=explain)


def _assembled(
    sections: str, budget: str | None, model: str, tokenizer: str | None, *, show_budget: bool
) -> "Prompt":
    import foveate

    given = _sections(sections)
    return foveate.assemble(given, _budget(budget), _counter(model, tokenizer), show_budget=show_budget)


def _sections(name: str) -> "tuple[Section, ...]":
    from foveate.config import load_sections, sections_from

    if name == STANDARD:
        return sections_from(screen.standard_input(), "standard input")
    return load_sections(Path(name))


def _budget(name: str | None) -> "Budget":
    """The budget in a file; where there is no such file, the name can be a ladder's."""
    from foveate.budget import Budget
    from foveate.budget.ladders import BUILT_IN
    from foveate.config import load_budget

    if name is None:
        return Budget()
    try:
        return load_budget(Path(name))
    except UnreadableInput as error:
        if error.reason != os.strerror(errno.ENOENT):
            raise
        if name in BUILT_IN:
            return Budget(ladder=name)
        reason = f"{error.reason}, nor is it a ladder ({', '.join(BUILT_IN)})"
        raise UnreadableInput(error.source, reason) from None


def _counter(model: str, tokenizer: str | None) -> "RequestCounter":
    from foveate.tokens import CounterOptions
    from foveate.tokens.options import offline_counters

    vocabulary = None if tokenizer is None else Path(tokenizer)
    return offline_counters(CounterOptions(vocabulary=vocabulary))(model)


def _write(text: str, name: str) -> None:
    from foveate.config.files import replace_file
    from foveate.tokens.bpe import without_surrogates

    # It was counted so as well.
    data = without_surrogates(text).encode()
    if name == STANDARD:
        screen.print_raw(data)
    else:
        replace_file(Path(name), data)


def _as_object(prompt: "Prompt", model: str) -> dict[str, object]:
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
    }


def _draw(prompt: "Prompt", model: str, *, aside: bool, explain: bool) -> None:
    from foveate.cli.bars import drawn

    look = screen.look(sys.stderr if aside else sys.stdout)
    picture = drawn(prompt, model=model, look=look, explain=explain)
    if aside:
        screen.print_aside(picture)
    else:
        screen.print_text(picture)
