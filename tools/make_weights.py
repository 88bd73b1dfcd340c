"""Make a file of weights that comes with the package, and write its checksum into its card.

    python tools/make_weights.py resnet50-stages resnet50_caffe_fp16.safetensors
    python tools/make_weights.py mnist-disco runs/mnist-disco-1

The name is that of a card in `src/scale_disco/models/weights`; the source is a file of weights, or the folder of a run.
The same source gives the same bytes: layers are rounded to half precision, norms stay in float32, batch counters and
the later stages of residual networks are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save

from scale_disco.files import write
from scale_disco.models.checkpoints import read_checkpoint, read_weights
from scale_disco.models.packaged import FOLDER
from scale_disco.models.resnet import LATER_STAGES
from scale_disco.tasks.runs.evaluate import trained


def packed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of the first stages, with layers in half precision."""
    norms = {name.removesuffix("running_var") for name in tensors if name.endswith(".running_var")}
    result = {}
    for name, tensor in sorted(tensors.items()):
        if name.startswith(LATER_STAGES) or name.endswith("num_batches_tracked"):
            continue
        layer = tensor.is_floating_point() and f"{name.rpartition('.')[0]}." not in norms
        result[name] = (tensor.half() if layer else tensor).contiguous()
    return result


def main() -> None:
    """Make the file that is named on the command line."""
    parser = argparse.ArgumentParser(description="make a file of weights that comes with the package")
    parser.add_argument("name", choices=sorted(path.stem for path in FOLDER.glob("*.json")))
    parser.add_argument("source", type=Path)
    options = parser.parse_args()
    path, card = FOLDER / f"{options.name}.safetensors", FOLDER / f"{options.name}.json"
    source = options.source
    write(path, save(packed(trained(source).state_dict() if source.is_dir() else read_weights(source))))
    document = json.loads(card.read_text(encoding="utf-8")) | {"sha256": read_checkpoint(path).sha256}
    write(card, f"{json.dumps(document, indent=1, ensure_ascii=False)}\n".encode())
    print(f"{path.name}: {path.stat().st_size:,} bytes, sha256 {document['sha256']}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(str(error))
