"""`disco data generalization` and `disco test kth-tips`."""

import json

from ...files import make_folder
from ..io.mnist import Digits, read_mnist
from ..io.terminal import Progress, check_outputs, show, write_plot, write_report
from . import digits
from .options import LARGE_SCALE, GeneralizationDataOptions, KthTipsOptions


def build(options: GeneralizationDataOptions) -> None:
    """Build each data set that has no file yet and verify the others."""
    mnist: Digits | None = None
    rows = []
    for name in dict.fromkeys(options.name):
        path = digits.path_of(options.out, name)
        missing = not path.exists()
        if missing:
            if options.mnist is None:
                raise ValueError("MNIST is required: pass --mnist DIR with its four files")
            mnist = mnist or read_mnist(options.mnist)
            make_folder(options.out)
            with Progress(name) as progress:
                if name == LARGE_SCALE:
                    counts = {part: min(count, options.limit or count) for part, count in digits.LARGE_COUNTS.items()}
                    parts = digits.build_large_scale(mnist, counts, progress)
                else:
                    count = digits.STIR_COUNT if options.limit is None else min(digits.STIR_COUNT, options.limit // 10)
                    parts = digits.build_stir(mnist, count, progress)
                digits.save(options.out, name, parts, source=f"MNIST's files in {options.mnist}")
        else:
            parts = digits.load(options.out, name)
        pixels = digits.pixel_hash(parts)
        complete = pixels == digits.PIXELS[name]
        size = path.stat().st_size
        rows.append({"file": str(path), "made": missing, "bytes": size, "pixels": pixels, "complete": complete})
        if not options.json:
            what = "the whole data set" if complete else "not the whole data set, or of other digits"
            print(f"{path}: {'created' if missing else 'verified'}, {size / 1e6:.1f} MB, pixels {pixels} ({what})")
    if options.json:
        print(json.dumps(rows))


def test_kth_tips(options: KthTipsOptions) -> None:
    """Evaluate all classifiers, print and plot."""
    from .distances import distance_table, evaluate_heads, read_profiles
    from .plots import plot_distances

    check_outputs(options.out, options.plot)
    assert options.pretrained is not None
    with Progress("features") as progress:
        data, profiles = read_profiles(
            options.folder, options.pretrained, side=options.side, cache=options.cache, progress=progress
        )
    with Progress("classifiers") as progress:
        results = evaluate_heads(profiles, data.labels, data.distances, data.conditions, progress=progress)
    rows = {
        name: {"mean": float(each.accuracy.mean()), "images": each.images, "accuracy": each.accuracy.tolist()}
        for name, each in results.items()  # accuracy is [training distances, test distances]
    }
    document = {"experiment": "kth-tips", "side": options.side, "rows": rows}
    text = distance_table(results)
    about = "Mean accuracy over the nine test distances, in percent, by the distance in training (1 is the nearest)."
    show(options, document, f"{text}\n{about}")
    write_report(options.out, "KTH-TIPS at unseen distances", f"{about}\n\n{text}", document, command=options.call)
    write_plot(options.plot, lambda: plot_distances({name: each.accuracy for name, each in results.items()}))
