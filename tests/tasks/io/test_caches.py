from __future__ import annotations

import re

import pytest
import torch

from scale_disco.tasks.io.caches import cached_tensors

SHAPES = {"x": (2, None)}


class Counter:
    """Counts how often its tensors are computed."""

    calls = 0

    def __call__(self):
        self.calls += 1
        return {"x": torch.arange(6.0).reshape(2, 3)}


def test_tensors_are_computed_once_per_key(tmp_path):
    compute = Counter()
    first = cached_tensors(tmp_path / "new" / "cache", "kind", ("a", 1), SHAPES, compute)
    again = cached_tensors(tmp_path / "new" / "cache", "kind", ("a", 1), SHAPES, compute)
    assert compute.calls == 1
    assert torch.equal(first["x"], again["x"])
    cached_tensors(tmp_path / "new" / "cache", "kind", ("a", 2), SHAPES, compute)
    assert compute.calls == 2
    assert all(path.name.startswith("kind-") for path in (tmp_path / "new" / "cache").iterdir())


def test_without_a_folder_nothing_is_stored():
    compute = Counter()
    for _ in range(2):
        cached_tensors(None, "kind", "key", SHAPES, compute)
    assert compute.calls == 2


@pytest.mark.parametrize("shapes", [{"x": (2, 4)}, {"x": (None,)}, {"y": (2, None)}])
def test_tensors_of_another_shape_are_refused(shapes, tmp_path):
    cached_tensors(tmp_path, "kind", "key", SHAPES, Counter())
    with pytest.raises(ValueError, match="damaged; delete it to compute it again"):
        cached_tensors(tmp_path, "kind", "key", shapes, Counter())


def test_a_damaged_file_is_named_and_not_overwritten(tmp_path):
    cached_tensors(tmp_path, "kind", "key", SHAPES, Counter())
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: damaged; "):
        cached_tensors(tmp_path, "kind", "key", SHAPES, Counter())
    assert len(path.read_bytes()) == 20
