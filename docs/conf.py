"""Sphinx configuration of the documentation: `make docs`.

The source folder is the project's root, so that links between docs/, results/ and examples/ are the same here and on a
code-hosting page. Nothing is downloaded: formulas become MathML, which browsers render natively.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from docutils import nodes
from sphinx.util.nodes import make_refnode

import scale_disco

project = "scale-disco"
author = "the authors of scale-disco"
version = release = scale_disco.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
root_doc = "docs/index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
include_patterns = ["docs/**/*.md", "docs/**/*.rst", "docs/*.md", "results/*.md", "examples/README.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "dist", "data", "runs", "src", "tests", "quickstart"]

html_theme = "furo"
html_title = f"scale-disco {release}"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["wide.css"]
templates_path: list[str] = []

myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # ```math is what code-hosting pages render

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False

# Docstrings put code in single quotes: linked if it is a public name, formatted as code in any case.
default_role = "py:obj"
# Every other reference must resolve, except for those to other packages.
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r".*"),
    (
        "py:.*",
        r"(torch|numpy|np|matplotlib|PIL|lightning|huggingface_hub|collections|contextlib|dataclasses|fractions|pathlib|os|typing|argparse)(\..*)?",
    ),
    # Types of fields, which are unqualified names there, and aliases.
    ("py:class", r"Tensor|Figure|Image|Path|Fraction|LabeledDataset|Dataset|Box|nn\.Module"),
    (
        "py:class",
        r"scale_disco\.basis\.prior\.\w+|scale_disco\.tasks\.bench\.timing\.Name|Module|.*\._\w+|(scale_disco\.tasks\.scene\.evaluation\.)?Ratio",
    ),
]


def setup(app: Any) -> None:
    """Register what Sphinx does not do itself."""
    app.connect("missing-reference", _by_last_name)
    app.connect("doctree-read", _without_last_blank_line)
    app.connect("build-finished", _front_door)


def _by_last_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Link a name in quotes, such as `Scales`, if it is unique among public names."""
    name = node["reftarget"]
    if (node["refdomain"], node["reftype"]) != ("py", "obj") or not name.replace(".", "_").isidentifier():
        return None
    if name.isalpha() and name.islower() and name not in scale_disco.__all__:  # an ordinary word, such as `train`
        return None
    domain = env.domains.python_domain
    matches = domain.find_obj(env, None, None, name, None, searchmode=1)
    own = [(name, entry) for name, entry in matches if not entry.aliased]
    if len(own) != 1:
        return None
    [(name, entry)] = own
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, name)


def _without_last_blank_line(app: Any, tree: nodes.document) -> None:
    """Strip the blank line that doctests need before the closing fence."""
    for block in tree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        block.rawsource = text
        block.children = [nodes.Text(text)]


def _front_door(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        target = f"{root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{project}</a>\n'
        Path(app.outdir, "index.html").write_text(page, encoding="utf-8")
