"""`foveate memory`: render, query and outline notes, print logs and skills."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.count import DEFAULT_MODEL, printable_name
from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import SOME_FAILED, report_errors
from foveate.cli.shared.options import LOCAL_TIME_HELP, MODEL_METAVAR, UNTIL_NOTE
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.memory.memory import Memory


NO_LIMIT = "none"
# More would push the output off the screen; JSON has them all.
_MAX_LISTED_PROBLEMS = 10
_MAX_DIGITS = 18

app = typer.Typer(
    name="memory",
    help="Show, search and outline notes (Org and Markdown files) as agents see them in their prompts.\n\n"
    "A node is a note: a heading with its text, or a whole file.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Paths = Annotated[
    list[str], typer.Argument(metavar="PATH...", help="Org or Markdown files, or folders that contain them.")
]
Private = Annotated[
    list[str] | None,
    typer.Option(
        "--private",
        metavar="TAG",
        help="Also hide notes with this tag, and everything below them. Notes tagged private or @personal are "
        "always hidden. Can be repeated.",
    ),
]
FollowSymlinks = Annotated[
    bool,
    typer.Option("--follow-symlinks", help="Also follow symbolic links that point outside the given folders."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


@app.command("render")
def render(
    paths: Paths,
    focus: Annotated[
        str | None,
        typer.Option("--focus", metavar="ID", help="Node to show in full (the focus): its id or title."),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option("--query", metavar="TEXT", help="Text to search for. The best matches are shown in full."),
    ] = None,
    limit_tokens: Annotated[
        str,
        typer.Option("--limit-tokens", metavar="N", help="Maximum size of the output in tokens, or none."),
    ] = "2000",
    format: Annotated[  # noqa: A002  # the option's name
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Output format: org, markdown, or auto (the format of each file).",
        ),
    ] = "auto",
    private: Private = None,
    follow_symlinks: FollowSymlinks = False,
    scope: Annotated[
        str | None,
        typer.Option("--scope", metavar="ID", help="Show only this node (id or title) and the nodes below it."),
    ] = None,
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar=MODEL_METAVAR, help="Model whose tokenizer counts the tokens."),
    ] = DEFAULT_MODEL,
    json: AsJson = False,
) -> None:
    """Show notes within a token limit: the focus and the best matches in full, the rest as an outline.

    Example: foveate memory render notes/ --focus glasshouse --limit-tokens 500
    """
    with report_errors(as_json=json), console.collect_warnings():
        from foveate.memory.views.view import parse_view_format

        limit, view_format = _parse_limit(limit_tokens), parse_view_format(format)
        memory, failures = _load_memory(paths, private, follow_symlinks=follow_symlinks, as_json=json)
        with console.show_progress("rendering"):
            view = memory.render(focus, query, limit, view_format, scope=scope, model=model)
        from foveate.cli.memory_output import view_object, view_summary

        if json:
            focus_id = None if focus is None else memory.node(focus).id
            result = view_object(view, model=model, focus=focus_id)
            console.print_object(result | _state_object(memory, failures))
        else:
            if view.text:
                console.print_text(_escape_if_terminal(view.text))
            _print_private_note(memory)
            console.print_note(view_summary(view, model=model, nodes=len(memory.nodes)))
        _exit_if_failed(failures)


@app.command("query")
def query(
    paths: Paths,
    tag: Annotated[
        str | None,
        typer.Option(
            metavar="TAG",
            help="Only nodes with this tag, their own or inherited. :a:b: means both a and b.",
        ),
    ] = None,
    todo: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only nodes in this TODO state: a name (WAITING), or open, done or any.",
        ),
    ] = None,
    type: Annotated[  # noqa: A002  # the option's name
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Only nodes of this type: project, task, document, note, or a type defined in the notes.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help='Only nodes whose title or text contains all these words. Quote a phrase: "two words".',
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Only nodes changed since this time: {LOCAL_TIME_HELP}"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help=f"Only nodes changed up to this time: {LOCAL_TIME_HELP} {UNTIL_NOTE}"
        ),
    ] = None,
    private: Private = None,
    follow_symlinks: FollowSymlinks = False,
    json: AsJson = False,
) -> None:
    """List the nodes that match all given options, with their id, TODO state, title, tags and file.

    Example: foveate memory query notes/ --todo open --tag project
    """
    with report_errors(as_json=json), console.collect_warnings():
        memory, failures = _load_memory(paths, private, follow_symlinks=follow_symlinks, as_json=json)
        with console.show_progress("searching"):
            found = memory.query(tag=tag, todo=todo, type=type, text=text, since=since, until=until)
        from foveate.cli.memory_output import node_lines, node_object

        if json:
            console.print_object(
                {"nodes": [node_object(node) for node in found]} | _state_object(memory, failures)
            )
        else:
            with console.show_progress("formatting"):
                lines = node_lines(found, console.display_for(sys.stdout))
            console.print_lines(lines)
            _print_private_note(memory)
            console.print_note(f"{len(found):,} of {len(memory.nodes):,} nodes")
        _exit_if_failed(failures)


@app.command("outline")
def outline(
    paths: Paths,
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Depth of the tree: 0 lists files, 1 also top-level headings. Default: all levels.",
            min=0,
        ),
    ] = None,
    private: Private = None,
    follow_symlinks: FollowSymlinks = False,
    json: AsJson = False,
) -> None:
    """List all nodes as a tree with their ids, and the number of nodes and tokens in each file.

    Example: foveate memory outline notes/ --depth 1
    """
    with report_errors(as_json=json), console.collect_warnings():
        memory, failures = _load_memory(paths, private, follow_symlinks=follow_symlinks, as_json=json)
        from foveate.cli.memory_output import outline_lines, outline_object

        if json:
            with console.show_progress("counting"):
                tree = outline_object(memory.nodes, depth)
            console.print_object(tree | _state_object(memory, failures))
        else:
            console.print_lines(outline_lines(memory.nodes, depth, console.display_for(sys.stdout)))
            _print_private_note(memory)
        _exit_if_failed(failures)


@app.command("logs")
def logs(
    paths: Annotated[list[str], typer.Argument(metavar="FILE...", help="Log files (text, in any format).")],
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            metavar="N",
            help="Number of lines to print from each log. Default: the environment variable "
            "CONTEXT_LOG_LIMIT, or 20.",
            min=0,
        ),
    ] = None,
    private: Annotated[
        list[str] | None,
        typer.Option(
            "--private",
            metavar="TAG",
            help="In logs that are Org or Markdown files, also hide text with this tag. Text tagged private or "
            "@personal is always hidden. Can be repeated.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Print the newest lines of log files, as agents see them in their prompts.

    Example: foveate memory logs watch.log --lines 5
    """
    with report_errors(as_json=json), console.collect_warnings():
        from foveate.memory.log_tail import log_limit_lines, read_log_tail
        from foveate.memory.privacy import Gate
        from foveate.paths import expand_path

        limit = log_limit_lines(os.environ) if lines is None else lines
        gate = Gate.with_tags(tag for option in private or () for tag in option.split(","))
        tails = {path: read_log_tail(expand_path(path, os.environ), limit, gate=gate) for path in paths}
        if json:
            entries = [
                {"path": path, "lines": list(tail.lines), "warnings": list(tail.warnings)}
                for path, tail in tails.items()
            ]
            console.print_object({"logs": entries})
        else:
            for path, tail in tails.items():
                heading = [f"Log {printable_name(path)}:"] if len(tails) > 1 else []
                console.print_lines([*heading, *(_escape_if_terminal(line) for line in tail.lines)])
                for warning in tail.warnings:
                    console.print_note(warning)
        if any(tail.warnings and not tail.lines for tail in tails.values()):
            raise typer.Exit(SOME_FAILED)


@app.command("skill")
def skill(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the skill, in upper or lower case.")],
    folder: Annotated[
        str,
        typer.Option(
            "--folder", metavar="PATH", help="Folder that contains the skills, relative to the current folder."
        ),
    ] = "skills",
    private: Annotated[
        list[str] | None,
        typer.Option(
            "--private",
            metavar="TAG",
            help="Also hide parts with this tag. Parts tagged private or @personal are always hidden. Can be "
            "repeated.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Print a skill, without its private parts. A skill is a file that describes a task to the agent.

    Example: foveate memory skill water --folder notes/skills
    """
    with report_errors(as_json=json), console.collect_warnings():
        from foveate.memory.privacy import Gate
        from foveate.memory.skills import read_skill
        from foveate.paths import expand_path

        gate = Gate.with_tags(tag for option in private or () for tag in option.split(","))
        text = read_skill(expand_path(folder, os.environ), name, gate)
        if json:
            console.print_object({"name": name, "source": text})
        else:
            console.print_text(_escape_if_terminal(text))


def _parse_limit(text: str) -> int | None:
    if text.strip().casefold() == NO_LIMIT:
        return None
    tokens = text.strip().replace("_", "").replace(",", "")
    if tokens.isascii() and tokens.isdecimal() and len(tokens) <= _MAX_DIGITS and int(tokens):
        return int(tokens)
    raise BadOption(f"--limit-tokens takes a number of tokens, 1 or more, or {NO_LIMIT}, not {text!r:.40}")


def _load_memory(
    paths: Sequence[str], private: Iterable[str] | None, *, follow_symlinks: bool, as_json: bool
) -> tuple["Memory", list[UnreadableInput]]:
    """Load the paths that exist, and return the errors of the others. Problems in the notes are printed.

    Raises:
        UnreadableInput: none of the paths exists.
    """
    failures: list[UnreadableInput] = []
    existing = [path for path in paths if _check_exists(path, failures)]
    if failures and not existing:
        *others, last = failures
        for failure in others:
            console.print_note(str(failure))
        raise last
    for failure in failures:
        console.print_note(str(failure))
    with console.show_progress("reading the memory"):
        from foveate.memory.memory import Memory

        # Tags never contain commas, so a comma separates two tags.
        tags = [tag for option in private or () for tag in option.split(",")]
        memory = Memory.load(*existing, private=tags, follow_symlinks=follow_symlinks)
    if not as_json:
        _print_problems(memory)
    return memory, failures


def _check_exists(path: str, failures: list[UnreadableInput]) -> bool:
    from foveate.paths import expand_path

    try:
        os.stat(expand_path(path, os.environ))  # noqa: PTH116  # a Path would take away what is written
    except OSError as error:
        failures.append(UnreadableInput(printable_name(path), error.strerror or "cannot be read"))
        return False
    return True


def _print_problems(memory: "Memory") -> None:
    problems = memory.problems
    for problem in problems[:_MAX_LISTED_PROBLEMS]:
        console.print_note(str(problem))
    if len(problems) > _MAX_LISTED_PROBLEMS:
        console.print_note(f"… and {len(problems) - _MAX_LISTED_PROBLEMS:,} more; --json lists all")
    if not memory.nodes:
        console.print_note("the memory is empty: the paths contain no Org or Markdown notes that may be shown")


def _print_private_note(memory: "Memory") -> None:
    if memory.has_private:
        console.print_note("notes with a privacy tag, or with something that may be one, are left out")


def _state_object(memory: "Memory", failures: Iterable[UnreadableInput]) -> dict[str, object]:
    missing = [{"path": failure.source, "reason": failure.reason} for failure in failures]
    return {
        "version": memory.version,
        "problems": missing + [asdict(problem) for problem in memory.problems],
        "private_left_out": memory.has_private,
    }


def _escape_if_terminal(text: str) -> str:
    if not sys.stdout or not sys.stdout.isatty():
        return text
    return "\n".join(console.escape_control_chars(line.expandtabs()) for line in text.splitlines())


def _exit_if_failed(failures: Sequence[UnreadableInput]) -> None:
    if failures:
        raise typer.Exit(SOME_FAILED)
