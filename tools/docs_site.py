"""mkdocs hooks: add project files that pages link to.

Pages link to files of the repository. Such a file is copied into the site; a link to a folder becomes its name.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)((?:#[^)]*)?)\)")
# Comments in pages for tests and tools.
_COMMENT = re.compile(r"^<!-- .*?-->\n", re.MULTILINE | re.DOTALL)
_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
_FILES = "project"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Remove pages that do not exist yet from the navigation; a page outside it is a warning."""
    config.nav = _existing_entries(config.nav or [], Path(config.docs_dir))
    return config


def _existing_entries(entries: list[dict[str, Any]], docs: Path) -> list[dict[str, Any]]:
    found = []
    for entry in entries:
        for title, below in entry.items():
            if isinstance(below, list):
                below = _existing_entries(below, docs)
            elif below not in _PAGES.values() and not (docs / below).exists():
                below = None
            if below:
                found.append({title: below})
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the project that pages link to."""
    for name, page in _PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    targets = {
        target
        for file in files.documentation_pages()
        for _, link, _ in _LINK.findall(file.content_string)
        if (target := _linked_file(file.src_uri, link)) is not None
    }
    for target in sorted(targets - _PAGES.keys()):
        if (ROOT / target).is_file() and not target.startswith("docs/"):
            files.append(
                File.generated(config, f"{_FILES}/{_visible_name(target)}", abs_src_path=str(ROOT / target))
            )
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite links to point into the site."""
    page_path = page.file.src_uri

    def rewrite_link(found: re.Match[str]) -> str:
        text, link, anchor = found.groups()
        target = _linked_file(page_path, link)
        if target is None:
            return found[0]
        if (ROOT / target).is_dir():
            return f"`{text}`" if "`" not in text else text
        site = _site_path(target)
        return f"[{text}]({posixpath.relpath(site, posixpath.dirname(page_path) or '.')}{anchor})"

    return _LINK.sub(rewrite_link, _COMMENT.sub("", markdown))


def _linked_file(page: str, link: str) -> str | None:
    """Return the path of a linked file that is not a page of the site by itself."""
    base = "docs" if page not in _PAGES.values() else "."
    path = posixpath.normpath(posixpath.join(base, posixpath.dirname(page), link))
    if base == "docs" and path.startswith("docs/"):
        return None
    return path


def _site_path(target: str) -> str:
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return _PAGES.get(target, f"{_FILES}/{_visible_name(target)}")


def _visible_name(target: str) -> str:
    """Return a name that file servers show: they hide names with a leading dot."""
    return "/".join(part.removeprefix(".") for part in target.split("/"))
