"""Every reader of files, with small valid files and handmade malformed or malicious ones."""

from __future__ import annotations

from tests.reliability.malformed import Reader
from tests.reliability.readers import datasets, images, runs, scene, tracking, weights

READERS: dict[str, Reader] = {
    **datasets.READERS,
    **images.READERS,
    **tracking.READERS,
    **weights.READERS,
    **runs.READERS,
    **scene.READERS,
}
