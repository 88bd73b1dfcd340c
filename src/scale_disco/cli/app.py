"""All commands of `disco`, as a cyclopts application made of their options."""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CoercionError, Group, Parameter, convert

from .. import __version__
from ..tasks.bench.options import BenchOptions
from ..tasks.equivariance.options import EquivarianceOptions
from ..tasks.generalization.options import GeneralizationDataOptions, GeneralizationOptions, KthTipsOptions
from ..tasks.io.terminal import UsageError, show
from ..tasks.mnist_scale.options import MnistScaleDataOptions, MnistScaleOptions
from ..tasks.options import COMMON, CommandOptions, check_values, flag
from ..tasks.quickstart.options import QuickstartOptions
from ..tasks.runs.options import RunOptions
from ..tasks.scene.options import CompareOptions, SceneOptions, SceneTestOptions, SceneTrainOptions
from ..tasks.stl10.options import Stl10DataOptions, Stl10Options
from ..tasks.tracking.options import OtbOptions, TrackerOptions, TrackOptions, ZoomOptions
from .help import HIDDEN, AlignedFormatter
from .options import BasisOptions, CompletionOptions, ModelsOptions, TableOptions, TestOptions, TrainOptions

_EVERY = "Options of every command: --json, --quiet, --threads N, --debug (see disco --help)"


class Command:
    """A command: its name, and the options that it takes.

    Args:
        name: Such as "train mnist-scale".
        options: Its declaration.
        run_options: For `disco train`, the options of the experiment, with the help of the command.
        summary: First line of the help (default: that of the declaration).
        examples: End of the help (default: that of the declaration).
    """

    def __init__(
        self,
        name: str,
        options: type[CommandOptions],
        run_options: type[RunOptions] | None = None,
        *,
        summary: str = "",
        examples: str = "",
    ) -> None:
        self.name, self.words = f"disco {name}", tuple(name.split())
        self.options, self.run_options = options, run_options
        own = dict(sorted(options.fields().items(), key=self._position))
        self.fields, self.types = own, options.types()
        if run_options:
            summary, examples = run_options.summary, run_options.examples
            if not run_options.caches:
                del own["cache"]
            self.fields, self.types = {**run_options.fields(), **own}, {**run_options.types(), **options.types()}
        self.summary = summary or inspect.getdoc(options).partition("\n")[0]  # type: ignore[union-attr]
        notes = re.sub(r"(?<=\S)\n(?=\S)", " ", examples or options.examples)  # paragraphs, which the terminal wraps
        self.epilogue = f"Examples:\n{notes}\n{_EVERY}"

    def _position(self, named: tuple[str, Any]) -> tuple[bool, bool, bool]:
        """Return the sort key of a field: positional ones, those of the command itself, shared ones, common ones."""
        name, each = named
        return not each.metadata["positional"], name in COMMON, name not in vars(self.options)["__annotations__"]

    def current(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Return the command line with present spellings instead of former ones, and notes about them.

        Numbers after an option of several, such as --box 1 2 3 4, become one word, 1,2,3,4.
        """
        notes = []
        for index, word in enumerate(words):
            count = str(self.types.get(word.removeprefix("--"), "")).count("float")
            parts = list(takewhile(lambda part: not part.startswith("--"), words[index + 1 : index + 1 + count]))
            if word.startswith("--") and len(parts) > 1 and _NUMBER.fullmatch(parts[0]):
                words[index + 1 : index + 1 + len(parts)] = [",".join(parts)]
            name, equals, value = word.partition("=")
            if name in self.options.former and name not in map(flag, self.fields):
                words[index] = f"{self.options.former[name]}{equals}{value}"
                notes.append(f"{self.name}: {name} is now {self.options.former[name]}")
        return words, notes

    def make(self, given: Mapping[str, Any], call: str) -> CommandOptions:
        """Return the options from values of the command line."""
        values = {name: self._parsed(name, value) for name, value in given.items()}
        more = {"experiment": self.words[-1], "given": values, "call": call}
        names = {each.name for each in dataclasses.fields(self.options)}
        options = self.options(**{name: value for name, value in {**values, **more}.items() if name in names})
        if run := self.run_options:
            own = {name: value for name, value in values.items() if name in run.fields()}
            check_values(run.fields(), own, files=not values.get("resume"))
            if not (values.get("resume") or values.get("print_config")):  # report missing data before importing torch
                defaults = {name: each.default for name, each in run.fields().items()}
                folder = values.get("data", self.fields["data"].default)
                path, command = run.data_file(folder, {**defaults, **own}) or (folder, "")
                if not path.exists():
                    raise FileNotFoundError(f"{path}: no such file; create it: {command}")
        return options

    def _parsed(self, name: str, value: Any) -> Any:
        parse = self.fields[name].metadata["parse"]
        if parse is None or value is None:
            return value
        try:
            return tuple(map(parse, value)) if isinstance(value, tuple) else parse(value)
        except ValueError as error:
            raise UsageError(f"{self.name}: {flag(name)}: {error}; see {self.name} --help") from None

    def function(self) -> Any:
        """Return a function with the signature that cyclopts reads; it is never called."""

        def function() -> None: ...

        function.command = self  # type: ignore[attr-defined]
        function.__signature__ = inspect.Signature(list(map(self._parameter, self.fields)))  # type: ignore[attr-defined]
        return function

    def _parameter(self, name: str) -> inspect.Parameter:
        each, kind = self.fields[name], self.types[name]
        about, default = each.metadata, each.default
        many = str(kind).endswith(("...]", "...] | None"))  # any number of values
        if about["parse"]:
            kind = tuple[str, ...] if many else str
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        hidden = default is False or default in (None, (), inspect.Parameter.empty) or "(default" in about["help"]
        text = " ".join(map(str, default)) if isinstance(default, tuple) else default
        shared = self.run_options and name in self.options.fields()
        title = _COMMON if name in COMMON else _RUN if shared else _OPTIONS
        group: dict[str, Any] = {} if about["positional"] else {"group": title}  # positional ones have their own
        parameter = Parameter(
            help=about["help"],
            choices=about["choices"] or None,
            negative=(),
            allow_repeating=True,
            consume_multiple=1,  # value or more
            converter=_integers if "int" in str(kind) else None,
            allow_leading_hyphen=bool(about["parse"]) and not many,
            show_default=False if hidden else lambda _: text,
            metavar="VALUE" if about["parse"] and not many else _METAVARS.get(kind),
            **group,
        )
        positional = inspect.Parameter.POSITIONAL_ONLY if about["positional"] else inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, positional, default=default, annotation=Annotated[kind, parameter])


def _integers(kind: Any, tokens: Any) -> Any:
    """Return the value of an integer option, or of a list of them; cyclopts alone would round 2.5."""
    for token in tokens:
        if "." in token.value:
            raise CoercionError(token=token, target_type=int)
    return convert(kind, tokens)


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_OPTIONS, _RUN = Group("Options", sort_key=1), Group("Options of the run", sort_key=2)
_COMMON = Group(HIDDEN, sort_key=3)
_METAVARS: dict[Any, str] = {
    **dict.fromkeys((int, int | None), "N"),
    **dict.fromkeys((float, float | None), "X"),
    **dict.fromkeys((str, str | None), "NAME"),
    Path: "PATH",
}

_TRAIN = (MnistScaleOptions, Stl10Options, GeneralizationOptions, TrackerOptions, SceneTrainOptions)
_TABLES = {
    "mnist-scale": ("with the paper's Table 1", "--plot table.png"),
    "stl10": ("with the paper's Tables 2 and 3", "--scales scales.png"),
    "generalization": ("over the size of digits, next to what STIR reports", "--plot sizes.png"),
}

# By group; a new command joins here.
COMMANDS: dict[str, list[Command]] = {
    "Start": [Command("quickstart", QuickstartOptions), Command("models", ModelsOptions)],
    "Kernels": [
        Command("basis", BasisOptions),
        Command("equivariance", EquivarianceOptions),
        Command("bench", BenchOptions),
    ],
    "Experiments": [
        Command("data mnist-scale", MnistScaleDataOptions),
        Command("data stl10", Stl10DataOptions),
        Command("data generalization", GeneralizationDataOptions),
        Command("data zoom", ZoomOptions),
        *(Command(f"train {options.experiment}", TrainOptions, options) for options in _TRAIN),
        Command("test", TestOptions),
        Command("test scene", SceneTestOptions),
        Command("test kth-tips", KthTipsOptions),
        *(
            Command(
                f"table {name}",
                TableOptions,
                summary=f"Compare evaluated runs {with_what}.",
                examples=f"  disco table {name} runs\n  disco table {name} runs --out table.md {plot}\n",
            )
            for name, (with_what, plot) in _TABLES.items()
        ),
    ],
    "Tracking": [Command("track", TrackOptions), Command("otb", OtbOptions)],
    "Scenes": [Command("scene", SceneOptions), Command("compare", CompareOptions)],
    "Shell": [Command("completion", CompletionOptions)],
}
_SUMMARIES = {  # of commands with subcommands
    "data": "Create, download or verify data sets.",
    "train": "Train a network of the paper.",
    "test": "Evaluate a trained network, also over scales.",
    "table": "Compare evaluated runs with the paper's table.",
}
_EPILOG = """\
`disco COMMAND --help` shows the options of a command, with examples.
`disco --version` prints the version.

Options of every command:
{options}

Exit codes: 0 success, 1 error (also values out of range), 2 command line not understood,
70 internal error (please report it),
129 hangup (SIGHUP), 130 interrupted (Ctrl-C), 141 closed pipe (SIGPIPE), 143 terminated (SIGTERM)."""


def make_app() -> App:
    """Return the application. Its commands are declarations, which import nothing heavy."""
    common = "\n".join(f"  {flag(name):11}{each.metadata['help']}" for name, each in CommandOptions.fields().items())
    app = App(
        name="disco",
        help="Discrete scale convolutions for PyTorch.",
        version=f"scale-disco {__version__}",
        help_format="plaintext",
        help_formatter=AlignedFormatter(),
        help_epilogue=_EPILOG.format(options=common),
        print_error=False,
        exit_on_error=False,
    )
    app["--help"].show = app["--version"].show = False
    for title, commands in COMMANDS.items():
        group = Group.create_ordered(title)
        for command in commands:
            name, parent, place = command.words[-1], app, {"group": group}
            if (first := command.words[0]) in _SUMMARIES:
                if first not in app:
                    summary, position = _SUMMARIES[first], len(list(app))
                    app.command(App(name=first, help=summary, help_epilogue=_EVERY, group=group, sort_key=position))
                parent, place = app[first], {}
            if name == parent.name[0]:  # without a subcommand
                parent.default(command.function())
                parent.help_epilogue = command.epilogue
            else:
                details: dict[str, Any] = {"help": command.summary, "help_epilogue": command.epilogue, **place}
                parent.command(command.function(), name=name, sort_key=len(list(parent)), **details)
    return app


def print_completion(options: CompletionOptions) -> None:
    """Print a script that completes commands, options and values in a shell: `disco completion`."""
    script = make_app().generate_completion(shell=options.shell)  # type: ignore[arg-type]
    show(options, {"shell": options.shell, "script": script}, script.rstrip())
