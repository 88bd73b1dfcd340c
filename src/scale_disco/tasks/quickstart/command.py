"""`disco quickstart`: a tour of the library in minutes, with an HTML report."""

from ..io.terminal import Progress, chosen_device, say, show
from .options import QuickstartOptions
from .tour import REPORT, quickstart


def run(options: QuickstartOptions) -> None:
    """Measure and write the report; after Ctrl-C, the same command continues."""
    chosen_device(options.device)
    path = options.out / REPORT
    try:
        document = quickstart(options, watch=Progress, say=say)
    except KeyboardInterrupt:
        if path.is_file():
            say(f"\nthe report so far is {path}; the same command continues")
        raise
    hint = f" Before its commands, run: {document['first']}" if document["first"] else ""
    show(options, document, f"The report is {path}: open it in a browser.{hint}")
