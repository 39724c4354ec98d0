import json

from foveate import formats
from foveate.compaction.preview import CompactionPreview, preview_compaction
from foveate.tokens import counter_for

MODEL = "gpt-4o"
TURNS = [
    ("user", "Please set up the staging server. RULE: never open port 22. The port is 8081."),
    ("assistant", "Done."),
    ("user", "The port is 8090 now."),
    ("assistant", "Changed."),
    ("user", "And what is next?"),
]


def preview(keep_tokens: int) -> CompactionPreview:
    body = {"model": MODEL, "messages": [{"role": role, "content": text} for role, text in TURNS]}
    return preview_compaction(
        formats.parse_request(json.dumps(body).encode()),
        counter_for(MODEL),
        tail_keep_tokens=keep_tokens,
        threshold_tokens=1_000,
    )


def test_a_preview_names_the_messages_and_where_each_line_comes_from() -> None:
    found = preview(keep_tokens=1)

    assert list(found.replaced) == [1, 2, 3, 4]
    assert found.replaced_tokens < found.request_tokens
    assert [(line.section, line.text, line.message) for line in found.carried] == [
        ("Constraints", "RULE: never open port 22.", 1),
        ("Facts", "The port is 8090 now.", 3),
    ]


def test_a_preview_lists_what_is_no_longer_true() -> None:
    (outdated,) = preview(keep_tokens=1).outdated

    assert (outdated.text, outdated.message) == ("The port is 8081.", 1)
    assert (outdated.replaced_by, outdated.replaced_in) == ("The port is 8090 now.", 3)


def test_nothing_is_replaced_if_all_messages_stay() -> None:
    found = preview(keep_tokens=500)

    assert (found.replaced, found.carried, found.outdated, found.summary) == ([], [], [], "")
