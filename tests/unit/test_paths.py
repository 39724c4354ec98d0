import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadOption
from foveate.paths import data_folder, expand_path, find_default_config, sqlite_path

ENVIRON = {"HOME": "/home/ana", "NOTES": "~/notes", "DATA": '"/data"', "EMPTY": "", "DEEP": "$NOTES"}
# Characters without special meaning in a path.
PLAIN = st.text(st.characters(exclude_characters="$~'\"\0", exclude_categories=["Z", "Cc"]), min_size=1)


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("~", "/home/ana"),
        ("~/", "/home/ana/"),
        ("~/notes", "/home/ana/notes"),
        ("/srv/~/notes", "/srv/~/notes"),
        ("$HOME/notes", "/home/ana/notes"),
        ("${HOME}s/notes", "/home/anas/notes"),
        ("$NOTES/garden", "/home/ana/notes/garden"),
        ("$DATA/notes", "/data/notes"),
        ("$EMPTY/notes", "/notes"),
        ("$DEEP", "$NOTES"),
        ("/cost/$ 5/$", "/cost/$ 5/$"),
        ('"~/notes"', "/home/ana/notes"),
        ("'~/notes'", "/home/ana/notes"),
        ("'~/notes", "/home/ana/notes"),
        ('~/notes"', "/home/ana/notes"),
        ("\"'~/my notes'\" \n", "/home/ana/my notes"),
        ("~/ana's notes", "/home/ana/ana's notes"),
    ],
)
def test_a_path_is_expanded(path: str, expanded: str) -> None:
    assert expand_path(path, ENVIRON) == expanded


def test_a_path_object_is_accepted() -> None:
    assert expand_path(Path("~/notes"), ENVIRON) == "/home/ana/notes"


def test_a_user_name_expands_to_the_home_folder() -> None:
    user = pwd.getpwuid(os.getuid())

    assert expand_path(f"~{user.pw_name}/notes", {}) == f"{user.pw_dir.rstrip('/')}/notes"
    assert expand_path("~", {}) == expand_path("~", {"HOME": ""}) == user.pw_dir


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("$NOPE/notes", "variable 'NOPE' is not set"),
        ("${}/notes", "variable '' is not set"),
        ("~nobody-of-that-name/notes", "no user 'nobody-of-that-name'"),
        ("~\udc80/notes", "no user"),
        (" '' ", "the path is empty"),
        ("$EMPTY", "the path is empty"),
        ("/a\0b", "NUL byte"),
    ],
)
def test_an_invalid_path_is_rejected_with_its_setting(path: str, message: str) -> None:
    with pytest.raises(BadOption, match="(?s)" + message) as raised:
        expand_path(path, ENVIRON, key=("memory", "paths", 0))
    assert raised.value.path == ("memory", "paths", 0)


@given(path=PLAIN)
def test_a_path_without_variables_is_unchanged(path: str) -> None:
    assert expand_path(path, ENVIRON) == path


@given(
    path=PLAIN,
    before=st.text(" \t\"'", max_size=4),
    after=st.text(" \t\"'", max_size=4),
    home=st.sampled_from(["~", "$HOME", "${HOME}", "/home/ana"]),
)
def test_quotes_and_spellings_do_not_change_a_path(path: str, before: str, after: str, home: str) -> None:
    assert expand_path(f"{before}{home}/{path}{after}", ENVIRON) == f"/home/ana/{path}"


def test_the_data_folder_is_from_the_environment_or_the_platform() -> None:
    assert data_folder({"FOVEATE_HOME": "/data"}, "linux") == Path("/data")
    assert data_folder({"XDG_DATA_HOME": "/x"}, "linux") == Path("/x/foveate")
    assert data_folder({"FOVEATE_HOME": ""}, "linux") == Path.home() / ".local/share/foveate"
    assert data_folder({}, "darwin") == Path.home() / "Library/Application Support/foveate"


@pytest.mark.parametrize("environ", [{"FOVEATE_HOME": "~nobody-of-that-name/x"}, {"XDG_DATA_HOME": "$NOPE"}])
def test_a_data_folder_that_does_not_exist_is_an_error_with_a_reason(environ: dict[str, str]) -> None:
    with pytest.raises(BadOption, match=r"there is no user|is not set"):
        data_folder(environ, "linux")


def test_the_path_of_a_store_is_expanded_like_other_paths() -> None:
    assert sqlite_path("sqlite:///~/x.sqlite", ENVIRON) == Path("/home/ana/x.sqlite")
    assert sqlite_path("sqlite:////data/$HOME", {"HOME": "ana"}) == Path("/data/ana")
    assert sqlite_path("work/x.sqlite", ENVIRON) == sqlite_path("sqlite:///work/x.sqlite", ENVIRON)
    with pytest.raises(BadOption, match="is not set") as raised:
        sqlite_path("sqlite:///$NOPE/x.sqlite", ENVIRON)
    assert raised.value.path == ("store", "url")


def test_the_file_in_the_working_folder_takes_precedence_over_the_data_folder(tmp_path: Path) -> None:
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    assert find_default_config(folder, home) is None
    (home / "foveate.yaml").write_text("agents: []")
    assert find_default_config(folder, home) == home / "foveate.yaml"
    (folder / "foveate.yaml").write_text("agents: []")
    assert find_default_config(folder, home) == folder / "foveate.yaml"
