"""Public contracts that need running commands and a gateway; `tests/unit` checks the rest."""

import pytest

from tests.golden import contract_file, from_commands


@pytest.mark.process
def test_runtime_contracts_match_the_golden_file() -> None:
    if problem := contract_file.problem(from_commands.contracts()):
        pytest.fail(problem, pytrace=False)
