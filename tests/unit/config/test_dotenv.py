"""The `.env` file: variables, precedence of the environment, and errors."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.config.dotenv import load_env_file, parse_env
from foveate.errors import BadSetting, UnreadableInput

NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=40)

QUOTED_TEXTS = """
# keys
ANTHROPIC_API_KEY=sk-ant-1   # mine
export OPENAI_API_KEY = "sk # 2"
EMPTY=
SINGLE='as it\\n is'
LONG="first
second\\tend" # of it
COLOUR=#fff
URL=http://host/#part
"""


def test_variables_are_read_as_shells_and_tools_write_them() -> None:
    assert parse_env(QUOTED_TEXTS, ".env") == {
        "ANTHROPIC_API_KEY": "sk-ant-1",
        "OPENAI_API_KEY": "sk # 2",
        "EMPTY": "",
        "SINGLE": "as it\\n is",
        "LONG": "first\nsecond\tend",
        "COLOUR": "",
        "URL": "http://host/#part",
    }


@given(variables=st.dictionaries(NAMES, TEXTS, max_size=5))
def test_quoted_values_survive_a_round_trip(variables: dict[str, str]) -> None:
    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = "\n".join(f"{name}={quote(value)}" for name, value in variables.items())

    assert parse_env(text, ".env") == variables


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A=1\nsk-secret\n", 2),
        ("A=1\n\n1B=sk-secret", 3),
        ('A="sk-secret\nB=2\n', 1),
        ("A=1\nB='sk-secret' more", 2),
    ],
)
def test_an_invalid_line_is_reported_without_its_text(text: str, line: int) -> None:
    with pytest.raises(BadSetting) as caught:
        parse_env(text, ".env")

    assert caught.value.line == line
    assert str(caught.value).startswith(f".env:{line}: ")
    assert "secret" not in str(caught.value)


def test_the_environment_takes_precedence_and_a_missing_file_adds_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    assert load_env_file({"A_KEY": "real"}, path) == {"A_KEY": "real"}

    path.write_text("A_KEY=file\nB_KEY=file\n")

    assert load_env_file({"A_KEY": "real"}, path) == {"A_KEY": "real", "B_KEY": "file"}


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PYTHONPATH",
        "LD_PRELOAD",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "SSLKEYLOGFILE",
        "REQUESTS_CA_BUNDLE",
        "HTTPS_PROXY",
        "all_proxy",
        "FORWARDED_ALLOW_IPS",
        "AWS_CA_BUNDLE",
        "AWS_ENDPOINT_URL",
        "AWS_CONFIG_FILE",
        "OPENSSL_CONF",
        "PGSSLKEY",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "HOME",
        "TMPDIR",
    ],
)
def test_a_file_cannot_set_programs_proxies_or_certificates(tmp_path: Path, name: str) -> None:
    path = tmp_path / ".env"
    path.write_text(f"{name}=/bad\nFOVEATE_HOME=/data\nHOUSE_API_KEY=sk\n")

    assert load_env_file({}, path) == {"FOVEATE_HOME": "/data", "HOUSE_API_KEY": "sk"}


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "OPENAI_KEY_WORK",
        "OPENAI_API_KEY_2",
        "MY_LLM_APIKEY",
        "house_token",
        "AWS_ACCESS_KEY_ID",
    ],
)
def test_credentials_are_read_under_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / ".env"
    path.write_text(f"{name}=sk\n")

    assert load_env_file({}, path) == {name: "sk"}


def test_a_folder_named_env_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()

    assert load_env_file({}, tmp_path / ".env") == {}


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"A=\xff")

    with pytest.raises(UnreadableInput, match="is not UTF-8"):
        load_env_file({}, path)
