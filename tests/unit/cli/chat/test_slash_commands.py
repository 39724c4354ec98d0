"""Commands, completion, history and output of a conversation."""

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.chat.conversation import (
    CallTotals,
    ChatObserver,
    RequestPreview,
    sum_charges,
    sum_charges_by_model,
)
from foveate.chat.models import find_closest_name
from foveate.cli.chat.slash_commands import (
    COMMANDS,
    CommandLine,
    compaction_lines,
    completions,
    context_estimate_line,
    cost_detail_lines,
    describe_window_use,
    help_lines,
    parse_line,
    summary_lines,
)
from foveate.cli.chat.terminal import add_to_history, read_history, status_line
from foveate.cli.shared.console import Display
from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.admission import Settlement, SettlementOutcome
from foveate.cost.ledger import Call, Category, Charge
from foveate.engine.request import IncomingRequest, StepFailure
from foveate.model import CacheUsage, Format, Savings, TokenCount, Usage

WIDE = Display(columns=100)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Hello", "Hello"),
        ("  two\nlines \n", "two\nlines"),
        (":cost", CommandLine(":cost")),
        (" :cost  detail ", CommandLine(":cost", "detail")),
        (":tokenize a  b", CommandLine(":tokenize", "a  b")),
        ("::wq", ":wq"),
        (":", CommandLine(":")),
        ("/", CommandLine("/")),
        ("", ""),
        ("/cost", CommandLine(":cost")),
        ("/Cost\tdetail", CommandLine(":cost", "detail")),
        ("/tokenize a\nb", CommandLine(":tokenize", "a\nb")),
        ("/contxt", CommandLine("/contxt")),
        ("/modle gpt-4o", CommandLine("/modle", "gpt-4o")),
        (":wq", CommandLine(":wq")),
        ("/usr", CommandLine("/usr")),
        ("/etc/hosts is empty", "/etc/hosts is empty"),
        ("/etc/hosts", "/etc/hosts"),
        ("/tmp is full", "/tmp is full"),
        ("/home/ada/notes.txt: summarize it", "/home/ada/notes.txt: summarize it"),
        (":-)", ":-)"),
        (": a colon", ": a colon"),
        ("//etc is a folder", "/etc is a folder"),
        ("//cost", "/cost"),
        ("// a comment", "// a comment"),
        ("/* a comment */", "/* a comment */"),
        ("exit", CommandLine(":quit")),
        (" Quit ", CommandLine(":quit")),
        ("exit the loop", "exit the loop"),
    ],
)
def test_a_line_is_a_command_or_a_message(line: str, expected: CommandLine | str) -> None:
    assert parse_line(line) == expected


@given(text=st.text(max_size=30), prefix=st.sampled_from(":/"))
def test_a_line_is_never_dropped(text: str, prefix: str) -> None:
    """A message is sent as typed, or without the escape; a command keeps its words."""
    line = f"{prefix}{text}".strip()
    parsed = parse_line(line)

    if isinstance(parsed, CommandLine):
        assert (
            f"{parsed.name[1:]} {parsed.argument}".split() == line[1:].casefold().split()
            or parsed.argument in line
        )
    else:
        assert parsed in (line, line[1:])


@pytest.mark.parametrize(
    ("line", "is_quit"),
    [(":quit", True), ("/exit", True), (":q", True), ("/exit the loop", False), (":cost", False)],
)
def test_a_command_to_end_the_chat_has_no_argument(line: str, is_quit: bool) -> None:
    parsed = parse_line(line)

    assert isinstance(parsed, CommandLine)
    assert parsed.is_quit is is_quit


def test_commands_and_their_arguments_are_completed() -> None:
    models = ["claude-sonnet-5-5", "local"]

    assert [word for word, _, _ in completions(":co", models)] == [":cost", ":context", ":compact"]
    assert [word for word, _, _ in completions("/co", models)] == ["/cost", "/context", "/compact"]
    assert completions("/model cl", models) == [("claude-sonnet-5-5", 2, "")]
    assert completions("/etc/ho", models) == []
    assert completions(":model cl", models) == [("claude-sonnet-5-5", 2, "")]
    assert completions(":model ", models) == [(model, 0, "") for model in models]
    assert completions(":cost d", models) == [("detail", 1, "")]
    assert completions("a message :co", models) == []
    assert completions(":tokenize a\n:co", models) == []
    assert completions(":reset x", models) == []


def test_the_closest_command_is_found_if_any_is_close() -> None:
    assert find_closest_name(":modle", tuple(COMMANDS)) == ":model"
    assert find_closest_name(":xyzzy", tuple(COMMANDS)) is None


def test_the_history_is_private_and_a_corrupt_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "data" / "history"
    add_to_history(path, "one 👩")
    with path.open("ab") as file:
        file.write(b'{"half a li\n\xff\n42\n')
    add_to_history(path, "two\nlines")
    add_to_history(path, "x" * 200_000)  # a pasted file is not stored

    assert read_history(path) == ["one 👩", "two\nlines"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_history(tmp_path / "none") == []


@pytest.mark.process
def test_concurrent_conversations_write_complete_history_lines(tmp_path: Path) -> None:
    path = tmp_path / "history"
    code = (
        "import sys; from pathlib import Path; from foveate.cli.chat.terminal import add_to_history\n"
        "for number in range(100): add_to_history(Path(sys.argv[1]), f'{sys.argv[2]} {number} ' + 'x' * 9000)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "ab"]
    codes = [process.wait(60) for process in processes]
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    assert codes == [0, 0]
    assert len(lines) == 200
    assert all(len(line) > 9000 for line in lines)


def test_escape_sequences_in_a_compaction_reason_are_not_obeyed() -> None:
    failed = CompactionResult(outcome=CompactionOutcome.FAILED, reason="\x1b[31mred")

    assert compaction_lines(failed, make_preview(), make_preview(), Display()) == [
        "Nothing was compacted: \\x1b[31mred"
    ]


def make_charge(
    model: str, category: Category, dollars: str | None, *, read: int = 0, saved: str | None = None
) -> Charge:
    call = Call(
        id="1", agent="a", session_id="s", provider="p", model=model, category=category, at=1_800_000_000.0
    )
    usage = Usage(cache=CacheUsage(uncached=100, read=read), output_tokens=7)
    savings = Savings(breakpoints=None if saved is None else Decimal(saved))
    return Charge(
        call=call, usage=usage, dollars=None if dollars is None else Decimal(dollars), savings=savings
    )


def make_preview(tokens: int = 1893, window: int | None = 8192) -> RequestPreview:
    count = TokenCount(tokens, False, tokens + 9)
    return RequestPreview(model="m", count=count, window_tokens=window, output_reserve=2048)


def test_cost_details_have_a_row_for_each_model_and_category() -> None:
    charges = [
        make_charge("m", Category.MAIN, "0.01", read=300),
        make_charge("m", Category.COMPACTION, "0.002"),
        make_charge("m", Category.MAIN, "0.01"),
        make_charge("other", Category.MAIN, None),
    ]

    assert cost_detail_lines(charges, make_preview(), WIDE) == [
        "model  category    calls  prompt / completion                  dollars",
        "m      main            2             500 / 14                  $0.0200",
        "m      compaction      1              100 / 7                  $0.0020",
        "other  main            1              100 / 7  1 call of unknown price",
        "[estimated session ctx: 1893 tokens; token_budget=6144 (31% used)]",
    ]
    assert [row.calls for row in sum_charges_by_model(charges)] == [2, 1, 1]
    assert sum_charges(charges[:1]).hit_ratio == 0.75


def test_the_summary_of_a_chat_has_one_precision_and_counts_calls_of_unknown_price() -> None:
    charges = [
        make_charge("m", Category.MAIN, "0.0312345", read=300, saved="0.02"),
        make_charge("m", Category.COMPACTION, "0.002"),
        make_charge("other", Category.MAIN, None),
    ]

    assert summary_lines(2, sum_charges(charges)) == [
        "2 messages, 3 calls: 600 input tokens (300 cached), 21 output tokens",
        "Cost: $0.0332 + 1 call of unknown price, saved by Foveate: $0.0200",
    ]
    assert summary_lines(1, sum_charges(charges[1:2]))[1] == "Cost: $0.0020"
    assert summary_lines(0, CallTotals()) == ["No calls were made."]


def test_help_lists_commands_keys_and_the_rule_for_slashes() -> None:
    lines = help_lines(COMMANDS, Display(columns=60))

    assert all(any(line.startswith(f"  {name}") for line in lines) for name in COMMANDS)
    assert any(line.startswith("  Ctrl-D") for line in lines)
    assert "//help sends /help." in " ".join(lines)
    assert all(len(line) <= 60 for line in lines)


def test_skipped_steps_and_pending_charges_are_noted_once() -> None:
    observer, incoming = (
        ChatObserver(),
        IncomingRequest(id="1", agent="a", api_format=Format.CHAT, provider="p", upstream="u", body=b""),
    )
    for _ in range(2):
        observer.on_failure(incoming, StepFailure("session", "the store is away"))
    observer.on_charge(
        make_charge("m", Category.MAIN, "0.01"),
        Settlement(outcome=SettlementOutcome.WAITING, problem="it is away"),
    )
    observer.on_charge(make_charge("m", Category.MAIN, "0.01"), Settlement(outcome=SettlementOutcome.RECORDED))
    notes = observer.take_notes()

    assert notes == [
        "the request was sent without the step session: the store is away",
        "the charge of the last call is waiting to be recorded: it is away",
    ]
    assert observer.take_notes() == []
    assert len(observer.charges_for({"s"})) == 2
    assert observer.charges_for({"another"}) == []


def test_a_model_with_an_unknown_window_has_the_default_budget() -> None:
    assert context_estimate_line(make_preview(window=None)).endswith("token_budget=14336 (13% used)]")
    assert "context window unknown" in describe_window_use(make_preview(window=None))


def test_the_status_line_fits_however_narrow_a_terminal_is() -> None:
    totals = CallTotals(calls=3, prompt_tokens=100, read_tokens=40, dollars=Decimal("0.0123"), unknown_calls=1)
    full = status_line(make_preview(), "a-model", totals, totals, WIDE)
    short = status_line(make_preview(), "a-model", totals, totals, Display(columns=44))
    shortest = status_line(make_preview(), "a-model", totals, totals, Display(columns=9))
    ascii_only = status_line(None, "a-model", CallTotals(), CallTotals(), Display(columns=80, encoding="ascii"))

    assert full == " a-model · ~1,893 of 8,192 tokens (23%) · cache 40% · $0.0123 + ? "
    assert short == " a-model · 23% · cache 40% · $0.0123 + ? "
    assert len(shortest) == 9
    assert ascii_only == " a-model | cache - | $0.00 "
