"""`disco test`: test error of a trained network, also at scales outside the training range."""

from ..tasks.io import terminal
from ..tasks.io.report import binomial_std, table
from ..tasks.runs.evaluate import bins_of, evaluate
from ..tasks.runs.experiments import EXPERIMENTS, range_label
from ..tasks.runs.plots import Range, plot_error_over_scale
from ..tasks.runs.record import options_of
from .options import TestOptions


def run(options: TestOptions) -> None:
    """Test, print and plot."""
    terminal.check_outputs(options.out, options.plot)
    device = terminal.chosen_device(options.device)
    names = ("data", "checkpoint", "limit", "outside", "test_scales", "enlarge")
    chosen = {name: getattr(options, name) for name in names}
    with terminal.Progress("testing") as progress:
        result = evaluate(options.run, **chosen, device=device, progress=progress)
    if result["not recorded"]:
        terminal.say(f"not recorded in the run: {result['not recorded']}")
    experiment = EXPERIMENTS[result["experiment"]]
    bins = bins_of(result)
    rows = [
        [range_label(each.low, each.high), each.kind, str(each.images), f"{each.error:.2%}", f"± {each.std:.2%}"]
        for each in bins
    ]
    header = [f"scale of {experiment.subject}", "set", "images", "error", ""]
    errors, images = result["errors"], result["images"]
    about = (
        f"{result['settings']['model']}, {result['checkpoint']} weights: {errors} errors on {images} test images, "
        f"{errors / images:.2%} ± {binomial_std(errors, images):.2%}"
    )
    terminal.show(options, result, f"{table(header, rows)}\n{about}")
    text = f"{about}.\n\n{table(header, rows, markdown=True)}"
    title = f"Error vs. scale of {experiment.subject}"
    terminal.write_report(options.out, title, text, result, command=options.call)
    curves: dict[str, list[Range]] = {}
    model = result["settings"]["model"]
    tested = {(each.low, each.high) for each in bins if each.kind == "test"}
    for each in bins:  # other forms of the network have curves of their own, over the same scales
        other = each.kind != "test" and (each.low, each.high) in tested
        point = Range(each.kind, each.low, each.high, each.error, each.std)
        curves.setdefault(f"{model}, {each.kind}" if other else model, []).append(point)
    trained = getattr(options_of(result), "training_sizes", experiment.training_scales)
    terminal.write_plot(options.plot, lambda: plot_error_over_scale(curves, trained, experiment.subject))
