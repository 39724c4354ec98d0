"""The golden file of public contracts: how it is written, read and compared.

A contract is a section of the file: items by name, each described in one line. A section is derived from the
code or from what commands print, never written by hand.
"""

import json
from collections.abc import Mapping
from pathlib import Path

Contracts = Mapping[str, Mapping[str, str]]

GOLDEN = Path(__file__).with_name("contracts.json")
REGENERATE = ".venv/bin/python tools/contracts.py"


def load() -> dict[str, dict[str, str]]:
    loaded: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return loaded


def save(contracts: Contracts) -> None:
    GOLDEN.write_text(text(contracts), encoding="utf-8")


def text(contracts: Contracts) -> str:
    """Format contracts as in the golden file: sorted, one item a line."""
    return json.dumps(contracts, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def differences(golden: Contracts, current: Contracts) -> str:
    """Describe what changed, section by section; empty if nothing did."""
    lines: list[str] = []
    for section in sorted({*golden, *current}):
        before, after = golden.get(section, {}), current.get(section, {})
        changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        if changed:
            lines.append(f"{section}:")
        for name in changed:
            if name in before:
                lines.append(f"  - {name}: {before[name]}")
            if name in after:
                lines.append(f"  + {name}: {after[name]}")
    return "\n".join(lines)


def problem(current: Contracts) -> str:
    """Say which sections of `current` differ from the golden file, and what to do; empty if none does."""
    golden = load()
    changes = differences({section: golden.get(section, {}) for section in current}, current)
    return changes and (
        "public contracts changed (- golden file, + now):\n\n"
        f"{changes}\n\n"
        f"Users rely on these. If the change is intended, run `{REGENERATE}`\n"
        "and say in the commit message why it is made."
    )
