"""A small file system that can be full or read-only, and the contents of files without their times."""

from __future__ import annotations

import csv
import gc
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

PAGE = 4096  # bytes by which tmpfs allocates
_VOLATILE = {"seconds", "date", "started", "finished", "versions", "machine", "modified", "data"}
_ENDINGS = {".npy": b"", ".md": b"\n", ".txt": b"\n", ".html": b"</html>\n", ".svg": b"</svg>\n", ".pdf": b"%%EOF\n"}


class Disk:
    """A tmpfs of its own, with an output folder `out`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._mount("-t", "tmpfs", "-o", "size=256m,mode=755", "tmpfs")
        (self.folder / "ballast").write_bytes(b"x")  # a size of zero would mean no limit
        self.out = self.folder / "out"
        self.out.mkdir()

    def _mount(self, *arguments: str) -> None:
        process = subprocess.run(["mount", *arguments, str(self.folder)], capture_output=True, text=True)
        if process.returncode:
            raise PermissionError(process.stderr.strip())

    @property
    def used(self) -> int:
        status = os.statvfs(self.folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    @property
    def files(self) -> int:
        status = os.statvfs(self.folder)
        return status.f_files - status.f_ffree

    def open_files(self) -> list[str]:
        """Return the files on it that this process has open."""
        targets = []
        for handle in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the handle of the listing itself
                targets.append(os.readlink(f"/proc/self/fd/{handle}"))
        return [target for target in targets if target.startswith(str(self.folder))]

    def limit_bytes(self, free: int) -> None:
        """Leave so many free bytes."""
        self._mount("-o", f"remount,size={self.used + free}")

    def limit_files(self, free: int) -> None:
        """Leave so many free inodes."""
        self._mount("-o", f"remount,nr_inodes={self.files + free}")

    def enlarge(self) -> None:
        """Make it large and writable."""
        self._mount("-o", "remount,rw,size=256m,nr_inodes=10000")

    def clear(self) -> None:
        """Make it large, writable and empty."""
        self.enlarge()
        shutil.rmtree(self.out)
        self.out.mkdir()

    def make_read_only(self) -> None:
        self._mount("-o", "remount,ro")

    def unmount(self) -> None:
        gc.collect()  # tensors may be mapped to its files
        subprocess.run(["umount", str(self.folder)], check=True)


def names(folder: Path) -> set[str]:
    """Return the files of a folder but for TensorBoard's, which grow line by line and have times in their names."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "tensorboard"
    }


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


def contents(folder: Path) -> dict[str, Any]:
    return {name: content(folder / name) for name in names(folder)}


def content(path: Path) -> Any:
    """Return what a file contains but for times; raise an error if it is incomplete."""
    if path.suffix == ".json":
        return _without_times(json.loads(path.read_text()))
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name].tolist() for name in archive.files if name != "note"}
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118 - not a dict
    if path.suffix == ".ckpt":
        state = torch.load(path, weights_only=True)["state_dict"]
        return {name: tensor.numpy().tobytes() for name, tensor in state.items()}
    if path.suffix in (".jpg", ".png"):
        from PIL import Image

        with Image.open(path) as image:
            return np.asarray(image).tobytes()
    if path.suffix == ".mp4":
        import av

        with av.open(str(path)) as video:  # bytes vary with the encoder's threads
            return [frame.to_ndarray().shape for frame in video.decode(video=0)]
    raw = path.read_bytes()
    if path.suffix == ".csv":
        assert raw.endswith(b"\n"), path
        rows = list(csv.DictReader(raw.decode().splitlines()))
        return [{name: value for name, value in row.items() if name not in ("ms", "seconds")} for row in rows]
    assert raw.endswith(_ENDINGS[path.suffix]), path
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False).tobytes()
    return raw if path.suffix in (".md", ".txt") else len(raw)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_times(item) for name, item in value.items() if name not in _VOLATILE}
    return [_without_times(item) for item in value] if isinstance(value, list) else value
