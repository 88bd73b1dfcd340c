"""`disco models`: the networks by name, and what is known of weights that come with the package."""

from difflib import get_close_matches

from ..models import list_models
from ..models.packaged import FOLDER, Card, cards
from ..tasks.io.terminal import show
from .options import ModelsOptions


def run(options: ModelsOptions) -> None:
    """Print the models and the cards of their weights, in full if models are named."""
    names = _chosen(options.names)
    packaged = {name: card for name in names if (card := cards().get(name))}
    lines = [f"{name:{max(map(len, names))}}  {_summary(name, packaged.get(name))}".rstrip() for name in names]
    if options.names:
        for card in {card.file: card for card in packaged.values()}.values():
            about = {key: value for key, value in card._asdict().items() if key not in ("scores", "license_file")}
            lines += ["", *(f"{key}: {value}" for key, value in about.items())]
    lines += ["", f"create_model(NAME, pretrained=True) has the weights that are listed here; they are in {FOLDER}"]
    models = [{"name": name, "weights": card._asdict() if (card := packaged.get(name)) else None} for name in names]
    show(options, {"folder": str(FOLDER), "models": models}, "\n".join(lines))


def _summary(name: str, card: Card | None) -> str:
    if card is None:
        return ""
    return f"{card.scores[name]} ({(FOLDER / card.file).stat().st_size / 1e6:.1f} MB, {card.license})"


def _chosen(words: tuple[str, ...]) -> list[str]:
    """Return the models that words name, by themselves or by their family; all without words."""
    names = list_models()
    known = [*names, *(name.partition("/")[0] for name in names)]
    for word in words:
        if word not in known:
            hint = "".join(f", did you mean {near}?" for near in get_close_matches(word, known, 1))
            raise ValueError(f"no model or family {word}{hint or '; disco models lists all'}")
    return [name for name in names if not words or name in words or name.partition("/")[0] in words]
