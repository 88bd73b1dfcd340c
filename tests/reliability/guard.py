"""Watch what a reader does to the machine while it reads a file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CPU_SECONDS = 20  # for an input: time of this process, so that a busy machine does not count
WALL_SECONDS = 300  # for an input, for readers that wait without computing


class FindingError(AssertionError):
    """What no file may cause."""


class Guard:
    """Refuse processes, connections, code from files, writes elsewhere, and reading without end."""

    _FORBIDDEN = (
        "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn",
        "socket.connect", "socket.getaddrinfo", "socket.bind", "urllib.Request", "pickle.find_class", "ctypes.dlopen",
        "webbrowser.open",
    )  # fmt: skip
    _PATHS = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree", "os.symlink", "os.link")

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.violations: list[str] = []
        trusted = {sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[2])}
        self.trusted = ("<frozen", *trusted, *map(os.path.realpath, trusted))
        sys.addaudithook(self._hook)
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, self._time_out)

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

    def _time_out(self, number: int, _: object) -> None:
        """Signal handler; the violation stands even if a reader takes this for an error of its file."""
        limit = f"{CPU_SECONDS} s of CPU time" if number == signal.SIGPROF else f"{WALL_SECONDS} s"
        self._refuse("timeout", (limit,))

    def _inside(self, path: Any) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        return real == os.devnull or Path(real).is_relative_to(os.path.realpath(str(self.folder)))

    def _refuse(self, event: str, arguments: tuple[Any, ...]) -> None:
        self.violations.append(f"{event} {arguments!r:.300}")
        raise PermissionError(self.violations[-1])

    def check(self, cause: Exception | None = None) -> None:
        """Raise what was refused during the last watch."""
        if self.violations:
            raise FindingError(f"forbidden: {self.violations}") from cause

    @contextmanager
    def watching(self, folder: Path) -> Iterator[None]:
        """Watch while the files of a folder are read; only in there files may be written."""
        self.folder, self.violations = folder, []
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.folder = None
        self.check()
