"""Weights that come with the package: files in `weights/`, each next to a card in JSON that says what they are."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("weights")


class Card(NamedTuple):
    """What is known of a file of weights."""

    file: str
    sha256: str
    about: str
    source: str
    license: str
    license_file: str  # with its text, in the same folder
    made: str
    scores: dict[str, str]  # of the models that have these weights, by name


@cache
def cards() -> dict[str, Card]:
    """Return the cards of all weights that come with the package, by the names of the models that have them."""
    read = [_read_card(path) for path in sorted(FOLDER.glob("*.json"))]
    return {model: card for card in read for model in card.scores}


def _read_card(path: Path) -> Card:
    try:
        return Card(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): install scale-disco again") from error


def packaged_weights(model: str) -> Path:
    """Return the file of the weights of a model that come with the package.

    Example:
        >>> packaged_weights("mnist/disco").name
        'mnist-disco.safetensors'
    """
    card = cards().get(model)
    if card is None:
        raise ValueError(f"{model}: no weights come with the package, only those of {', '.join(sorted(cards()))}")
    path = FOLDER / card.file
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != card.sha256:
        raise ValueError(f"{model}: {path} is missing or damaged: install scale-disco again")
    return path
