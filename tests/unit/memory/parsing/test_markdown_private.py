import pytest

from foveate.memory.parsing.markdown import parse_markdown
from foveate.memory.parsing.outline import Outline
from foveate.memory.privacy import Gate

GATE = Gate()


def parse_outline(text: str) -> Outline:
    parsed = parse_markdown(text, name="name")
    assert parsed.to_text() == text
    return parsed


def is_private(text: str) -> bool:
    """Return whether nothing of a text that contains `secret` is visible."""
    return "secret" not in GATE.redact(parse_outline(text)).text


@pytest.mark.parametrize(
    "text",
    [
        "# A :private:\nsecret",
        "# A #Private\n## B\nsecret",
        "A :@personal:\n---\nsecret",
        "# A:private:\nsecret",
        "# A :private\nsecret",
        "# A :pri\u00advate:\nsecret",
        "# A :x:private\u200b:\nsecret",
        "# A #\u200bprivate\nsecret",
        "# A\n#pri\u00advate\nsecret",
        "---\ntags: [pri\u200bvate]\n---\nsecret",
        "# A #private first\nsecret",
        "# A #private/bank\nsecret",
        "# A {.private}\nsecret",
        "# A\n#private\nsecret",
        "# A\n\n#work #Private\n\nsecret",
        "# A\nTags: work, private\n\nsecret",
        "Title: A\n**Tags:** private\n\nsecret\n# B\nsecret",
        "#private\nsecret\n# A\nsecret",
        "# A secret\n#private\n---\nsecret",
        "secret\n# A\nsecret\n## B\nsecret\n\n#work #private\n",
        "```\n# A :private:\n```\nsecret",
        "```\nA :private:\n===\nsecret",
        "~~~\n# A #private\nsecret",
        "> # A :private:\n> secret",
        "- # A :private:\n  secret",
        "<div>\n# A :private:\nsecret",
        "    # A :private:\n\nsecret",
        "#A :private:\nsecret",
        "* A :private:\nsecret",
        "** A :private:\nsecret\n",
        "secret\n#+FILETAGS: :private:\n",
        "\ufeff# A :private:\nsecret",
        "secret\n<h1>A :private:</h1>\nsecret",
        "secret\n<H2 class=x>\nA #private\n</H2>\nsecret",
        "- [ ] secret #private\n",
        "# A\n- [x] secret #private 2026-01-02\n",
        "# A\n* secret :private:\n  - secret\n- secret\n",
        "# A\n> 1) secret #work #private.\n",
        "# A\n- secret (#private)\n",
        "# A\n- secret **#private**\n",
        "x\r# A :private:\rsecret",
        *(f"x\n{before}# A :private:\nsecret" for before in ("- [ ] ", "- > ", "\x0c", "\x0b", "\ufeff")),
        "# x\n##\u00a0A :private:\nsecret",
        "# A ：private：\nsecret",
        "# A : private :\nsecret",
        "# A ＃private\nsecret",
        "# Doctor @personal\nsecret",
        "- secret @personal @phone\n",
        "# A\n:private:\nsecret",
        "# A\n@personal\nsecret",
        "secret\n# A\nsecret\n## B\nx\n\n@personal\n",
        "secret\n\nx\n\nTags: #private #health\n",
        "# A\nsecret\n# B\nx\n\n**Tags:**\n\n- work\n- private\n",
        "secret\n\n- x\n  tags:: private\n",
        "secret\n\nx [tags:: a, private] y\n",
        "filetags:: :private:\n\nsecret",
        "#private my diary\nsecret\n# A\nsecret",
        "%% #private %%\n# A\nsecret\n# B\nsecret",
        "<!-- tags: private -->\n# A\nsecret\n# B\nsecret",
        "# A\nsecret\n\n```\nTags: private\n",
        "private:: true\n\nsecret\n# A\nsecret",
        "# A\nvisibility:: private\n\nsecret",
        "secret\n\nx [private:: true]\n",
        "# A\nTags: family health, private\n\nsecret",
        "# A\nTags: work private\n\nsecret",
        "# A\nTags: v1.2, private.\n\nsecret",
        "Title: A\nKeywords: work, private\n\nsecret",
        "# A :ｐｒｉｖａｔｅ:\nsecret",
        "# A\nsecret ＠personal",
        "# A #[[private]]\nsecret",
        "# A [#private](x)\nsecret",
        *(f"# A\n- {state} secret #private and more\n" for state in ("LATER", "NOW", "DOING", "WAITING", "x")),
        "# A\n- [ ] secret :private: and more\n",
        "# A\nsecret that is #private in a sentence",
        "# A\nsecret\nsecret (#private)\nsecret\n- secret\n```\n\nsecret\n```\n",
        "# A\n| secret | #private |\n",
        "# A\n- secret\n  secret #private\n\n  secret\n\n\t- secret\nsecret\n",
        "# A\n> - secret #private\n>   secret\n",
        "<details><summary>#private</summary>\nsecret\n</details>\n",
        "# A\nx\n\n<details>\n<summary>Bank :private:</summary>\n\nsecret\n\n- secret\n\n</details>\n",
        "# A\n\nx\n\n%%#private%% secret\n",
        "# A\n%%#private%%\nsecret",
        "# A\n\nx\n\nsecret %%#private%%\n",
        "# A\n\nx\n\n<b>#private</b> secret\n",
        "# A\n| secret | :private: |\n",
    ],
)
def test_text_that_may_be_meant_as_private_is_hidden(text: str) -> None:
    assert is_private(text)


@pytest.mark.parametrize(
    "text",
    [
        "# A private talk\nsecret",
        "# A\n\nsecret [[private]] and **private** and 50%private%\n",
        "# A\n\n| secret | a :private: b |\n",
        "<details><summary>A private talk</summary>\nsecret\n</details>\n",
        "# [A](https://x.example/private)\nsecret",
        "# A #privateer :private-key:\nsecret",
        "# A\n- x that is #private in a sentence\n- private: secret\n- [Private](#private)\n",
        "# A\nx #private\n\nsecret",
        "# A\nKeywords: public, private, protected\n\nsecret",
        "# A\nTags: every subnet has one of them (public or private).\n\nsecret",
        "# A\nTags: use public ones, private, or both.\n\nsecret",
        "# A\n```yaml\ntags: [private]\n```\nsecret",
        "# A\nsecret\n\n```\n#private\n- x #private\n<h1>#private</h1>\n```\n",
        "# The flag `:private` or `` #private ``\nsecret",
        "# https://x.example/page#private\nsecret",
        "# See page.html#private, [[#private]], [[Page#private|it]] and [it](#private)\nsecret",
        "# A\nSee https://x.example/#private, `#private`, [[#private]] and the secret",
        "private:: false\n\nsecret",
        "# A\nstd::private is a secret",
        "# A\n- x #private\n\n###### B\nsecret",
        "<h1>A private talk</h1>\nsecret",
        "<hr>\nsecret :private:\n",
        "# A\n```python\ndef private(): # secret\n```\n",
        "# A :private:\nx\n# B\nsecret",
        "# A\nx\n\n```yaml\ntags: private\n:private:\n```\nsecret",
        "# A\nx\n\nOf tags: private is one\n\nsecret to me@personal.example",
        "x\n# A\nTags: private\n\n# B\nsecret",
        "x\n# A\n:private:\n@personal\n# B\nsecret",
        "x\n## :private:\nx\n## B\nsecret",
    ],
)
def test_text_that_only_contains_the_word_is_not_hidden(text: str) -> None:
    assert not is_private(text)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "# A\nfirst\n- one\n- [ ] Set the repo #private on the forge\n  more\n- three\n## B\nlast\n",
            "# A\nfirst\n- one\n- three\n## B\nlast\n",
        ),
        ("x\n\n- a #private\n  - b\n\n    c\n\n- d\n", "x\n\n\n- d\n"),
        ("x\n\ny #private\nz\n\nlast\n", "x\n\n\nlast\n"),
        ("|a|b|\n|-|-|\n|c|#private|\n|d|e|\n", "|a|b|\n|-|-|\n|d|e|\n"),
        ("* a\n* b #private c\n* d\n", "* a\n* d\n"),
        ("a #private\n# B\nx\n\nc #private\n", "# B\nx\n\n"),
    ],
)
def test_a_tag_in_a_block_hides_only_the_block_and_what_is_below_it(
    text: str, expected: str, line_end: str
) -> None:
    """Regression: a task with a tag hid everything up to the next heading."""
    redacted = GATE.redact(parse_outline(text.replace("\n", line_end)))

    assert redacted.text == redacted.to_text() == expected.replace("\n", line_end)
    assert [redacted.text[entry.content : entry.content + 1] for entry in redacted.entries]
