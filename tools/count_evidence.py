"""Rewrite the evidence table of the token counter from recorded calls.

    .venv/bin/python tools/count_evidence.py [FOLDER]

FOLDER has `*pairs*.jsonl.gz`; by default it is the folder of recorded data next to the project.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import count_evidence, recorded


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    calls = [counted for call in recorded.read_pairs(folder) if (counted := count_evidence.count(call))]
    table = count_evidence.make_table(calls)
    count_evidence.TABLE.write_text(count_evidence.render_table(table), encoding="utf-8")
    print(f"{len(calls)} calls of {len(table.sources)} sources confirm {len(table.confirmed)} features")


if __name__ == "__main__":
    main()
