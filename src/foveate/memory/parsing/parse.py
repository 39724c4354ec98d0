"""Parse notes by their suffix."""

from pathlib import PurePath

from foveate.memory.parsing.outline import Outline
from foveate.memory.privacy import Gate

ORG_SUFFIXES = frozenset({".org", ".org_archive"})


def is_org(path: str) -> bool:
    return path.lower().endswith(tuple(ORG_SUFFIXES))


def parse_notes(text: str, gate: Gate, *, path: str) -> Outline:
    """Parse a file as Org or Markdown; the default title is its name.

    Private entries are tagged here but not removed. `gate` defines the privacy tags; anything that may be meant
    as one is tagged.
    """
    # The parsers are imported lazily because their libraries load slowly.
    file_path = PurePath(path)
    if file_path.suffix.lower() in ORG_SUFFIXES:
        from foveate.memory.parsing.org import parse_org

        return parse_org(text, gate, name=file_path.stem)
    from foveate.memory.parsing.markdown import parse_markdown

    return parse_markdown(text, gate, name=file_path.stem)
