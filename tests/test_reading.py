from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.reading import parse_json, parse_npy, parse_npz, plain, read_bytes, read_json


def packed(array, **options):
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def test_no_more_of_a_file_is_read_than_is_said(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(ValueError, match=r"^it has more than 4 bytes$"):
        read_bytes(path, 4)
    assert read_json(path) == 12345


@pytest.mark.parametrize("start", ["[", '{"a":'])
def test_documents_nested_too_deeply_are_refused(start):
    with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
        parse_json(start * 100_000)


ARRAYS = [np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(5), np.zeros((0, 3)),
          np.array(["a", "bc"]), np.zeros(2, [("x", "<f4")])]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_arrays_are_as_numpy_reads_them(array):
    found = parse_npy(packed(array))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


def test_arrays_that_are_none_are_refused():
    whole = packed(np.arange(6))
    for content in (whole[:-1], whole + b"\0", whole.replace(b"(6,)", b"(7,)"), whole.replace(b"(6,)", b"-6, ")):
        with pytest.raises(ValueError, match=r"are no array of|does not begin as an array"):
            parse_npy(content)
    with pytest.raises(ValueError, match="it does not begin as an array of numpy does"):
        parse_npy(b"")
    with pytest.raises(ValueError, match="it holds objects of Python, which could run code"):
        parse_npy(packed(np.array([{}], dtype=object), allow_pickle=True))


def test_files_of_arrays():
    out = io.BytesIO()
    np.savez_compressed(out, a=np.arange(3), b=np.zeros(1000))
    found = parse_npz(out.getvalue(), 10_000)
    assert {name: len(array) for name, array in found.items()} == {"a": 3, "b": 1000}
    with pytest.raises(ValueError, match=r"^it unpacks to more than 8,000 bytes$"):
        parse_npz(out.getvalue(), 8_000)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packing_that_cannot_be_bounded_is_refused(method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a.npy", packed(np.zeros(1000)))
    with pytest.raises(ValueError, match=r"'a\.npy' is packed in a way that numpy does not have"):
        parse_npz(out.getvalue(), 10_000)


@given(st.text() | st.text().map(lambda text: 300 * text))
def test_plain_words_are_one_short_line(text):
    line = plain(text)
    assert line.isprintable()
    assert len(line) <= 400
    if text.isprintable() and text.split() == text.split(" ") and len(text) <= 400:
        assert line == text
