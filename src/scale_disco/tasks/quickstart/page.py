"""A self-contained HTML page of figures, tables and commands."""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ..io.figures import Figure

_WIDTH = 5.0  # maximum of figures, in inches


class PageFigure(NamedTuple):
    """A matplotlib figure and its alternative text."""

    figure: Figure
    alt: str


class Table(NamedTuple):
    """Rows under a header; `best` are highlighted cells by row and column."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()


class Section(NamedTuple):
    """Section of a page: its summary, figures and tables, and commands to continue with."""

    title: str
    summary: str
    parts: Sequence[PageFigure | Table] = ()
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()


def page(title: str, lead: str, sections: Sequence[Section], *, foot: Sequence[str] = ()) -> str:
    """Return the page as HTML; it loads nothing from the network and fits a phone."""
    links = "".join(f'<a href="#part{n}">{escape(section.title)}</a>' for n, section in enumerate(sections, 1))
    body = "\n".join(_section(n, section) for n, section in enumerate(sections, 1))
    lines = "".join(f"<p>{escape(line)}</p>" for line in foot)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # keeps browsers from requesting one
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{escape(title)}</h1><p>{escape(lead)}</p><nav>{links}</nav></header>\n"
        f"{body}\n<footer>{lines}</footer>\n</main>\n</body>\n</html>\n"
    )


def _section(number: int, section: Section) -> str:
    parts = "\n".join(_figure(part) if isinstance(part, PageFigure) else _table(part) for part in section.parts)
    notes = "".join(f"<p>{escape(note)}</p>" for note in section.notes)
    shell = f"<p>Next:</p><pre>{escape(chr(10).join(section.commands))}</pre>" if section.commands else ""
    head = f'<h2>{escape(section.title)}</h2>\n<p class="summary">{escape(section.summary)}</p>'
    return f'<section id="part{number}">{head}\n{parts}\n{notes}{shell}</section>'


def _figure(part: PageFigure) -> str:
    width, height = part.figure.get_size_inches()
    if width > _WIDTH:  # text stays readable on a phone
        part.figure.set_size_inches(_WIDTH, max(height * _WIDTH / width, 0.8 * height))
    svg = io.BytesIO()
    part.figure.savefig(svg, format="svg", metadata={"Date": None})
    content = base64.b64encode(svg.getvalue()).decode()
    return f'<figure><img src="data:image/svg+xml;base64,{content}" alt="{escape(part.alt)}"></figure>'


def _table(table: Table) -> str:
    head, body = "".join(f"<th>{escape(cell)}</th>" for cell in table.header), ""
    for n, row in enumerate(table.rows):
        classes = (" class=best" if (n, k) in table.best else "" for k in range(len(row)))
        body += f"<tr>{''.join(f'<td{best}>{escape(cell)}</td>' for best, cell in zip(classes, row, strict=True))}</tr>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_STYLE = """
:root { --ink: #1c2733; --quiet: #5a6876; --line: #dde3e9; --paper: #fff; --shade: #f4f6f8; --ours: #1f6f8b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --quiet: #a0abb6; --line: #37424d; --paper: #161c22; --shade: #202932; --ours: #7cc4dd }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif }
main { max-width: 46rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0 }
h2 { font-size: 1.2rem; margin: 0 0 .25rem }
section { border-top: 1px solid var(--line); padding: 1.25rem 0 }
nav { display: flex; flex-wrap: wrap; gap: .4rem 1rem; margin: 0 0 1rem }
a { color: var(--ours) }
.summary { margin: 0 0 1rem }
figure { margin: 0 0 1rem; background: #fff; border-radius: 6px; padding: .25rem }
img { display: block; width: 100%; height: auto }
.wide { overflow-x: auto; margin: 0 0 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--quiet); font-weight: 600; white-space: normal; vertical-align: bottom }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal }
.best { color: var(--ours); font-weight: 600 }
pre { background: var(--shade); border-radius: 6px; padding: .75rem; margin: .25rem 0 0;
  white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.5 ui-monospace, monospace }
section > p { margin: 0 0 .75rem }
section > p + pre { margin-top: -.5rem }
footer { border-top: 1px solid var(--line); color: var(--quiet); font-size: .85rem; padding: .5rem 0 2rem }
footer p { margin: .25rem 0 }
@media (max-width: 40rem) {
  table { font-size: .85rem }
  th, td { padding: .3rem .25rem; white-space: normal }
}
"""
