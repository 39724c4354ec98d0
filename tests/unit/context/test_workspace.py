"""Workspaces as values, and bundles merged with new readings."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget import Priority, Stability
from foveate.context.workspace import (
    ROLE_FILES,
    Bundle,
    BundleFile,
    Workspace,
    WorkspaceReading,
    WorkspaceWarning,
    merge_reading,
)
from foveate.errors import BadOption

HOME = Workspace("/srv/ana", "support", ["STYLE.md", "docs/tone.txt"])
NAMES = st.text("abc", min_size=1, max_size=3)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TEXTS = st.sampled_from(["", "one", "two", "three\n\nfour"])


def test_the_same_files_are_the_same_workspace_in_any_spelling() -> None:
    assert Workspace("/srv/../srv/ana/", "./support//", ("docs/./tone.txt", "/srv/ana/STYLE.md")) == HOME
    assert Workspace(Path("/srv/ana"), "support", ["STYLE.md", "docs/tone.txt", "STYLE.md", "user.md"]) == HOME


@given(extras=st.lists(PATHS, unique=True), data=st.data())
def test_the_order_of_extras_does_not_matter(extras: list[str], data: st.DataObject) -> None:
    other = data.draw(st.permutations(extras))

    assert Workspace("/srv", "a", extras) == Workspace("/srv", "a", other)
    assert hash(Workspace("/srv", "a", extras)) == hash(Workspace("/srv", "a", other))


@pytest.mark.parametrize(
    "path",
    [
        "../bea/USER.md",
        "docs/../../bea",
        "/srv/bea/USER.md",
        "/srv/anabel",
        "/etc/passwd",
        "/srv/ana",
        ".",
        " ",
        "a\0b",
    ],
)
def test_a_path_outside_the_root_is_rejected_by_name(path: str) -> None:
    with pytest.raises(BadOption) as extra:
        Workspace("/srv/ana", extras=["STYLE.md", path])
    with pytest.raises(BadOption) as scope:
        Workspace("/srv/ana", path)

    assert (extra.value.path, scope.value.path) == (("extras", 1), ("scope",))


@pytest.mark.parametrize("root", ["", "a\0b", "a\ud800b"])
def test_an_invalid_root_is_rejected(root: str) -> None:
    with pytest.raises(BadOption, match="root"):
        Workspace(root)


def test_a_single_text_as_extras_is_rejected() -> None:
    with pytest.raises(BadOption, match=r"\['STYLE.md'\]"):
        Workspace("/srv/ana", extras="STYLE.md")


def test_a_bundle_gives_sections_in_a_fixed_order_that_stay_the_same() -> None:
    files = tuple(BundleFile(name, name, f"This is {name}.") for name in HOME.file_names)
    bundle = Bundle(workspace=HOME, files=files, warnings=())

    assert [section.name for section in bundle.sections] == [
        "workspace/IDENTITY.md",
        "workspace/SOUL.md",
        "workspace/USER.md",
        "workspace/AGENTS.md",
        "workspace/MEMORY.md",
        "workspace/STYLE.md",
        "workspace/docs/tone.txt",
    ]
    assert {section.stability for section in bundle.sections} == {Stability.STATIC}
    assert [section.priority for section in bundle.sections] == [
        Priority.REQUIRED,
        *[Priority.HIGH] * 3,
        *[Priority.MEDIUM] * 3,
    ]
    assert bundle.text == "\n\n".join(f"This is {name}." for name in HOME.file_names)


@given(
    first_texts=st.lists(TEXTS, min_size=7, max_size=7), second_texts=st.lists(TEXTS, min_size=7, max_size=7)
)
def test_the_version_differs_only_for_different_texts(first_texts: list[str], second_texts: list[str]) -> None:
    def version(texts: list[str], root: str) -> str:
        files = tuple(map(BundleFile, HOME.file_names, HOME.file_names, texts))
        return Bundle(workspace=Workspace(root, extras=HOME.extras), files=files, warnings=()).version

    assert (version(first_texts, "/a") == version(second_texts, "/b")) == (first_texts == second_texts)


def reading(*files: BundleFile, warnings: tuple[WorkspaceWarning, ...] = ()) -> WorkspaceReading:
    return WorkspaceReading(files=files, warnings=warnings)


def make_bundle(*files: BundleFile) -> Bundle:
    return merge_reading(HOME, reading(*files), None, frozenset())


USER = BundleFile("USER.md", "USER.md", "I am Bob.")
SOUL = BundleFile("SOUL.md", "SOUL.md", "Kind.")
EMPTY = BundleFile("USER.md", "USER.md", "", is_blank=True)


def test_an_unavailable_file_keeps_its_text_while_others_are_updated() -> None:
    changed = BundleFile("SOUL.md", "SOUL.md", "Kinder.")
    warning = WorkspaceWarning("USER.md", "is being written", "USER.md")

    bundle = merge_reading(HOME, reading(changed, warnings=(warning,)), make_bundle(USER, SOUL), frozenset())

    assert bundle.files == (changed, USER)
    assert [str(warning) for warning in bundle.warnings] == [
        "USER.md: is being written; its previous content is still used"
    ]


def test_a_deleted_file_keeps_its_text() -> None:
    bundle = merge_reading(HOME, reading(SOUL), make_bundle(USER, SOUL), frozenset())

    assert bundle.version == make_bundle(USER, SOUL).version
    assert [warning.name for warning in bundle.warnings] == ["USER.md"]


def test_a_file_that_was_never_readable_is_left_out() -> None:
    warning = WorkspaceWarning("USER.md", "is not UTF-8 (byte 3)", "USER.md")

    for last in (None, make_bundle(SOUL), make_bundle(SOUL, EMPTY)):
        bundle = merge_reading(HOME, reading(SOUL, warnings=(warning,)), last, frozenset())
        assert (bundle.files, bundle.warnings) == ((SOUL,), (warning,))


def test_an_emptied_file_is_accepted_only_if_it_stays_empty() -> None:
    last = make_bundle(USER)

    assert merge_reading(HOME, reading(EMPTY), last, frozenset()).version == last.version
    assert merge_reading(HOME, reading(EMPTY), last, frozenset()).warnings
    assert merge_reading(HOME, reading(EMPTY), last, {"USER.md"}).sections == ()
    assert not merge_reading(HOME, reading(EMPTY), last, {"USER.md"}).warnings


def test_a_file_that_became_private_is_removed_immediately() -> None:
    hidden = BundleFile("USER.md", "USER.md", "")

    bundle = merge_reading(HOME, reading(hidden), make_bundle(USER), frozenset())

    assert (bundle.sections, bundle.warnings) == ((), ())


def test_a_deleted_file_of_the_scope_is_not_replaced_by_the_one_above_it() -> None:
    scoped = BundleFile("USER.md", "support/USER.md", "I am Bob, at night.")

    assert merge_reading(HOME, reading(scoped), make_bundle(USER), frozenset()).files == (scoped,)
    bundle = merge_reading(HOME, reading(USER), make_bundle(scoped), frozenset())
    assert bundle.files == (scoped,)
    assert [warning.path for warning in bundle.warnings] == ["support/USER.md"]


FILES = st.builds(
    lambda name, depth, text: BundleFile(name, "s/" * depth + name, text, is_blank=not text),
    st.sampled_from(ROLE_FILES),
    st.integers(0, 1),
    TEXTS,
)
WARNINGS = st.sampled_from(ROLE_FILES).map(lambda name: WorkspaceWarning(name, "is wrong", name))


@pytest.mark.slow
@given(
    readings=st.lists(
        st.builds(
            lambda files, warnings: (
                files,
                [warning for warning in warnings if warning.name not in {f.name for f in files}],
            ),
            st.lists(FILES, unique_by=lambda file: file.name),
            st.lists(WARNINGS, unique=True),
        ),
        max_size=6,
    )
)
def test_no_text_is_lost_without_a_warning(
    readings: list[tuple[list[BundleFile], list[WorkspaceWarning]]],
) -> None:
    last: Bundle | None = None
    for files, warnings in readings:
        bundle = merge_reading(HOME, reading(*files, warnings=tuple(warnings)), last, frozenset())
        bundled_files = {file.name: file for file in bundle.files if file.text}
        warned_names = {warning.name for warning in bundle.warnings}
        for file in last.files if last else ():
            assert not file.text or file.name in bundled_files
        for name, file in bundled_files.items():
            assert file in files or name in warned_names
        assert all(warning.name in warned_names for warning in warnings)
        last = bundle
