"""Commands, completion, history and output of a conversation."""

import json
import subprocess
import sys
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest

from foveate.chat.costs import CallTotals, ChatObserver, sum_charges, sum_charges_by_model
from foveate.chat.models import find_closest_name
from foveate.chat.preview import RequestPreview
from foveate.chat.responses import FragmentKind, ResponseFragment
from foveate.cli.chat import output
from foveate.cli.chat.commands import COMMANDS, CommandLine, completions, parse_line
from foveate.cli.chat.history import add_to_history, read_history
from foveate.cli.chat.streaming import AnswerWriter, escape_for_terminal
from foveate.cli.console import Display
from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.admission import Settlement, SettlementOutcome
from foveate.cost.ledger import Call, Category, Charge
from foveate.engine.request import RoutedRequest, StepFailure
from foveate.model import CacheUsage, Format, TokenCount, Usage

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
        ("", ""),
    ],
)
def test_a_line_is_a_command_or_a_message(line: str, expected: CommandLine | str) -> None:
    assert parse_line(line) == expected


def test_commands_and_their_arguments_are_completed() -> None:
    models = ["claude-sonnet-5-5", "local"]

    assert [word for word, _, _ in completions(":co", models)] == [":cost", ":context", ":compact"]
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
        "import sys; from pathlib import Path; from foveate.cli.chat.history import add_to_history\n"
        "for number in range(100): add_to_history(Path(sys.argv[1]), f'{sys.argv[2]} {number} ' + 'x' * 9000)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "ab"]
    codes = [process.wait(60) for process in processes]
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    assert codes == [0, 0]
    assert len(lines) == 200
    assert all(len(line) > 9000 for line in lines)


def test_text_is_shown_unchanged_thinking_dimmed_and_tool_calls_named() -> None:
    fragments = [
        ResponseFragment(FragmentKind.THINKING, "Hm."),
        ResponseFragment(FragmentKind.TEXT, "Hel"),
        ResponseFragment(FragmentKind.TEXT, "lo"),
        ResponseFragment(FragmentKind.TOOL_CALL, "look\x1b_up"),
    ]
    dimmed, plain = StringIO(), StringIO()
    started: list[int] = []
    for stream, colours in ((dimmed, True), (plain, False)):
        writer = AnswerWriter(stream, Display(colours=colours), on_start=lambda: started.append(1))
        for fragment in fragments:
            writer(fragment)
        writer.end()

    assert dimmed.getvalue() == "\x1b[2mHm.\x1b[0m\nHello\n[calls look\\x1b_up]\n"
    assert plain.getvalue() == "(thinking) Hm.\nHello\n[calls look\\x1b_up]\n"
    assert started == [1, 1]


def test_a_line_break_may_be_split_between_chunks() -> None:
    stream = StringIO()
    writer = AnswerWriter(stream, Display())
    for text in ("one\r", "\ntwo\r", "three\r"):
        writer(ResponseFragment(FragmentKind.TEXT, text))
    writer.end()

    assert stream.getvalue() == "one\ntwo\\rthree\n"


def test_escape_sequences_in_a_compaction_reason_are_not_obeyed() -> None:
    failed = CompactionResult(outcome=CompactionOutcome.FAILED, reason="\x1b[31mred")

    assert output.compaction_lines(failed, make_preview(), make_preview(), Display()) == [
        "nothing was folded: \\x1b[31mred"
    ]


def test_escape_sequences_in_an_answer_are_not_obeyed_and_emoji_stay_joined() -> None:
    assert escape_for_terminal("a\tb\n\x1b[31m\u202e 👩\u200d👧\r") == "a    b\n\\x1b[31m\\u202e 👩\u200d👧\\r"


def make_charge(model: str, category: Category, dollars: str | None, *, read: int = 0) -> Charge:
    call = Call(
        id="1", agent="a", session_id="s", provider="p", model=model, category=category, at=1_800_000_000.0
    )
    usage = Usage(cache=CacheUsage(uncached=100, read=read), output_tokens=7)
    return Charge(call=call, usage=usage, dollars=None if dollars is None else Decimal(dollars))


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

    assert output.cost_detail_lines(charges, make_preview(), WIDE) == [
        "model  category    calls  prompt / completion                  dollars",
        "m      main            2             500 / 14                    $0.02",
        "m      compaction      1              100 / 7                   $0.002",
        "other  main            1              100 / 7  1 call of unknown price",
        "[estimated session ctx: 1893 tokens; token_budget=6144 (31% used)]",
    ]
    assert [row.calls for row in sum_charges_by_model(charges)] == [2, 1, 1]
    assert sum_charges(charges[:1]).hit_ratio == 0.75


def test_skipped_steps_and_pending_charges_are_noted_once() -> None:
    observer, incoming = (
        ChatObserver(),
        RoutedRequest(id="1", agent="a", api_format=Format.CHAT, provider="p", upstream="u", body=b""),
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
        "without session: the store is away",
        "the bill of the last call is waiting: it is away",
    ]
    assert observer.take_notes() == []
    assert len(observer.charges_for({"s"})) == 2
    assert observer.charges_for({"another"}) == []


def test_a_model_with_an_unknown_window_has_the_default_budget() -> None:
    assert output.context_estimate_line(make_preview(window=None)).endswith("token_budget=14336 (13% used)]")
    assert "window unknown" in output.describe_window_use(make_preview(window=None))


def test_the_status_line_fits_however_narrow_a_terminal_is() -> None:
    totals = CallTotals(calls=3, prompt_tokens=100, read_tokens=40, dollars=Decimal("0.0123"), unknown_calls=1)
    full = output.status_line(make_preview(), "a-model", totals, totals, WIDE)
    short = output.status_line(make_preview(), "a-model", totals, totals, Display(columns=44))
    shortest = output.status_line(make_preview(), "a-model", totals, totals, Display(columns=9))
    ascii_only = output.status_line(
        None, "a-model", CallTotals(), CallTotals(), Display(columns=80, encoding="ascii")
    )

    assert full == " a-model · ~1,893 of 8,192 tokens (23%) · cache 40% · $0.0123 + ? "
    assert short == " a-model · 23% · cache 40% · $0.0123 + ? "
    assert len(shortest) == 9
    assert ascii_only == " a-model | cache - | $0.00 "
