"""`foveate memory`: render, query and outline notes, print logs and skills."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.count import DEFAULT_MODEL, printable_name
from foveate.cli.shared import console
from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.errors import SOME_FAILED, report_errors
from foveate.cli.shared.options import LOCAL_TIME_HELP, MODEL_METAVAR, UNTIL_NOTE
from foveate.cli.shared.tables import GAP, Cell, Column, Fit, Styled, format_table, join_styled, shorten_middle
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.memory.nodes import Node, NoteDocument
    from foveate.memory.parsing.outline import PlanningDate, PlanningKind
    from foveate.memory.views.view import View
    from foveate.model import TokenCount

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
_INDENT = "  "
_MIN_TITLE_CELLS, _MAX_TITLE_CELLS = 16, 120
_NODE_COLUMNS = (
    Column(),  # id
    Column(optional=True),  # TODO state
    Column(fit=Fit.WRAP, min_cells=_MIN_TITLE_CELLS),  # title
    Column(optional=True, drop_order=2),  # tags
    Column(fit=Fit.SHORTEN, drop_order=1),  # file
)


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


def view_summary(view: "View", *, model: str, nodes: int) -> str:
    from foveate.memory.views.view import DetailLevel

    count, limit = view.count, view.limit_tokens
    tokens = f"{format_tokens(count.tokens, count.exact)} tokens"
    if limit is not None:
        tokens = f"{format_tokens(count.tokens, count.exact)} of {limit:,} tokens"
    accuracy = "exact" if count.exact else f"estimated, upper bound {count.upper:,}"
    levels = [node.level for node in view.nodes]
    counts = ", ".join(
        f"{levels.count(level):,} {word}"
        for level, word in (
            (DetailLevel.FULL, "full"),
            (DetailLevel.EXCERPT, "excerpt"),
            (DetailLevel.TITLE, "title"),
        )
        if level in levels
    )
    others = f"{nodes - len(levels):,} not shown"
    return f"{tokens}, {model}, {accuracy}; {nodes:,} nodes: {f'{counts}, ' if counts else ''}{others}"


def view_object(view: "View", *, model: str, focus: str | None) -> dict[str, object]:
    return {
        "tokens": view.tokens,
        "limit_tokens": view.limit_tokens,
        "text": view.text,
        "nodes": [asdict(node) for node in view.nodes],
        "count": asdict(view.count),
        "model": model,
        "focus": focus,
    }


def node_object(node: "Node") -> dict[str, object]:
    from foveate.memory.parsing.outline import PlanningKind

    return {
        "id": node.id,
        "title": node.title,
        "type": node.type,
        "todo": node.todo,
        "is_done": node.entry.is_done,
        "priority": node.entry.priority,
        "tags": sorted(node.tags),
        "path": node.document.path,
        "parent": node.parent.id if node.parent else None,
        "modified": node.modified.isoformat(),
        "scheduled": _planned_time(node, PlanningKind.SCHEDULED),
        "deadline": _planned_time(node, PlanningKind.DEADLINE),
    }


def node_lines(nodes: "Sequence[Node]", display: Display) -> list[str]:
    rows: list[list[Cell]] = [
        [
            Styled(node.id, "dim"),
            node.todo,
            _short_title(node, display),
            _format_tags(sorted(node.tags)),
            Styled(node.document.key, "dim"),
        ]
        for node in nodes
    ]
    return format_table(_NODE_COLUMNS, rows, display) if rows else []


def outline_lines(nodes: "Iterable[Node]", depth: int | None, display: Display) -> Iterator[str]:
    for document, level, node in _nodes_to_depth(nodes, depth):
        title = " ".join(filter(None, (node.todo, _priority(node), _short_title(node, display))))
        parts = [
            Styled(_INDENT * level + title, "" if level else "bold"),
            Styled(f"<<{node.id}>>", "dim"),
            Styled(_format_tags(node.entry.tags)),
        ]
        if not level:
            count = _count_tokens(document)
            node_count = len(document.nodes)
            tokens = f"{format_tokens(count.tokens, count.exact)} tokens"
            size = f"{node_count:,} node{'s' * (node_count != 1)}, {tokens}"
            parts += [Styled(document.key), Styled(size)]
        yield (" " * GAP).join(join_styled([part], display) for part in parts if part.text)


def outline_object(nodes: "Iterable[Node]", depth: int | None) -> dict[str, object]:
    files: list[dict[str, object]] = []
    node_objects: list[dict[str, object]] = []
    for document, level, node in _nodes_to_depth(nodes, depth):
        if not level:
            tokens = _count_tokens(document).tokens
            files.append({"id": node.id, "path": document.path, "nodes": len(document.nodes), "tokens": tokens})
        node_objects.append(
            {
                "id": node.id,
                "title": node.title,
                "depth": level,
                "parent": node.parent.id if node.parent else None,
                "todo": node.todo,
                "tags": list(node.entry.tags),
            }
        )
    return {"files": files, "nodes": node_objects}


def _nodes_to_depth(nodes: "Iterable[Node]", depth: int | None) -> "Iterator[tuple[NoteDocument, int, Node]]":
    for document, document_nodes in groupby(nodes, key=lambda node: node.document):
        depths: dict[int, int] = {}  # node.depth would walk up to the root each time
        for node in document_nodes:
            level = depths[id(node)] = depths[id(node.parent)] + 1 if node.parent else 0
            if depth is None or level <= depth:
                yield document, level, node


def _count_tokens(document: "NoteDocument") -> "TokenCount":
    import foveate

    return foveate.count(document.outline.text)


def _short_title(node: "Node", display: Display) -> str:
    return shorten_middle(" ".join(node.title.split()), _MAX_TITLE_CELLS, display)


def _priority(node: "Node") -> str:
    return f"[#{node.entry.priority}]" if node.entry.priority else ""


def _format_tags(tags: Iterable[str]) -> str:
    joined = ":".join(tags)
    return f":{joined}:" if joined else ""


def _planned_time(node: "Node", kind: "PlanningKind") -> str | None:
    return next((_format_stamp(stamp) for stamp in node.entry.planning_dates if stamp.kind is kind), None)


def _format_stamp(stamp: "PlanningDate") -> str:
    return stamp.at.isoformat(timespec="minutes") if stamp.has_time else stamp.at.date().isoformat()
