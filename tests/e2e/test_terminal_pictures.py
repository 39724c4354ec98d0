"""The picture of a terminal in README.md: taken from a real gateway, and still up to date.

The text of the picture, without its numbers, is compared with what the commands print now. If it differs, draw
the picture again:

    FOVEATE_SCREENSHOTS=1 ./test tests/e2e/test_terminal_pictures.py
"""

import html
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.clients.chat import Terminal, open_terminal
from tests.support.servers.gateway_process import write_config
from tests.support.servers.sandbox import running_sandbox
from tools.picture import draw_svg

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "serve.svg"
IS_UPDATE = bool(os.environ.get("FOVEATE_SCREENSHOTS"))
ROWS, COLUMNS = 60, 88
DOCUMENTED_URL = "http://127.0.0.1:8090"
AGENTS = (("ana", 20), ("ben", 12))
MASKS = (
    (r"\b(req_|session )[0-9a-f]+…?", r"\1ID"),
    (r"\d{4}-\d\d-\d\d", "DATE"),
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
        with open_terminal(folder, "cost", "--since", "1d", rows=ROWS, columns=COLUMNS) as cost:
            assert cost.wait_for_exit() == 0
            costs = raw_lines(cost)
    lines = ["$ foveate serve", *screen, *log, "…", "", "$ foveate cost --since 1d", *costs]
    text = "\n".join(lines).replace(found[0], DOCUMENTED_URL)
    for private in (sandbox.url, str(folder)):
        text = text.replace(private, "~" if private == str(folder) else "https://api.anthropic.com")
    return text


def test_the_picture_of_the_terminal_matches_what_commands_print(tmp_path: Path) -> None:
    printed = record_session(tmp_path)
    if IS_UPDATE:
        PICTURE.write_text(draw_svg(printed, "foveate"), encoding="utf-8")
    svg = PICTURE.read_text(encoding="utf-8")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)

    assert mask(text_of_svg(svg)) == mask(plain), __doc__


def test_the_picture_is_legible_where_readers_see_it() -> None:
    """GitHub shows pictures about 830 pixels wide: letters have to be at least 12 pixels high there."""
    svg = PICTURE.read_text(encoding="utf-8")
    width = re.search(r'viewBox="0 0 ([\d.]+)', svg)
    assert width

    assert 20 * 830 / float(width[1]) >= 12
