from __future__ import annotations

import numpy as np
import pytest
from safetensors.torch import save_file

from scale_disco.models import create_model


@pytest.fixture(scope="session")
def materials(tmp_path_factory):
    """A folder of two materials that differ in brightness, at nine distances in three conditions."""
    image_class = pytest.importorskip("PIL.Image")
    folder, random = tmp_path_factory.mktemp("materials"), np.random.default_rng(0)
    for material in ("linen", "silk"):
        (folder / material).mkdir()
        for distance in range(1, 10):
            for condition in (1, 2, 3):
                pixels = random.integers(0, 128 if material == "silk" else 256, (64, 64), dtype=np.uint8)
                name = f"1-scale_{distance}_im_{condition}_gray.png"
                image_class.fromarray(pixels).save(folder / material / name)
    return folder


@pytest.fixture(scope="session")
def resnet_weights(tmp_path_factory):
    """Random weights of a ResNet-50."""
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_file(create_model("resnet50/cnn", classes=2).state_dict(), path)
    return path
