"""Export a network to an ONNX file that takes any batch and image size and needs neither this library nor PyTorch.

    python examples/export_onnx.py              # writes network.onnx; needs the extra onnx
    python examples/export_onnx.py some.onnx

prints, for two shapes of images, the relative difference between the outputs of onnxruntime and of the network, and how
many times longer the network takes in eager mode than its baked copy and than onnxruntime. `bake` precomputes kernels
and folds batch norms; `export_onnx` bakes the network itself, and compares the file with the network before saving.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from scale_disco import DiscreteBasis, Scales, bake
from scale_disco.export import export_onnx
from scale_disco.nn import ScaleBatchNorm2d, ScaleBlurPool2d, ScaleConv2d, ScaleLift2d, ScaleProject
from scale_disco.tasks.io.report import table

try:
    import onnxruntime
except ImportError as error:
    sys.exit(f'this example needs onnxruntime: pip install "scale-disco[onnx]" ({error})')


def median_time(call: Callable[..., object], *arguments: object) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


path = Path(sys.argv[1] if len(sys.argv) > 1 else "network.onnx")
torch.manual_seed(0)
scales = Scales([1, 2**0.5, 2])
basis = DiscreteBasis(3, scales)
network = nn.Sequential(
    *(ScaleLift2d(3, 16, basis), ScaleBatchNorm2d(16), nn.ReLU(), ScaleBlurPool2d(scales)),
    *(ScaleConv2d(16, 32, basis), ScaleBatchNorm2d(32), nn.ReLU(), ScaleBlurPool2d(scales)),
    *(ScaleConv2d(32, 32, basis), ScaleBatchNorm2d(32), nn.ReLU()),
    *(ScaleProject("max"), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
).eval()  # random weights here; load your own with network.load_state_dict

baked = bake(network)
logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # a notice about torchvision, which is not used here
warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch's own
export_onnx(network, torch.randn(2, 3, 64, 64), path)
print(f"{path}: {path.stat().st_size / 1000:.0f} kB")

settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = torch.get_num_threads()  # the same for both
session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
rows = []
with torch.inference_mode():
    for shape in ((1, 3, 64, 64), (4, 3, 96, 128)):
        images = torch.randn(shape)
        pixels = images.numpy()
        expected, actual = network(images), torch.from_numpy(session.run(None, {"images": pixels})[0])
        difference = (actual - expected).abs().max() / expected.abs().max()
        eager, fast = median_time(network, images), median_time(baked, images)
        other = median_time(session.run, None, {"images": pixels})
        rows.append([" x ".join(map(str, shape)), f"{difference:.1e}", f"{eager / fast:.2f}", f"{eager / other:.2f}"])
print(table(["images", "difference", "eager / baked", "eager / onnxruntime"], rows))
