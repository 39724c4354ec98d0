"""Notes of any kind into outlines."""

from pathlib import PurePath

from foveate.memory.parsing.outline import Outline
from foveate.memory.privacy import Gate

ORG_SUFFIXES = frozenset({".org", ".org_archive"})


def parse_notes(text: str, gate: Gate, *, path: str) -> Outline:
    """What a file says, by its suffix as Org or else as Markdown; its title is its name where it has none.

    Nothing is hidden here. `gate` says what privacy tags are, and what may be meant as one is taken for one.
    """
    # The libraries take their time to load, so only where there is something for them to read.
    file_path = PurePath(path)
    if file_path.suffix.lower() in ORG_SUFFIXES:
        from foveate.memory.parsing.org import parse_org

        return parse_org(text, gate, name=file_path.stem)
    from foveate.memory.parsing.markdown import parse_markdown

    return parse_markdown(text, gate, name=file_path.stem)
