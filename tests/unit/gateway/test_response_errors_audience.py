"""Error texts depend on their audience."""

from decimal import Decimal

import pytest

from foveate.cost.caps import Cap, CapScope, make_cap_exceeded, make_cap_uncheckable
from foveate.cost.ledger import AccountBalance
from foveate.errors import (
    BudgetExceeded,
    DoesNotFit,
    DuplicateKey,
    FoveateError,
    KeyRefused,
    NoUpstream,
    OperationRefused,
    SectionSize,
    StoreUnavailable,
    UnwritableFile,
    UpstreamTimeout,
    UpstreamUnreachable,
    WrongApi,
)
from foveate.gateway.response import Audience, classify_audience, error_text

CAP = Cap(scope=CapScope.AGENT, agent="secret", dollars=Decimal("0.75"))
BALANCE = AccountBalance(spent=Decimal("0.5"), reserved=Decimal(0))
SECRETS = ("secret", "0.75", "0.5", "$", "1234", "foveate.yaml")
ERRORS: list[FoveateError] = [
    make_cap_exceeded(CAP, BALANCE, Decimal("0.5")),
    make_cap_uncheckable(CAP, "the price of m is not known", "say its price"),
    make_cap_uncheckable(CAP, "/secret/foveate.sqlite: is locked", "bring it back", is_outage=True),
    KeyRefused("calls of secret are paid", public="calls are paid"),
    OperationRefused("GET /v1/files", "secret"),
    WrongApi("m", "secret", api="anthropic"),
    NoUpstream("azure"),
    BudgetExceeded(
        "too much", "less", limit_tokens=1234, tokens=1235, sections=(SectionSize("secret", "high", 1, 1234),)
    ),
    DoesNotFit("required sections take 1234 more", tokens=9, limit_tokens=8, window_tokens=10),
    StoreUnavailable("/secret/foveate.sqlite", "is locked"),
    UnwritableFile("/secret/file", "is full"),
    UpstreamUnreachable("http://secret:1234/v1", "connect call failed ('secret', 1234)"),
    UpstreamTimeout("http://secret:1234/v1", 1234.0),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_caller_without_a_key_learns_nothing_about_the_configuration(error: FoveateError) -> None:
    text = error_text(error, Audience.STRANGER)
    assert text
    assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_agent_learns_nothing_about_the_machine(error: FoveateError) -> None:
    text = error_text(error, Audience.AGENT)
    assert not any(place in text for place in ("/secret", "secret:1234", "'secret', 1234"))
    assert error is not ERRORS[0] or "$0.75" in text


def test_an_agent_does_not_learn_what_others_spend_of_a_shared_cap() -> None:
    shared = Cap(scope=CapScope.DAY, dollars=Decimal("0.75"))
    assert error_text(make_cap_exceeded(shared, BALANCE, Decimal("0.5")), Audience.AGENT).startswith(
        "the cap on a day does not leave"
    )
    for error in (
        make_cap_exceeded(shared, BALANCE, Decimal("0.5")),
        make_cap_uncheckable(shared, "no price of m", "say its price"),
    ):
        text = error_text(error, Audience.AGENT)
        assert not any(amount in text for amount in ("0.75", "0.5", "$"))
        assert "$0.75" in error_text(error, Audience.OPERATOR)


def test_the_operator_reads_everything() -> None:
    assert error_text(ERRORS[2], Audience.OPERATOR) == str(ERRORS[2])
    assert "('secret', 1234)" in error_text(ERRORS[11], Audience.OPERATOR)
    assert error_text(DuplicateKey(("model",)), Audience.STRANGER) == str(DuplicateKey(("model",)))


@pytest.mark.parametrize(
    ("headers", "has_key", "is_open", "audience"),
    [
        ([], False, False, Audience.OPERATOR),
        ([], True, False, Audience.OPERATOR),
        ([], True, True, Audience.AGENT),
        ([], False, True, Audience.STRANGER),
        ([(b"x-forwarded-for", b"10.0.0.9")], False, False, Audience.STRANGER),
        ([(b"forwarded", b"for=10.0.0.9")], True, False, Audience.AGENT),
        ([(b"via", b"1.1 proxy")], False, False, Audience.STRANGER),
    ],
)
def test_the_audience_depends_on_the_key_and_on_the_origin_of_the_request(
    headers: list[tuple[bytes, bytes]], has_key: bool, is_open: bool, audience: Audience
) -> None:
    assert classify_audience(headers, has_key=has_key, is_open=is_open) is audience
