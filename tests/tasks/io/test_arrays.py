from __future__ import annotations

import io
import re
import zipfile

import numpy as np
import pytest
import torch

from scale_disco.tasks.io.arrays import cached_tensors, parse_npy, parse_npz


def packed(array, **options):
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


ARRAYS = [np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(5), np.zeros((0, 3)),
          np.array(["a", "bc"]), np.zeros(2, [("x", "<f4")])]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_arrays_equal_those_that_numpy_reads(array):
    parsed = parse_npy(packed(array))
    assert parsed.dtype == array.dtype
    np.testing.assert_array_equal(parsed, array)
    assert parsed.flags.writeable


def test_malformed_arrays_are_refused():
    whole = packed(np.arange(6))
    for content in (whole[:-1], whole + b"\0", whole.replace(b"(6,)", b"(7,)"), whole.replace(b"(6,)", b"-6, ")):
        with pytest.raises(ValueError, match=r"are no array of|does not begin with the header"):
            parse_npy(content)
    with pytest.raises(ValueError, match="it does not begin with the header of a numpy array"):
        parse_npy(b"")
    with pytest.raises(ValueError, match="it contains Python objects, which could run code"):
        parse_npy(packed(np.array([{}], dtype=object), allow_pickle=True))


def test_archives_of_arrays_are_bounded():
    out = io.BytesIO()
    np.savez_compressed(out, a=np.arange(3), b=np.zeros(1000))
    arrays = parse_npz(out.getvalue(), 10_000)
    assert {name: len(array) for name, array in arrays.items()} == {"a": 3, "b": 1000}
    with pytest.raises(ValueError, match=r"^it unpacks to more than 8,000 bytes$"):
        parse_npz(out.getvalue(), 8_000)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compression_is_refused(method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a.npy", packed(np.zeros(1000)))
    with pytest.raises(ValueError, match=r"'a\.npy' has a compression that numpy does not use"):
        parse_npz(out.getvalue(), 10_000)


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
