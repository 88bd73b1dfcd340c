"""Fuzz readers with malformed files: `python -m tests.reliability.malformed READER=INPUTS ...`, in its own process.

Every input is a small valid file with a few mutations, a document of the right grammar, or noise. A reader may accept
it or refuse it in one line that names the file. Anything else is a finding: another exception, memory, a hang, a
process or a connection, code that is compiled or run, a file written elsewhere. One line of figures per reader is
printed. SEED sets the random seed; THOROUGH adds the handmade files of more than 5 MB.
"""

from __future__ import annotations

import faulthandler
import json
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.reliability.guard import FindingError, Guard
from tests.reliability.mutations import Seed, mutated

MEMORY = 1 << 30  # bytes that most readers may allocate
_LARGE = 5_000_000  # bytes of handmade files that only the long suite writes
_SHARED_MEMORY = "/dev/shm"  # files there take no disk time
_MODIFIED = 1_000_000_000  # time of every file, since caches compare it

Files = Mapping[str, bytes | int | None]  # by name: content, size of a file of zeros, or None for a folder


@dataclass(frozen=True)
class Reader:
    """A reader of folders, with valid files and malformed or malicious ones that it must refuse.

    Args:
        read: Called with the folder.
        seeds: Valid files to mutate.
        cases: Handmade files, by what is wrong with them.
        errors: Exceptions that it may raise, with a message of one line.
        writes: Whether it changes the folder.
        forgiving: Whether it treats a damaged file as missing.
        strict: Whether it refuses even the seeds, which cannot have the checksums of the real files.
        named: Whether its errors name a file; those of YAML settings name an option.
        memory: Bytes that it may allocate.
    """

    read: Callable[[Path], object]
    seeds: Callable[[], list[Seed]]
    cases: Callable[[], dict[str, Files]] = dict
    errors: tuple[type[Exception], ...] = (ValueError, OSError)
    writes: bool = False
    forgiving: bool = False
    strict: bool = False
    named: bool = True
    memory: int = MEMORY


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def outcome(reader: Reader, folder: Path, guard: Guard) -> str | None:
    """Return the name of the exception that refuses a folder, None if it is accepted; raise a finding otherwise."""
    try:
        with guard.watching(folder):
            reader.read(folder)
    except reader.errors as error:
        message = str(error)
        guard.check(error)
        for cause in _causes(error):
            if isinstance(cause, MemoryError) or re.search("can't allocate|not enough memory", str(cause)):
                raise FindingError(f"out of memory: {message}") from error
        if not message.isprintable():
            raise FindingError(f"several lines or control characters in the message: {message!r}") from error
        if reader.named and str(folder) not in message:
            raise FindingError(f"the message does not name the file: {message!r}") from error
        if len(message) > 2000:
            raise FindingError(f"a message of {len(message)} characters: {message:.300}") from error
        return type(error).__name__
    return None


def _origin(error: BaseException) -> str:
    """Return the last line of the package that an exception went through."""
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for cause in _causes(error)
        for frame in traceback.extract_tb(cause.__traceback__)
        if "scale_disco" in frame.filename
    ]
    return lines[-1] if lines else ""


def write_files(folder: Path, files: Files) -> None:
    """Write files, all with the same modification time."""
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
        os.utime(path, (_MODIFIED, _MODIFIED))


def files_of(write: Callable[[Path], object]) -> dict[str, bytes]:
    """Return the files that a function writes into a folder, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _memory(field: str) -> int:
    """Return a number of bytes from the kernel's status of this process."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) << 10


def fuzz(name: str, reader: Reader, count: int, number: int, guard: Guard, *, thorough: bool) -> dict[str, Any]:
    """Read the handmade files and `count` mutated ones, drawn with the seed `number`; return figures."""
    seeds = reader.seeds()
    outcomes: Counter[str | None] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None) as root:
        folders = [Path(root) / str(index) for index in range(len(seeds))]
        for valid, folder in zip(seeds, folders, strict=True):
            write_files(folder, valid.files | {valid.name: valid.pack(valid.inner)})
            with suppress(*reader.errors):  # so that libraries have imported what they need
                reader.read(folder)
            refusal = outcome(reader, folder, guard)
            if (refusal is not None) != reader.strict:
                raise FindingError(f"{name}: a valid file is {refusal or 'read'}: {valid.name}")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        used = _memory("VmRSS")
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + reader.memory, -1))
        try:
            outcomes += _read_cases(reader, Path(root), guard, thorough=thorough)

            @seed(number)
            @settings(
                max_examples=max(1, count),
                deadline=None,
                database=None,
                print_blob=False,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink],
            )
            @given(mutated(seeds))
            def run(drawn: tuple[int, bytes]) -> None:
                index, content = drawn
                valid, folder = seeds[index], folders[index]
                write_files(folder, (valid.files if reader.writes else {}) | {valid.name: content})
                outcomes[outcome(reader, folder, guard)] += 1

            if count:
                run()
            peak = _memory("VmHWM") - used
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    accepted = outcomes.pop(None, 0)
    return {
        "reader": name,
        "inputs": accepted + outcomes.total(),
        "accepted": accepted,
        "refused": outcomes.total(),
        "kinds": dict(outcomes),
        "peak MB": round(max(0, peak) / 1e6),
        "seconds": round(time.monotonic() - start, 1),
    }


def _read_cases(reader: Reader, root: Path, guard: Guard, *, thorough: bool) -> Counter[str | None]:
    """Read the handmade files; return their outcomes."""
    outcomes: Counter[str | None] = Counter()
    findings = []
    for case, files in reader.cases().items():
        if not thorough and any(len(content) > _LARGE for content in files.values() if isinstance(content, bytes)):
            continue
        with tempfile.TemporaryDirectory(dir=root) as name:
            folder = Path(name) / "case"
            write_files(folder, files)
            try:
                refusal = outcome(reader, folder, guard)
                if refusal is None and not reader.forgiving:
                    raise FindingError("it was accepted")
                outcomes[refusal] += 1
            except Exception as error:
                findings.append(f"{case}: {_origin(error)} {type(error).__name__} {str(error)[:300]!r}")
    if findings:
        raise FindingError(f"{len(findings)} handmade files\n" + "\n".join(findings))
    return outcomes


def main(arguments: list[str]) -> int:
    """Fuzz readers, each given as `NAME=COUNT`; return the number of readers with findings."""
    from tests.reliability.readers import READERS

    faulthandler.enable()
    guard = Guard()
    for number in (signal.SIGPROF, signal.SIGALRM):
        faulthandler.register(number, chain=True)  # prints the stack, even in a library that does not return
    warnings.simplefilter("error")
    failed = 0
    for argument in arguments:
        name, _, count = argument.partition("=")
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
