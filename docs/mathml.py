"""A Sphinx extension: formulas as MathML, which browsers draw without scripts, fonts or a network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import ExtensionError


def setup(app: Any) -> dict[str, Any]:
    """Add the renderer; `html_math_renderer = "mathml"` chooses it."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{_mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def _mathml(formula: str, display: str) -> str:
    try:
        drawn: str = convert(formula, display=display)
    except Exception as error:  # it has many of its own
        raise ExtensionError(f"cannot read the formula {formula!r}: {type(error).__name__} {error}") from error
    unknown = re.search(r"<m[a-z]+>(\\[^<]*|&)</m", drawn)  # what it does not know is left as it was written
    if unknown:
        raise ExtensionError(f"cannot read {unknown[0]} in the formula {formula!r}")
    return drawn.replace("<mo>&#x02016;", '<mo stretchy="false">&#x02016;')  # bars of norms of one height
