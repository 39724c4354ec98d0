from datetime import datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foveate.memory.nodes import Node, NoteDocument, RejectedId, build_nodes, claimed_ids
from foveate.memory.parsing.org import parse_org
from foveate.memory.privacy import Gate
from tests.support.scenarios.memory_nodes import LONG_AGO, NodeSpec, build_test_nodes, closed_at, node_titles


def parse_document(text: str, key: str = "notes.org") -> NoteDocument:
    """Build an Org document whose nodes are not built yet."""
    outline = Gate().redact(parse_org(text, name="notes"))
    return NoteDocument(path=f"/{key}", key=key, modified=LONG_AGO, digest=b"", outline=outline)


def parse_nodes(text: str, key: str = "notes.org") -> list[Node]:
    document = parse_document(text, key)
    build_nodes(document)
    return document.nodes


def ids_by_title(text: str, key: str = "notes.org") -> dict[str, str]:
    return {node.title: node.id for node in parse_nodes(text, key)}


def with_id(title: str, id: str) -> str:  # noqa: A002
    return f"* {title}\n:PROPERTIES:\n:ID: {id}\n:END:\n"


def test_the_parent_is_the_nearest_heading_of_a_lower_level() -> None:
    file, one, deep, two, child = parse_nodes("* One\n**** Deep\n** Two\n*** Child\n")

    assert node_titles(file.children) == ["One"]
    assert node_titles(one.children) == ["Deep", "Two"]
    assert node_titles(two.children) == ["Child"]
    assert deep.children == ()
    assert node_titles(child.ancestors()) == ["Two", "One", "notes"]
    assert [node.depth for node in (file, one, deep, two, child)] == [0, 1, 2, 2, 3]


def test_tags_are_inherited_from_all_ancestors() -> None:
    nodes = parse_nodes("#+FILETAGS: :file:\n* One :a:\n** Two :b:\n*** Three\n* Four\n")

    assert [sorted(node.tags) for node in nodes] == [
        ["file"],
        ["a", "file"],
        ["a", "b", "file"],
        ["a", "b", "file"],
        ["file"],
    ]
    assert nodes[2].tags is nodes[3].tags


def test_headings_two_thousand_deep_are_nodes() -> None:
    nodes = parse_nodes("".join(f"{'*' * level} Level {level}\n" for level in range(1, 2001)))

    assert nodes[-1].depth == 2000


def test_the_content_of_a_node_excludes_its_children() -> None:
    nodes = parse_nodes("* One\n:PROPERTIES:\n:KEY: value\n:END:\n\n  its own\n\n** Two\nnot its own\n")

    assert nodes[1].content == "  its own"
    assert nodes[1].properties == {"KEY": "value"}


def test_the_version_of_a_node_depends_only_on_its_own_text() -> None:
    before, after = parse_nodes("* One\ntext\n** Two\ntext\n"), parse_nodes("* One\ntext\n** Two\nother\n")

    assert [old.version == new.version for old, new in zip(before, after, strict=True)] == [
        True,
        True,
        False,
    ]


TITLES = st.sampled_from(["Fees", "Notes", "Plan", "Log"])
trees = st.lists(st.tuples(st.integers(1, 5), TITLES), min_size=1, max_size=14)


def write_org(tree: list[tuple[int, str]], texts: dict[int, str] | None = None) -> str:
    texts = texts or {}
    return "".join(
        f"{'*' * level} {title}\n{texts.get(index, '')}\n" for index, (level, title) in enumerate(tree)
    )


def ids_in_order(text: str) -> list[str]:
    return [node.id for node in parse_nodes(text)]


@given(tree=trees)
def test_ids_are_unique(tree: list[tuple[int, str]]) -> None:
    ids = ids_in_order(write_org(tree))

    assert len(set(ids)) == len(ids) == len(tree) + 1


@given(tree=trees, texts=st.dictionaries(st.integers(0, 13), st.text("ab \n", max_size=9)))
def test_ids_do_not_change_with_texts(tree: list[tuple[int, str]], texts: dict[int, str]) -> None:
    assert ids_in_order(write_org(tree)) == ids_in_order(write_org(tree, texts))


@given(tree=trees, index=st.integers(0, 14), level=st.integers(1, 6))
def test_ids_do_not_change_if_other_headings_are_added_or_removed(
    tree: list[tuple[int, str]], index: int, level: int
) -> None:
    index = min(index, len(tree))
    assume(index == len(tree) or tree[index][0] <= level)  # the next heading must not become its child
    before = ids_in_order(write_org(tree))
    after = ids_in_order(write_org([*tree[:index], (level, "New"), *tree[index:]]))

    assert after[: index + 1] + after[index + 2 :] == before


@pytest.mark.parametrize(
    "line", ["* TODO Plan", "* DONE [#A] Plan :tag:", "* Plan [1/3]", "* [50%] Plan", "* Plan [/]"]
)
def test_an_id_does_not_change_with_state_tags_or_progress(line: str) -> None:
    plan = "* Plan\n** Step\n"

    assert ids_in_order(plan) == ids_in_order(plan.replace("* Plan", line, 1))


def test_ids_differ_between_files() -> None:
    assert not set(ids_by_title("* One\n", "a.org").values()) & set(ids_by_title("* One\n", "b.org").values())


def test_an_explicit_id_is_used_and_determines_those_below() -> None:
    first = ids_by_title(with_id("One", "abc-123") + "** Two\n", "a.org")
    other_file = ids_by_title("* Above\n*" + with_id("One", "abc-123") + "*** Two\n", "folder/b.org")

    assert first["One"] == "abc-123"
    assert (first["One"], first["Two"]) == (other_file["One"], other_file["Two"])


def test_writing_down_a_generated_id_changes_nothing() -> None:
    before = ids_by_title("* One\n** Two\n")

    assert ids_by_title(with_id("One", before["One"]) + "** Two\n") == before


def test_a_duplicate_id_belongs_to_the_first_node() -> None:
    document = parse_document(
        with_id("One", "same") + with_id("Two", "same") + "** Child\n" + with_id("Three", "same")
    )
    rejected = build_nodes(document)
    _, one, two, child, three = document.nodes

    assert one.id == "same"
    assert rejected == [
        RejectedId("same", two, is_generated=False),
        RejectedId("same", three, is_generated=False),
    ]
    assert [two.id, child.id] == ids_in_order("* One\n* Two\n** Child\n")[2:]
    assert len({node.id for node in document.nodes}) == 5


def test_an_id_owned_by_another_document_is_rejected() -> None:
    document = parse_document(with_id("One", "same"))
    rejected = build_nodes(document, {"same": "another.org"})

    assert rejected == [RejectedId("same", document.nodes[1], is_generated=False)]
    assert document.nodes[1].id == ids_by_title("* One\n")["One"]


def test_an_explicit_id_wins_over_a_generated_one() -> None:
    owned_id = ids_by_title("* One\n** Two\n")["One"]
    document = parse_document("* One\n** Two\n")
    rejected = build_nodes(document, {owned_id: "another.org"})

    assert rejected == [RejectedId(owned_id, document.nodes[1], is_generated=True)]
    assert owned_id not in {node.id for node in document.nodes}


@pytest.mark.slow
@given(
    tree=st.lists(st.tuples(st.integers(1, 4), TITLES, st.booleans(), st.sampled_from("xyz-")), max_size=12),
)
def test_private_nodes_do_not_affect_ids_versions_or_conflicts(
    tree: list[tuple[int, str, bool, str]],
) -> None:
    lines, public, hidden_level = [], [], None
    for level, title, is_private, node_id in tree:
        if hidden_level is None or level <= hidden_level:
            hidden_level = level if is_private else None
        line = f"{'*' * level} {title}{' :private:' if is_private else ''}\n"
        line += "" if node_id == "-" else f":PROPERTIES:\n:ID: {node_id}\n:END:\n"
        lines.append(line)
        if hidden_level is None:
            public.append(line)
    document, public_document = parse_document("".join(lines)), parse_document("".join(public))
    rejected = build_nodes(document), build_nodes(public_document)

    assert [(node.id, node.version) for node in document.nodes] == [
        (node.id, node.version) for node in public_document.nodes
    ]
    assert [rejected_id.id for rejected_id in rejected[0]] == [rejected_id.id for rejected_id in rejected[1]]


def test_claimed_ids_include_those_of_files() -> None:
    text = ":PROPERTIES:\n:ID: file\n:END:\n" + with_id("One", " one ") + "* Two\n"

    assert list(claimed_ids(parse_document(text).outline)) == ["file", "one"]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"MODIFIED": "2026-03-01"}, datetime(2026, 3, 1)),
        ({"UPDATED": "[2026-03-01 Sun 10:30]", "CREATED": "2026-05-01"}, datetime(2026, 3, 1, 10, 30)),
        ({"LASTMOD": "2026-03-01T10:30:59Z"}, datetime(2026, 3, 1, 10, 30, 59)),
        ({"CREATED": "<2025-01-02 Thu>"}, datetime(2025, 1, 2)),
        ({"MODIFIED": "yesterday", "CREATED": "2025-01-02"}, datetime(2025, 1, 2)),
        ({"MODIFIED": "2026-02-31"}, LONG_AGO),
        ({}, LONG_AGO),
    ],
)
def test_the_modification_time_is_a_property_or_the_files(
    properties: dict[str, str], expected: datetime
) -> None:
    nodes = build_test_nodes(NodeSpec(title="One", properties=properties), NodeSpec(title="Below", level=2))

    assert [node.modified for node in nodes] == [LONG_AGO, expected, expected]


def test_the_closing_time_counts_as_modification_time() -> None:
    created, closed = {"CREATED": "2026-01-01"}, datetime(2026, 2, 1, 9, 30)
    nodes = build_test_nodes(
        NodeSpec(title="Done", properties=created, planning_dates=(closed_at(closed),)),
        NodeSpec(title="Odd", properties=created, planning_dates=(closed_at(LONG_AGO),)),
    )

    assert [node.modified for node in nodes[1:]] == [closed, datetime(2026, 1, 1)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (NodeSpec(title="One"), "note"),
        (NodeSpec(title="One", todo="TODO"), "task"),
        (NodeSpec(title="One", todo="TODO", tags=("Project",)), "project"),
        (NodeSpec(title="One", todo="TODO", properties={"TYPE": " Person "}), "person"),
    ],
)
def test_the_type_is_declared_or_inferred(spec: NodeSpec, expected: str) -> None:
    assert build_test_nodes(spec)[1].type == expected
    assert build_test_nodes(spec)[0].type == "document"


def test_the_repr_of_nodes_and_documents_has_no_text() -> None:
    document = parse_document("* One\nthe text of it\n")
    build_nodes(document)

    assert "text" not in repr(document) + repr(document.nodes)
    assert "'One'" in repr(document.nodes[1])
