"""Wall time of `import foveate` above bare Python, of `foveate count` on a small file, and of the status line.

Every figure is the median over fresh processes, interleaved with the others. `foveate status --line` gets a
session on standard input, as from Claude Code, and its line from a server in this process;
`status_line_times_bare` is its time over that of bare Python, as the median of ratios.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from benchmarks.harness import BadData, Report, time_side_by_side

SMALL_TEXT = "The quick brown fox jumps over the lazy dog.\n" * 20
PEERS = ("tiktoken", "litellm", "langchain_core.messages.utils")


FIGURES = (
    "import_ms",
    "count_small_file_ms",
    "bare_python_ms",
    "status_line_ms",
    "status_line_times_bare",
)
_LINE = b"$1.23 | context 45% | cache 4:12 | today $5.60"
_AGENT_INPUT = b'{"session_id":"5e55a0de-0000-4000-8000-0000000f0ea7","model":{"id":"claude-sonnet-4-6"}}'


def run(data: Path | None) -> Report:
    """Return milliseconds of fresh processes."""
    if data is not None:
        raise BadData("this benchmark reads no recorded data")

    python = [sys.executable, "-P", "-c"]
    with TemporaryDirectory() as folder, _serve_line() as url:
        small_file = Path(folder) / "small.txt"
        small_file.write_text(SMALL_TEXT, encoding="utf-8")
        program = str(Path(sys.executable).with_name("foveate"))
        ours = {
            "bare": [*python, "pass"],
            "import": [*python, "import foveate"],
            "count": [program, "count", str(small_file)],
            "status line": [program, "status", "--line", "--url", url],
        }
        peers = {peer: [*python, f"import {peer}"] for peer in PEERS}
        timings = time_side_by_side(
            {name: partial(_run, line) for name, line in (ours | peers).items()}, rounds=5
        )

    def above_bare_ms(name: str) -> float:
        return round(timings.difference_seconds(name, over="bare") * 1000, 1)

    return Report(
        figures={
            "import_ms": above_bare_ms("import"),
            "count_small_file_ms": round(timings.median_seconds("count") * 1000, 1),
            "bare_python_ms": round(timings.median_seconds("bare") * 1000, 1),
            "status_line_ms": round(timings.median_seconds("status line") * 1000, 1),
            "status_line_times_bare": round(1 / timings.speedup("status line", over="bare"), 2),
        },
        peers={peer: {"import_ms": above_bare_ms(peer)} for peer in PEERS},
        rows=[
            {"process": name, "round": turn, "ms": round(seconds * 1000, 1)}
            for name, taken in timings.seconds.items()
            for turn, seconds in enumerate(taken, start=1)
        ],
    )


def _run(command: list[str]) -> None:
    finished = subprocess.run(command, check=True, input=_AGENT_INPUT, stdout=subprocess.PIPE)
    if "status" in command and finished.stdout.strip() != _LINE:
        raise BadData(f"the status line is {finished.stdout!r}, not that of the server")


@contextmanager
def _serve_line() -> Iterator[str]:
    """A server that answers like the gateway."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/vnd.foveate.status; charset=utf-8")
            self.end_headers()
            self.wfile.write(_LINE)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
