"""Help pages in aligned columns."""

import textwrap
from typing import Any

from cyclopts.help import HelpEntry, HelpPanel, PlainFormatter
from rich.console import Console

_INDENT = "  "
HIDDEN = "Options of every command"  # a panel that only `disco --help` shows


class AlignedFormatter(PlainFormatter):
    """Two columns, names and descriptions, with choices and defaults at the end of a description."""

    def __call__(self, console: Console, options: Any, panel: HelpPanel) -> None:
        """Print a panel."""
        rows = [(" ".join(entry.display_labels_with_metavar), _text(entry)) for entry in panel.entries]
        if not rows or panel.title == HIDDEN:
            return
        column = max(len(name) for name, _ in rows) + 2 * len(_INDENT)
        lines = ["", f"{panel.title}:"]
        wrapper = textwrap.TextWrapper(console.width, subsequent_indent=" " * column, break_on_hyphens=False)
        for name, text in rows:
            wrapper.initial_indent = f"{_INDENT}{name}".ljust(column)
            lines += wrapper.wrap(text) or [wrapper.initial_indent.rstrip()]
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    def render_description(self, console: Console, options: Any, description: Any) -> None:
        """Print the summary; panels begin with an empty line."""
        console.print(_plain(description), markup=False, highlight=False, soft_wrap=True)


def _text(entry: HelpEntry) -> str:
    text = _plain(entry.description)
    if entry.choices and not all(choice in text for choice in entry.choices):
        text = f"{text}: {', '.join(entry.choices)}"
    return text if entry.default is None else f"{text} (default: {entry.default})"


def _plain(description: Any) -> str:
    return str(getattr(description, "plain", None) or getattr(description, "primary_renderable", "")).strip()
