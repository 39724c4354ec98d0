"""Wall time of `import foveate` above bare Python, and of `foveate count` on a small file.

Every figure is the median over fresh processes, interleaved with the others.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import BadData, Report, time_side_by_side

SMALL_TEXT = "The quick brown fox jumps over the lazy dog.\n" * 20
PEERS = ("tiktoken", "litellm", "langchain_core.messages.utils")


FIGURES = (
    "import_ms",
    "count_small_file_ms",
    "bare_python_ms",
)


def run(data: Path | None) -> Report:
    """Return milliseconds of fresh processes."""
    if data is not None:
        raise BadData("this benchmark reads no recorded data")

    python = [sys.executable, "-P", "-c"]
    with TemporaryDirectory() as folder:
        small_file = Path(folder) / "small.txt"
        small_file.write_text(SMALL_TEXT, encoding="utf-8")
        command = [str(Path(sys.executable).with_name("foveate")), "count", str(small_file)]
        ours = {
            "bare": [*python, "pass"],
            "import": [*python, "import foveate"],
            "count": command,
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
        },
        peers={peer: {"import_ms": above_bare_ms(peer)} for peer in PEERS},
        rows=[
            {"process": name, "round": turn, "ms": round(seconds * 1000, 1)}
            for name, taken in timings.seconds.items()
            for turn, seconds in enumerate(taken, start=1)
        ],
    )


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
