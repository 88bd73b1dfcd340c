"""`disco data stl10`: download STL-10, or verify existing files."""

from ..io.terminal import Progress, say, show
from .data import ARCHIVE, PARTS, check_stl10, download, find, read_stl10
from .options import Stl10DataOptions


def run(options: Stl10DataOptions) -> None:
    """List the files of the data set, after the download if requested."""
    root = options.data or options.out
    if options.download:
        with Progress("STL-10") as progress:
            download(options.out, progress)
    rows = []
    with Progress("STL-10, checksums") as progress:
        if options.check:
            check_stl10(root, again=True, progress=progress)
        for part in PARTS:
            images = read_stl10(root, part, progress=progress)
            row = {"file": str(find(root) / f"{part}_X.bin"), "part": part, "images": len(images.labels)}
            rows.append({**row, "classes": images.classes, "stl10": images.name == "stl10"})
    kinds = {True: "STL-10's, by its checksum", False: "in its format, not STL-10"}
    lines = [f"{row['file']}: {row['images']:,} images, {kinds[bool(row['stl10'])]}" for row in rows]
    show(options, rows, "\n".join(lines))
    archive = options.out / ARCHIVE
    if options.download and archive.is_file():
        say(f"{archive} is no longer needed")
