"""`disco table`: tested runs next to the paper's results."""

import json

from ..files import write
from ..tasks.io.terminal import check_outputs, say, show, write_plot
from ..tasks.runs.experiments import EXPERIMENTS, TABLES
from ..tasks.runs.plots import plot_error_over_scale
from .options import TableOptions


def run(options: TableOptions) -> None:
    """Collect, print, write and plot."""
    from ..tasks.runs.tables import outcomes

    check_outputs(options.out, options.plot, options.scales)
    tables, experiment = TABLES[options.experiment], EXPERIMENTS[options.experiment]
    sections = tables.sort(outcomes(options.runs, options.experiment))
    text = "\n\n".join("\n\n".join((f"## {group.title}", *group.parts())) for group in sections)
    document = [
        {
            "title": group.title,
            "runs": [
                {
                    "run": str(outcome.run),
                    "settings": outcome.options.as_dict(),
                    "epochs": len(outcome.record["epochs"]),
                    "tested": outcome.tested,
                    "error": None if outcome.tested is None else outcome.error / 100,
                    "deviation": None if outcome.tested is None else outcome.std / 100,
                    "paper": tables.paper[outcome.options.model]._asdict(),
                }
                for outcome in group.outcomes
            ],
        }
        for group in sections
    ]
    show(options, document, text)
    if options.out:
        content = json.dumps(document, indent=1) if options.out.suffix == ".json" else text
        write(options.out, f"{content}\n".encode())
        say(f"wrote {options.out}")
    write_plot(options.plot, lambda: tables.figure(sections))
    curves = {
        f"{name} ({group.title})" if len(sections) > 1 else name: curve
        for group in sections
        for name, curve in group.curves().items()
    }
    runs = (outcome for group in sections for outcome in group.outcomes)
    ranges = {getattr(outcome.options, "training_sizes", experiment.training_scales) for outcome in runs}
    trained = ranges.pop() if len(ranges) == 1 else None
    bars = "; ".join(dict.fromkeys(group.bars() for group in sections))
    write_plot(options.scales, lambda: plot_error_over_scale(curves, trained, experiment.subject, bars))
