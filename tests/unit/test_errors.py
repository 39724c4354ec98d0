"""The error tree: stable codes, and errors that can be sent to another process."""

import pickle
from decimal import Decimal

import pytest

from foveate import errors

EXAMPLES = [
    errors.UnreadableInput("notes.txt", "is binary"),
    errors.MalformedRequest("not JSON"),
    errors.DuplicateKey(("messages", 3, "Role"), other="role"),
    errors.RequestLimitExceeded("messages", 30_000, 20_000, setting="max_messages"),
    errors.BadEdit("there is no such message", path=("messages", 7)),
    errors.WebSocketRefused("/v1/responses"),
    errors.MethodRefused("TRACE"),
    errors.BadPath("/v1/../x"),
    errors.KeyRefused("calls of x are paid", public="calls are paid"),
    errors.OperationRefused("GET /v1/files", "openai"),
    errors.BadVocabulary("a.tiktoken", "is empty"),
    errors.WrongApi("qwen3", "vllm", api="anthropic"),
    errors.BadOption("no such backend", path=("token_counter", "backend")),
    errors.MissingExtra("gateway", "uvicorn", "pip install"),
    errors.CannotListen("127.0.0.1", 80, "Permission denied"),
    errors.NoServiceManager("systemctl was not found"),
    errors.CannotStart("claude", "No such file or directory"),
    errors.GatewayNotStarted("the port is in use", "/data/run.log"),
    errors.BadSetting("budget.yaml", "is no number", line=3, key="total_tokens"),
    errors.BudgetExceeded(
        "too much", "cut it", limit_tokens=5, tokens=9, sections=(errors.SectionSize("a", "required", 9, 9),)
    ),
    errors.NoUpstream("gemini"),
    errors.DoesNotFit("too long", tokens=9, limit_tokens=5, window_tokens=6),
    errors.CapExceeded(
        "no room",
        "wait",
        cap="the cap on a day",
        limit=Decimal(5),
        spent=Decimal(4),
        reserved=Decimal(1),
        ceiling=Decimal("0.2"),
    ),
    errors.CapUncheckable("no price", "say one", cap="the cap on a day", limit=Decimal(5), reason="no price"),
    errors.ThreadRefused("thread_not_found", "no such thread"),
    errors.WorkersFailed(3, -9),
    errors.ServiceFailed("the service does not start"),
    errors.UnwritableFile("budget.yaml", "the disk is full"),
    errors.UnwritableOutput("is closed"),
    errors.StoreUnavailable("/data/foveate.sqlite", "the disk is full"),
    errors.StoreTooNew("/data/foveate.sqlite", version="0002", known="0001"),
    errors.NothingKept("/data/foveate.sqlite"),
    errors.UpstreamUnreachable("http://localhost", "refused"),
    errors.UpstreamBroken("http://localhost", "the connection was closed during the response"),
    errors.UpstreamTimeout("http://localhost", 2.0),
    errors.UpstreamStatus("http://localhost", 503, "busy"),
    errors.UpstreamGarbled("http://localhost", "not JSON"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_an_error_can_be_pickled(error: errors.FoveateError) -> None:
    """Defect: a pool waited forever for the result of a worker that had raised one."""
    unpickled = pickle.loads(pickle.dumps(error))

    assert type(unpickled) is type(error)
    assert str(unpickled) == str(error)
    assert vars(unpickled) == vars(error)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/openai/v1?api-version=1&subscription-key=SECRET", "https://h/openai/v1"),
        ("https://h/v1beta/models/m:generateContent?key=SECRET", "https://h/v1beta/models/m:generateContent"),
        ("https://h?key=SECRET@there", "https://h"),
        ("https://user:SECRET@h:8443/v1#SECRET", "https://h:8443/v1"),
        ("http://127.0.0.1:8000/a@b", "http://127.0.0.1:8000/a@b"),
    ],
)
def test_an_upstream_error_shows_neither_the_query_nor_the_password_of_its_address(
    url: str, shown: str
) -> None:
    for error in (
        errors.UpstreamUnreachable(url, "no"),
        errors.UpstreamTimeout(url, 2.0),
        errors.UpstreamStatus(url, 404, "not found"),
        errors.UpstreamGarbled(url, "not JSON"),
    ):
        assert str(error).startswith(f"{shown}: ")
        assert "SECRET" not in f"{error!r} {vars(error)} {pickle.dumps(error)!r}"


def test_every_error_with_parameters_has_an_example() -> None:
    with_parameters = {
        error_class
        for error_class in vars(errors).values()
        if isinstance(error_class, type) and "__init__" in vars(error_class)
    }

    assert {error_class for error_class in with_parameters if issubclass(error_class, errors.FoveateError)} <= {
        base for error in EXAMPLES for base in type(error).__mro__
    }


def test_error_codes_are_unique() -> None:
    error_classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.FoveateError)
    ]

    assert len({error_class.code for error_class in error_classes}) == len(error_classes)


def test_the_tree_in_the_docstring_names_every_error() -> None:
    documentation = errors.__doc__ or ""

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            assert name in documentation
