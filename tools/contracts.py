"""Rewrite the golden file of public contracts, and show what changed.

Contracts are what users rely on: commands, options, JSON keys, settings, headers, metrics, tables, error codes,
signatures of the library and more. A commit that changes the file says why.
"""

import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.golden import contract_file, from_code, from_commands

    before = contract_file.load() if contract_file.GOLDEN.exists() else {}
    current = {**from_code.contracts(), **from_commands.contracts()}
    contract_file.save(current)
    print(contract_file.differences(before, current) or "nothing changed")


if __name__ == "__main__":
    main()
