"""Pictures of terminals in the documentation: taken from real programs, and still up to date.

The text of the picture, without its numbers, is compared with what the commands print now. If it differs, draw
the picture again:

    FOVEATE_SCREENSHOTS=1 ./test tests/e2e/test_terminal_pictures.py
"""

import html
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyte
import pytest

from foveate.sandbox.script import ScriptStep
from tests.support.clients.chat import KEYS, Terminal, open_terminal
from tests.support.servers.gateway_process import write_config
from tests.support.servers.sandbox import running_sandbox
from tools.picture import draw_svg

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SERVE = ROOT / "docs" / "pictures" / "serve.svg"
CHAT = ROOT / "docs" / "pictures" / "chat.svg"
IS_UPDATE = bool(os.environ.get("FOVEATE_SCREENSHOTS"))
ROWS, COLUMNS = 60, 88
DOCUMENTED_URL = "http://127.0.0.1:8090"
AGENTS = (("ana", 20), ("ben", 12))
CHAT_ROWS, CHAT_COLUMNS = 44, 72
ANSWERS = (
    """Order **two panes** from Weller's by Wednesday:

| pane | size | thickness |
|---|---|--:|
| front | 610 × 457 mm | 4 mm |
| side | 610 × 457 mm | 4 mm |

They deliver on Thursdays and cut to size for free.""",
    "Tom's long ladder. He brings it when his roof is done.",
)
# What is typed, and what appears when it is done.
CHAT_LINES = (
    ("Which panes do I have to order for the glasshouse?", "cut to size for free."),
    ("/model gpt-5.4", "Now using gpt-5.4"),
    ("And what am I waiting for?", "his roof is done."),
    ("/context", "window"),
    ("/cost detail", "token_budget="),
)
_NAMES = ("black", "red", "green", "brown", "blue", "magenta", "cyan", "white")
COLOURS = {name: f"3{number}" for number, name in enumerate(_NAMES)} | {
    f"bright{name}": f"9{number}" for number, name in enumerate(_NAMES)
}
MASKS = (
    (r"\b(req_|session )[0-9a-f]+…?", r"\1ID"),
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"\b[0-9a-f]{8}\b", "ID"),
    (r"[-−+~]?\$?\d[\d,.:]*( ?(ms|s|%|[kM]))?", "N"),
    (r"\s+", ""),
    (r"N+", "N"),
)


def mask(text: str) -> list[str]:
    """Return the lines of a text that are not empty, without numbers, dates and ids."""
    lines = text.splitlines()
    for pattern, word in MASKS:
        lines = [re.sub(pattern, word, line) for line in lines]
    return [line for line in lines if line]


def text_of_svg(svg: str) -> str:
    """Return the text of a picture of a terminal, line by line."""
    rows: dict[float, str] = {}
    for y, text in re.findall(r'<text class="foveate-r\d+" x="[^"]*" y="([^"]*)"[^>]*>(.*?)</text>', svg):
        rows[float(y)] = rows.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(rows[y] for y in sorted(rows))


def run_agent(url: str, name: str, turns: int) -> None:
    environment = {**os.environ, "ANTHROPIC_BASE_URL": url}
    arguments = ("--agent", name, "--turns", str(turns), "--model", "claude-sonnet-5-5")
    agent = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "agent.py"), *arguments],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert agent.returncode == 0, agent.stdout + agent.stderr


def raw_lines(terminal: Terminal) -> list[str]:
    """Return the output line by line, without progress lines that were erased."""
    lines = terminal.raw.decode().replace("\r\n", "\n").split("\n")
    return [line.rpartition("\r")[2] for line in lines]


def record_session(folder: Path) -> str:
    """Start a gateway at a terminal, send the requests of two agents, and ask for their cost."""
    with running_sandbox() as sandbox:
        sandbox.clock.now = time.time()
        write_config(folder / "foveate.yaml", sandbox.url)
        with open_terminal(folder, "serve", "--port", "0", rows=ROWS, columns=COLUMNS) as gateway:
            gateway.wait_for("Ctrl-C")
            gateway.wait_for(lambda: re.search(r"http://127.0.0.1:\d+", gateway.screen_text))
            found = re.search(r"http://127.0.0.1:\d+", gateway.screen_text)
            assert found
            screen = raw_lines(gateway)
            for name, turns in AGENTS:
                run_agent(found[0], name, turns)
            gateway.wait_for(lambda: len(raw_lines(gateway)) > len(screen) + 30)
            log = raw_lines(gateway)[len(screen) :][-5:-2]
            gateway.type("\x03")  # not killed: it would leave the last calls without their savings
            assert gateway.wait_for_exit() == 130
        with open_terminal(folder, "cost", "--since", "1d", rows=ROWS, columns=COLUMNS) as cost:
            assert cost.wait_for_exit() == 0
            costs = raw_lines(cost)
    lines = ["$ foveate serve", *screen, *log, "…", "", "$ foveate cost --since 1d", *costs]
    text = "\n".join(lines).replace(found[0], DOCUMENTED_URL)
    for private in (sandbox.url, str(folder)):
        text = text.replace(private, "~" if private == str(folder) else "https://api.anthropic.com")
    return text


def styled_line(screen: pyte.Screen, row: int) -> str:
    """Return a line of a screen with its colours as escape sequences."""
    line = screen.buffer[row]
    chars = [line[column] for column in range(screen.columns)]
    codes = [
        ";".join(
            ["0"]
            + ["1"] * char.bold
            + ["4"] * char.underscore
            + ["7"] * char.reverse
            + ([COLOURS[char.fg]] if char.fg in COLOURS else [])
        )
        for char in chars
    ]
    return "".join(f"\x1b[{code}m{char.data}" for char, code in zip(chars, codes, strict=True)) + "\x1b[0m"


def record_chat(folder: Path) -> str:
    """Chat with a scripted model about the example notes, and return the screen."""
    steps = [ScriptStep(text=text) for text in ANSWERS]
    notes = json.dumps(str(ROOT / "examples" / "notes"))
    with running_sandbox(*steps) as sandbox:
        agents = f"agents: [{{id: ana, sections: {{memory: {{paths: [{notes}], limit_tokens: 600}}}}}}]\n"
        write_config(folder / "foveate.yaml", sandbox.url, agents)
        arguments = ("chat", "--model", "claude-sonnet-5-5", "--agent", "ana")
        with open_terminal(folder, *arguments, rows=CHAT_ROWS, columns=CHAT_COLUMNS, env=KEYS) as terminal:
            for line, expected in CHAT_LINES:
                wait_for_prompt(terminal)  # what is typed before it appears is shown twice
                terminal.type(f"{line}\r")
                terminal.wait_for(expected)
            wait_for_prompt(terminal)
            screen = terminal.screen
            rows = [row for row, text in enumerate(screen.display) if text.strip()]
            return "\n".join(styled_line(screen, row) for row in range(rows[-1] + 1))


def wait_for_prompt(terminal: Terminal) -> None:
    terminal.wait_for(lambda: len(terminal.lines) > 1 and terminal.lines[-2].strip() == ">")


def check_picture(picture: Path, title: str, printed: str) -> None:
    """Compare a picture with what was printed; with `FOVEATE_SCREENSHOTS`, draw it first."""
    if IS_UPDATE:
        picture.write_text(draw_svg(printed, title), encoding="utf-8")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)

    assert mask(text_of_svg(picture.read_text(encoding="utf-8"))) == mask(plain), __doc__


def test_the_picture_of_a_gateway_matches_what_commands_print(tmp_path: Path) -> None:
    check_picture(SERVE, "foveate", record_session(tmp_path))


def test_the_picture_of_a_chat_matches_what_the_command_shows(tmp_path: Path) -> None:
    check_picture(CHAT, "foveate chat", record_chat(tmp_path))


@pytest.mark.parametrize("picture", [SERVE, CHAT], ids=lambda picture: picture.name)
def test_a_picture_is_legible_where_readers_see_it(picture: Path) -> None:
    """GitHub shows pictures about 830 pixels wide: letters have to be at least 12 pixels high there."""
    width = re.search(r'viewBox="0 0 ([\d.]+)', picture.read_text(encoding="utf-8"))
    assert width

    assert 20 * 830 / float(width[1]) >= 12
