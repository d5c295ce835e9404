"""Adapts the pages for the site that `mkdocs build` makes: they are written to be read in the repository.

README, CHANGELOG and CONTRIBUTING become pages of the site; links to files that are not pages, such as source files,
become plain text once they were found; headings get the anchors that GitHub gives them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

ROOT: Final = Path(__file__).parent.parent
#: Files of the repository's root that are pages of the site.
ROOT_PAGES: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
STYLES: Final = "site.css"
_STYLE: Final = """
.rst-content table.docutils td, .rst-content table.docutils th { white-space: normal; }
.wy-nav-content { max-width: 1000px; }
"""
_CODE: Final = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
#: What the tests of the docs read: which block is a file, and which is run.
_MARK: Final = re.compile(r"^<!-- .*? -->\n(?=```)", re.MULTILINE)


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading, as on GitHub."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets the anchors."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages of the repository's root, and the colors of code."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    styles = HtmlFormatter(style="friendly").get_style_defs(".codehilite") + _STYLE
    files.append(File.generated(config, STYLES, content=styles))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Points the links of the page at pages of the site."""
    source = next((name for name, target in ROOT_PAGES.items() if target == page.file.src_uri), None)
    here = posixpath.dirname(source if source is not None else f"docs/{page.file.src_uri}")
    kept: list[str] = []

    def adapt(found: re.Match[str]) -> str:
        return _adapted(found, here, page, files)

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    def give_back(found: re.Match[str]) -> str:
        return kept[int(found[1])]

    text = _CODE.sub(keep, _MARK.sub("", markdown).replace("- [ ] ", "- ☐ "))
    # A link's text may be code, and is restored with the rest.
    return re.sub(r"\0(\d+)\0", give_back, _LINK.sub(adapt, text))


def _adapted(found: re.Match[str], here: str, page: Page, files: Files) -> str:
    """The link as the site needs it: to a page or a picture of the site, or without its target."""
    is_picture, text, target = found.groups()
    name, hash_sign, anchor = target.partition("#")
    if "://" in target or not name:
        return found[0]
    path = posixpath.normpath(posixpath.join(here, name))
    inside = ROOT_PAGES.get(path, path.removeprefix("docs/"))
    if (path in ROOT_PAGES or path.startswith("docs/")) and files.get_file_from_path(inside) is not None:
        below = posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".")
        return f"{is_picture}[{text}]({below}{hash_sign}{anchor})"
    if not (ROOT / path).exists():
        raise PluginError(f"{page.file.src_uri}: {target} leads nowhere")
    return str(text)
