"""Private APIs of torch and Lightning that the package uses: all of them, and no others, are listed in the docs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {path: ast.parse(path.read_text()) for path in (ROOT / "src" / "scale_disco").rglob("*.py")}
# Names with an underscore that Python documents, or whose use is the standard library's affair.
STANDARD = {*dir(os), *dir(namedtuple("Pair", "a b"))}
TORCH = {
    name
    for thing in (
        nn.Module(),
        nn.Conv2d(1, 1, 1),
        nn.BatchNorm2d(1),
        nn.Dropout2d(),
        torch.Tensor,
        torch.optim.Optimizer,
    )
    for name in dir(thing)
}


def private(name: object) -> bool:
    return isinstance(name, str) and bool(re.match(r"_[A-Za-z]", name))


def defined(tree: ast.AST) -> set[str]:
    """Names that a module defines: functions, classes, variables and attributes that it sets."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names


def used(tree: ast.AST, own: set[str]) -> set[str]:
    """Private names that a module imports, reads, overrides or looks up in what is not the package's own."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {part for alias in aliases for part in alias.name.split(".")}
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                names |= {*module.split("."), *(alias.name for alias in aliases)}
            case ast.Attribute(attr=name) if name not in own:
                names.add(name)
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=name), *_]):
                names |= {name} - own
            case ast.ClassDef(body=body):
                names |= {part.name for part in body if isinstance(part, ast.FunctionDef) and part.name in TORCH}
            case ast.Constant(value=str(name)) if name in TORCH:
                names.add(name)
    return {name for name in names if private(name)} - STANDARD


def listed() -> set[str]:
    section = (ROOT / "docs" / "architecture.md").read_text().split("## Private torch APIs in use")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {part for name in re.findall(r"`([\w.]+)`", " ".join(cells)) for part in name.split(".") if private(part)}


def test_private_apis_are_listed():
    own = set.union(*map(defined, SOURCES.values())) - TORCH
    names = set.union(*(used(tree, own) for tree in SOURCES.values()))
    assert names - listed() == set(), "private APIs that docs/architecture.md does not list"
    assert listed() - names == set(), "private APIs that docs/architecture.md lists and nothing uses"


def test_private_apis_are_found():
    code = """
import torch._dynamo
from torch.utils._pytree import tree_map
class Layer(nn.Module):
    def _apply(self, fn): self._own = self._backward_hooks
print(hasattr(net, "_orig_mod"), net._secret, self._own, args._replace(), os._exit)
"""
    tree = ast.parse(code)
    expected = {"_dynamo", "_pytree", "_apply", "_backward_hooks", "_orig_mod", "_secret"}
    assert used(tree, defined(tree) - TORCH) == expected


def test_optional_private_apis_may_be_missing():
    """A converted network runs and a layer is exported without them, in a process that never had them."""
    code = """
import torch, torch.export, torch.fx.experimental, torch.utils._python_dispatch, sys
import torch.fx.experimental._config as config
mode = torch.utils._python_dispatch._get_current_dispatch_mode
del torch.utils._python_dispatch._get_current_dispatch_mode, torch.fx.experimental._config
sys.modules["torch.fx.experimental._config"] = None
from scale_disco import DiscreteBasis, to_scale_equivariant
from scale_disco import export
from scale_disco.convert import layers
from scale_disco.nn import ScaleLift2d
torch.fx.experimental._config = sys.modules["torch.fx.experimental._config"] = config  # torch needs them
torch.utils._python_dispatch._get_current_dispatch_mode = mode
assert export._config is None
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval()
images = torch.randn(2, 3, 16, 16)
with torch.no_grad():
    assert to_scale_equivariant(net, (1, 2))(images).shape == (2, 4)
assert not layers._KERNELS
program = export.export_program(ScaleLift2d(3, 2, DiscreteBasis(3, [1, 2])), images)
assert program.module()(images).shape == (2, 2, 2, 16, 16)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
