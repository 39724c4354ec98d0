"""Public contracts that show only when commands and a gateway run; `tests/unit` has the rest."""

import pytest

from tests.golden import contract_file, from_commands


@pytest.mark.process
def test_contracts_of_what_runs_are_as_in_the_golden_file() -> None:
    if problem := contract_file.problem(from_commands.contracts()):
        pytest.fail(problem, pytrace=False)
