"""The beta header is the client's own, unless the variable overrides it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadOption
from foveate.prompt_cache.rules import resolve_beta_header


def test_without_the_variable_the_header_is_sent_unchanged() -> None:
    assert resolve_beta_header(None, " prompt-caching-2024-07-31 ,x") == " prompt-caching-2024-07-31 ,x"
    assert resolve_beta_header(None) == ""


def test_an_empty_variable_removes_only_the_caching_betas() -> None:
    client_betas = "context-1m-2025-08-07, prompt-caching-2024-07-31,extended-cache-ttl-2025-04-11"

    assert resolve_beta_header("", client_betas) == "context-1m-2025-08-07"
    assert resolve_beta_header(" , ", "prompt-caching-2024-07-31") == ""


def test_the_variable_replaces_the_caching_betas() -> None:
    assert resolve_beta_header("extended-cache-ttl-2025-04-11, own", "a,prompt-caching-2024-07-31,own") == (
        "a,own,extended-cache-ttl-2025-04-11"
    )


@pytest.mark.parametrize("override", ["a b", "a\r\nx-evil: 1", "ä", "a;b"])
def test_an_invalid_header_value_is_rejected_with_the_name_of_the_variable(override: str) -> None:
    with pytest.raises(BadOption, match="ANTHROPIC_CACHE_BETA"):
        resolve_beta_header(override, "a")


@given(
    override=st.lists(st.sampled_from(["a", "prompt-caching-x"])), client_betas=st.lists(st.sampled_from("abc"))
)
def test_no_other_beta_is_lost_or_repeated(override: list[str], client_betas: list[str]) -> None:
    header = resolve_beta_header(",".join(override), ",".join(client_betas))

    assert sorted(filter(None, header.split(","))) == sorted({*override, *client_betas})
