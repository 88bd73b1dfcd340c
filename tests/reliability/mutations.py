"""Mutations of valid files: bytes, integers, numbers in text, words and JSON values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Seed:
    """Valid files, the one to mutate, and the bytes to mutate, from which `pack` makes the content of that file."""

    files: dict[str, bytes]
    name: str
    inner: bytes
    pack: Callable[[bytes], bytes] = bytes


def seeds_of(files: Mapping[str, bytes], *names: str) -> list[Seed]:
    """One seed for each named file, all files by default."""
    return [Seed(dict(files), name, files[name]) for name in names or files]


_WORDS = [
    b"", b"null", b"true", b"[]", b"{}", b'""', b'"x"', b"0", b"-1", b"NaN", b"nan", b"Infinity", b"-inf", b"1e308",
    b"1e999", b"-0.0", b"1e-320", b"9" * 18, b"9" * 400, b"1" + b"0" * 5000, b"1_0", b"0x10", "٣".encode(),
    b"4294967296", b"18446744073709551616", b'"\\ud800"', b'"\\u0000"', b'"\\u001b[2J"', b"\0", b"\x1b[2J",
    b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n\n", b"\xe2\x80\xa8", b"\xc2\x85", b"\x0c", b",", b";", b":",
    b"\t", b" ", b"../../x", b"/x", b"--help", b"[" * 200_000, b'{"a":' * 50_000, b"{a: " * 3000, b"- " * 3000,
    b"&a [*a, *a]", b"*a", b"<<: *a\n", b"!!binary x", b"!!python/object/apply:os.mkdir [ran]", b"!!int ''",
    b"2001-99-99", b"%YAML 9.9\n---\n", b"? ", b"| ", b"'", b'"',
]  # fmt: skip
_INTEGERS = [0, 1, 2, 3, 127, 128, 255, 256, 32767, 32768, 60_000, 65_535, 10**9, 2**31 - 1, 2**31, 2**32 - 1, 2**40]
_INTEGERS += [2**62, 2**63 - 1, 2**63, 2**64 - 1]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")

# A mutation takes the content, a position, a value and the content of another seed.


def _flip_bit(content: bytes, position: int, value: int, other: bytes) -> bytes:
    at = position % max(1, len(content))
    return content[:at] + bytes([content[at] ^ 1 << value % 8]) + content[at + 1 :] if content else b"\0"


def _set_byte(content: bytes, position: int, value: int, other: bytes) -> bytes:
    at = position % max(1, len(content))
    return content[:at] + bytes([value % 256]) + content[at + 1 :]


def _set_integer(content: bytes, position: int, value: int, other: bytes) -> bytes:
    """Write an integer of 1, 2, 4 or 8 bytes, in either byte order."""
    size, rest = 1 << value % 4, value // 4
    number = _INTEGERS[rest // 2 % len(_INTEGERS)] % (1 << 8 * size)
    at = position % max(1, len(content))
    return content[:at] + number.to_bytes(size, "big" if rest % 2 else "little") + content[at + size :]


def _replace_number(content: bytes, position: int, value: int, other: bytes) -> bytes:
    """Replace a decimal number by another one or by a word."""
    matches = list(_NUMBER.finditer(content[: 1 << 16]))
    if not matches:
        return _insert_word(content, position, value, other)
    start, end = matches[position % len(matches)].span()
    choices = [*_WORDS, *(str(number).encode() for number in _INTEGERS)]
    return content[:start] + choices[value % len(choices)] + content[end:]


def _insert_word(content: bytes, position: int, value: int, other: bytes) -> bytes:
    at = position % (len(content) + 1)
    return content[:at] + _WORDS[value % len(_WORDS)] + content[at:]


def _truncate(content: bytes, position: int, value: int, other: bytes) -> bytes:
    return content[: position % (len(content) + 1)]


def _delete(content: bytes, position: int, value: int, other: bytes) -> bytes:
    at = position % (len(content) + 1)
    return content[:at] + content[at + 1 + value % 64 :]


def _repeat(content: bytes, position: int, value: int, other: bytes) -> bytes:
    at = position % (len(content) + 1)
    return content[:at] + content[at : at + 1 + value % 64] * (2 + value // 64 % 100) + content[at:]


def _splice(content: bytes, position: int, value: int, other: bytes) -> bytes:
    return content[: position % (len(content) + 1)] + other[value % (len(other) + 1) :]


_MUTATIONS = [
    _flip_bit, _set_byte, _set_integer, _set_integer, _replace_number, _replace_number, _insert_word, _truncate,
    _delete, _repeat, _splice,
]  # fmt: skip
_EDITS = st.lists(
    st.tuples(st.sampled_from(_MUTATIONS), st.integers(0, 2**20), st.integers(0, 2**16)), min_size=1, max_size=4
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*_INTEGERS, -1, 0.5])
)
_JSON = st.recursive(
    _SCALARS,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=6), values, max_size=4),
    max_leaves=8,
)
_REMOVE = "out"  # the value that stands for leaving a key out


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """All entries of a document: a list or dictionary, and an index or key of it."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _entries(value[key])


def _replace_value(content: bytes, position: int, value: Any) -> bytes:
    """Replace or remove a value of a JSON document."""
    document = json.loads(content)
    entries = list(_entries(document))
    container, key = entries[position % len(entries)]
    if value == _REMOVE:
        del container[key]
    else:
        container[key] = value
    return json.dumps(document).encode()


def _is_document(content: bytes) -> bool:
    try:
        return any(_entries(json.loads(content)))
    except ValueError:
        return False


def mutated(seeds: list[Seed]) -> st.SearchStrategy[tuple[int, bytes]]:
    """Draw the index of a seed, and the new content of its file."""

    def edit(drawn: tuple[int, list[Any]]) -> tuple[int, bytes]:
        index, edits = drawn
        content = seeds[index].inner
        for mutation, position, value in edits:
            content = mutation(content, position, value, seeds[(index + 1 + value) % len(seeds)].inner)
        return index, seeds[index].pack(content)

    def rewrite(drawn: tuple[int, int, Any]) -> tuple[int, bytes]:
        index, position, value = drawn
        return index, seeds[index].pack(_replace_value(seeds[index].inner, position, value))

    indices = st.integers(0, len(seeds) - 1)
    noise = st.tuples(indices, st.binary(max_size=64)).map(lambda drawn: (drawn[0], seeds[drawn[0]].pack(drawn[1])))
    strategies = [*[st.tuples(indices, _EDITS).map(edit)] * 3, noise]
    if documents := [index for index, seed in enumerate(seeds) if _is_document(seed.inner)]:
        values = st.sampled_from([_REMOVE, math.inf, math.nan, 10**30]) | _JSON
        strategies += [st.tuples(st.sampled_from(documents), st.integers(0, 2**16), values).map(rewrite)] * 3
    return st.one_of(strategies)
