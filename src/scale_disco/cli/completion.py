"""`disco completion`: scripts that complete commands, options and values in a shell."""

from ..tasks.io.terminal import show
from .app import make_app
from .options import CompletionOptions


def run(options: CompletionOptions) -> None:
    """Print the script."""
    script = make_app().generate_completion(shell=options.shell)  # type: ignore[arg-type]
    show(options, {"shell": options.shell, "script": script}, script.rstrip())
