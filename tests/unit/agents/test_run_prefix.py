"""The prefix of paths that names a run and its agent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.agents.run_prefix import (
    NO_RUN,
    RunPrefix,
    make_request_id,
    new_run,
    parse_run_prefix,
    request_id_prefix,
)


@given(st.text(max_size=80), st.text(max_size=40))
def test_the_prefix_of_any_new_run_is_parsed_again(agent: str, rest: str) -> None:
    run = new_run(agent)

    assert parse_run_prefix(f"{run}/{rest}") == run


def test_runs_of_the_same_agent_differ() -> None:
    assert new_run("claude-code").run != new_run("claude-code").run


@pytest.mark.parametrize(("agent", "name"), [("my agent.py", "my-agent.py"), ("../..", "agent"), ("", "agent")])
def test_a_name_keeps_only_characters_of_a_path_segment(agent: str, name: str) -> None:
    assert new_run(agent).agent == name


@pytest.mark.parametrize(
    "path",
    [
        "/v1/messages",
        "/run/0123456789abcdef/claude",  # a base URL alone is not an endpoint
        "/run/0123456789ABCDEF/claude/v1/messages",
        "/run/0123456789abcde/claude/v1/messages",
        "/run/0123456789abcdef/../v1/messages",
        "/run/0123456789abcdef/%2e%2e/v1/messages",
        "/%72un/0123456789abcdef/claude/v1/messages",
        f"/run/0123456789abcdef/fov-{'k' * 40}/v1/messages",  # keys are longer than any name
        "//run/0123456789abcdef/claude/v1/messages",
    ],
)
def test_other_paths_have_no_prefix(path: str) -> None:
    assert parse_run_prefix(path) is None


@given(st.integers(0, 2**128 - 1))
def test_request_ids_start_with_the_id_of_their_run(bits: int) -> None:
    run = RunPrefix("0123456789abcdef", "pi")

    id_ = make_request_id(bits, run.run)

    assert id_.startswith(request_id_prefix(run.run))
    assert len(id_) == len(make_request_id(bits)) == len("req_") + 32
    assert id_[-16:] == make_request_id(bits)[-16:]


def test_an_address_without_a_run_names_only_the_agent() -> None:
    assert parse_run_prefix(f"/run/{NO_RUN}/continue/v1/messages") == RunPrefix(NO_RUN, "continue")
    assert make_request_id(2**128 - 1, NO_RUN) == make_request_id(2**128 - 1)
