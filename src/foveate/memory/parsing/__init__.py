"""Parsers for Org and Markdown notes, chosen by the suffix of a file."""

from pathlib import PurePath

from foveate.memory.parsing.outline import Outline

ORG_SUFFIXES = frozenset({".org", ".org_archive"})


def is_org(path: str) -> bool:
    return path.lower().endswith(tuple(ORG_SUFFIXES))


def parse_notes(text: str, *, path: str) -> Outline:
    """Parse a file as Org or Markdown; the default title is its name."""
    # The parsers are imported lazily because their libraries load slowly.
    file_path = PurePath(path)
    if file_path.suffix.lower() in ORG_SUFFIXES:
        from foveate.memory.parsing.org import parse_org

        return parse_org(text, name=file_path.stem)
    from foveate.memory.parsing.markdown import parse_markdown

    return parse_markdown(text, name=file_path.stem)
