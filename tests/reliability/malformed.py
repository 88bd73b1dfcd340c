"""Give readers malformed files: `python -m tests.reliability.malformed READER=INPUTS ...`, in its own process.

Every input is a small valid file with a few changes, a document of the right grammar, or noise. A reader may accept it
or refuse it in one line that names the file. Anything else is a finding: another error, memory, a hang, a process or a
connection, code that is compiled or run, a file written elsewhere. A line of figures for each reader is printed.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

ROOM = 1 << 30  # bytes that most readers may take beyond what the process has
PATIENCE = 20  # seconds for an input; the machine may be busy
_LONG = 5_000_000  # bytes of files made by hand that are left to the long suite
_MEMORY = "/dev/shm"  # where a file costs no time, if there is such a place
_STAMP = 1_000_000_000  # of every file, since caches look at it

Files = Mapping[str, bytes | int | None]  # by name: what they hold, how long an empty one is, or None for a folder


@dataclass(frozen=True)
class Seed:
    """A valid set of files, the one that is changed, and what of it is: its bytes, or what `pack` makes them from."""

    files: dict[str, bytes]
    name: str
    inner: bytes
    pack: Callable[[bytes], bytes] = bytes


def seeds_of(files: Mapping[str, bytes], *names: str) -> list[Seed]:
    """One for each of some files, changed as they are."""
    return [Seed(dict(files), name, files[name]) for name in names or files]


@dataclass(frozen=True)
class Reader:
    """What reads a folder of files, valid ones, and hostile ones made by hand, which it must refuse.

    Args:
        read: Given the folder.
        seeds: Made when they are needed.
        cases: By what is wrong with them.
        errors: What it may raise, in one line.
        writes: Whether it changes the folder.
        forgiving: Whether it takes a damaged file for none.
        strict: Whether it refuses even the seeds, which cannot have the checksum of the real files.
        named: Whether its errors name a file; those of settings name an option.
        room: Bytes that it may take.
    """

    read: Callable[[Path], object]
    seeds: Callable[[], list[Seed]]
    cases: Callable[[], dict[str, Files]] = dict
    errors: tuple[type[Exception], ...] = (ValueError, OSError)
    writes: bool = False
    forgiving: bool = False
    strict: bool = False
    named: bool = True
    room: int = ROOM


class FindingError(AssertionError):
    """What no file may cause."""


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


def _flip(content: bytes, place: int, value: int, other: bytes) -> bytes:
    at = place % max(1, len(content))
    return content[:at] + bytes([content[at] ^ 1 << value % 8]) + content[at + 1 :] if content else b"\0"


def _set(content: bytes, place: int, value: int, other: bytes) -> bytes:
    at = place % max(1, len(content))
    return content[:at] + bytes([value % 256]) + content[at + 1 :]


def _integer(content: bytes, place: int, value: int, other: bytes) -> bytes:
    """An integer of 1, 2, 4 or 8 bytes, in either order."""
    side, rest = 1 << value % 4, value // 4
    number = _INTEGERS[rest // 2 % len(_INTEGERS)] % (1 << 8 * side)
    at = place % max(1, len(content))
    return content[:at] + number.to_bytes(side, "big" if rest % 2 else "little") + content[at + side :]


def _number(content: bytes, place: int, value: int, other: bytes) -> bytes:
    """A number in decimal digits becomes another, or a word."""
    found = list(_NUMBER.finditer(content[: 1 << 16]))
    if not found:
        return _word(content, place, value, other)
    start, end = found[place % len(found)].span()
    choices = [*_WORDS, *(str(number).encode() for number in _INTEGERS)]
    return content[:start] + choices[value % len(choices)] + content[end:]


def _word(content: bytes, place: int, value: int, other: bytes) -> bytes:
    at = place % (len(content) + 1)
    return content[:at] + _WORDS[value % len(_WORDS)] + content[at:]


def _cut(content: bytes, place: int, value: int, other: bytes) -> bytes:
    return content[: place % (len(content) + 1)]


def _delete(content: bytes, place: int, value: int, other: bytes) -> bytes:
    at = place % (len(content) + 1)
    return content[:at] + content[at + 1 + value % 64 :]


def _repeat(content: bytes, place: int, value: int, other: bytes) -> bytes:
    at = place % (len(content) + 1)
    return content[:at] + content[at : at + 1 + value % 64] * (2 + value // 64 % 100) + content[at:]


def _splice(content: bytes, place: int, value: int, other: bytes) -> bytes:
    return content[: place % (len(content) + 1)] + other[value % (len(other) + 1) :]


_CHANGES = [_flip, _set, _integer, _integer, _number, _number, _word, _cut, _delete, _repeat, _splice]
_EDITS = st.lists(
    st.tuples(st.sampled_from(_CHANGES), st.integers(0, 2**20), st.integers(0, 2**16)), min_size=1, max_size=4
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
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=6), some, max_size=4),
    max_leaves=8,
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where a document can be changed: a list or dictionary, and an index or key of it."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def _replaced(content: bytes, place: int, value: Any) -> bytes:
    """A JSON document with a value of it replaced, or left out."""
    document = json.loads(content)
    places = list(_places(document))
    holder, key = places[place % len(places)]
    if value == "out":
        del holder[key]
    else:
        holder[key] = value
    return json.dumps(document).encode()


def _is_document(content: bytes) -> bool:
    try:
        return any(_places(json.loads(content)))
    except ValueError:
        return False


def inputs(some: list[Seed]) -> st.SearchStrategy[tuple[int, bytes]]:
    """The number of a seed, and what its file holds instead."""

    def edited(drawn: tuple[int, list[Any]]) -> tuple[int, bytes]:
        number, edits = drawn
        one, content = some[number], some[number].inner
        for change, place, value in edits:
            content = change(content, place, value, some[(number + 1 + value) % len(some)].inner)
        return number, one.pack(content)

    def rewritten(drawn: tuple[int, int, Any]) -> tuple[int, bytes]:
        number, place, value = drawn
        return number, some[number].pack(_replaced(some[number].inner, place, value))

    numbers = st.integers(0, len(some) - 1)
    kinds = [st.tuples(numbers, _EDITS).map(edited)] * 3
    kinds.append(
        st.tuples(numbers, st.binary(max_size=64)).map(lambda drawn: (drawn[0], some[drawn[0]].pack(drawn[1])))
    )
    if documents := [number for number, one in enumerate(some) if _is_document(one.inner)]:
        values = st.sampled_from(["out", math.inf, math.nan, 10**30]) | _JSON
        kinds += [st.tuples(st.sampled_from(documents), st.integers(0, 2**16), values).map(rewritten)] * 3
    return st.one_of(kinds)


class Guard:
    """Watches what happens while a file is read."""

    _FORBIDDEN = (
        "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn",
        "socket.connect", "socket.getaddrinfo", "socket.bind", "urllib.Request", "pickle.find_class", "ctypes.dlopen",
        "webbrowser.open",
    )  # fmt: skip
    _PATHS = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree", "os.symlink", "os.link")

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.found: list[str] = []
        trusted = {sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[2])}
        self.trusted = ("<frozen", *trusted, *map(os.path.realpath, trusted))
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in self._FORBIDDEN:
            self._refuse(event, arguments)
        elif event == "open":
            path, mode, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR) if isinstance(flags, int) else set("wax+") & set(mode or "")
            if writes and not isinstance(path, int) and not self._inside(path):
                self._refuse(event, arguments)
        elif event in self._PATHS:
            if not all(self._inside(path) for path in arguments if isinstance(path, (str, bytes, os.PathLike))):
                self._refuse(event, arguments)
        elif event == "exec" and not str(getattr(arguments[0], "co_filename", "")).startswith(self.trusted):
            self._refuse(event, (getattr(arguments[0], "co_filename", ""), arguments[0]))

    def late(self, *_: object) -> None:
        """What the alarm calls; the finding stands even if a reader takes this for an error of its file."""
        self._refuse("no end", (f"{PATIENCE} seconds",))

    def _inside(self, path: Any) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        return real == os.devnull or Path(real).is_relative_to(os.path.realpath(str(self.folder)))

    def _refuse(self, event: str, arguments: tuple[Any, ...]) -> None:
        self.found.append(f"{event} {arguments!r:.300}")
        raise PermissionError(self.found[-1])

    @contextmanager
    def watching(self, folder: Path) -> Iterator[None]:
        self.folder, self.found = folder, []
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.folder = None
        if self.found:
            raise FindingError(f"it went too far: {self.found}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def outcome(reader: Reader, folder: Path, guard: Guard) -> str | None:
    """The kind of error with which a folder is refused, None if it is read; a finding otherwise."""
    try:
        with guard.watching(folder):
            reader.read(folder)
    except reader.errors as error:
        message = str(error)
        if guard.found:
            raise FindingError(f"it went too far: {guard.found}") from error
        for cause in _causes(error):
            if isinstance(cause, MemoryError) or re.search("can't allocate|not enough memory", str(cause)):
                raise FindingError(f"out of memory: {message}") from error
        if not message.isprintable():
            raise FindingError(f"an error of several lines, or one that no terminal should see: {message!r}") from error
        if reader.named and str(folder) not in message:
            raise FindingError(f"an error that does not name the file: {message!r}") from error
        if len(message) > 2000:
            raise FindingError(f"an error of {len(message)} characters: {message:.300}") from error
        return type(error).__name__
    return None


def _where(error: BaseException) -> str:
    """The last line of the package that an error went through."""
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for cause in _causes(error)
        for frame in traceback.extract_tb(cause.__traceback__)
        if "scale_disco" in frame.filename
    ]
    return lines[-1] if lines else ""


def put(folder: Path, files: Files) -> None:
    """Write files with one and the same date."""
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, int):
            with path.open("wb") as file:
                file.truncate(content)
        else:
            path.write_bytes(content)
        os.utime(path, (_STAMP, _STAMP))


def made(build: Callable[[Path], object]) -> dict[str, bytes]:
    """The files that a function puts into a folder, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _memory(field: str) -> int:
    """Bytes that the kernel has noted for this process."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def fuzz(name: str, reader: Reader, count: int, number: int, guard: Guard, *, thorough: bool) -> dict[str, Any]:
    """Read so many hostile inputs, and those made by hand; figures about them."""
    some = reader.seeds()
    kinds: Counter[str | None] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as root:
        folders = [Path(root) / str(place) for place in range(len(some))]
        for one, folder in zip(some, folders, strict=True):
            put(folder, one.files | {one.name: one.pack(one.inner)})
            with suppress(*reader.errors):  # so that libraries have imported what they need
                reader.read(folder)
            found = outcome(reader, folder, guard)
            if (found is not None) != reader.strict:
                raise FindingError(f"{name}: a valid file is {found or 'read'}: {one.name}")
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        used = _memory("VmRSS")
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + reader.room, -1))
        try:
            wrong = []
            for case, files in reader.cases().items():
                if not thorough and any(len(one) > _LONG for one in files.values() if isinstance(one, bytes)):
                    continue
                with tempfile.TemporaryDirectory(dir=root) as place:
                    folder = Path(place) / "case"
                    put(folder, files)
                    try:
                        found = outcome(reader, folder, guard)
                        if found is None and not reader.forgiving:
                            raise FindingError("it was read")
                        kinds[found] += 1
                    except Exception as error:
                        wrong.append(f"{case}: {_where(error)} {type(error).__name__} {str(error)[:300]!r}")
            if wrong:
                raise FindingError(f"{len(wrong)} files made by hand\n" + "\n".join(wrong))

            @seed(number)
            @settings(
                max_examples=max(1, count),
                deadline=None,
                database=None,
                print_blob=False,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink],
            )
            @given(inputs(some))
            def run(drawn: tuple[int, bytes]) -> None:
                place, content = drawn
                one, folder = some[place], folders[place]
                put(folder, (one.files if reader.writes else {}) | {one.name: content})
                kinds[outcome(reader, folder, guard)] += 1

            if count:
                run()
            peak = _memory("VmHWM") - used
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    accepted = kinds.pop(None, 0)
    return {
        "reader": name,
        "inputs": accepted + kinds.total(),
        "accepted": accepted,
        "refused": kinds.total(),
        "kinds": dict(kinds),
        "peak MB": round(max(0, peak) / 1e6),
        "seconds": round(time.monotonic() - start, 1),
    }


def main(words: list[str]) -> int:
    """Try readers with so many inputs each, `NAME=COUNT`, from the seed in the variable SEED."""
    from tests.reliability.malformed_readers import READERS

    faulthandler.enable()
    guard = Guard()
    signal.signal(signal.SIGALRM, guard.late)
    faulthandler.register(signal.SIGALRM, chain=True)  # says where, even within a library that does not return
    warnings.simplefilter("error")
    failed = 0
    for word in words:
        name, _, count = word.partition("=")
        try:
            number = int(os.environ.get("SEED", 0))
            figures = fuzz(name, READERS[name], int(count), number, guard, thorough="THOROUGH" in os.environ)
        except Exception as error:
            lines = traceback.format_exception(error)
            print("".join(line[:2000] for line in lines), f"{name}: failed", sep="", file=sys.stderr)
            failed += 1
        else:
            print(json.dumps(figures), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
