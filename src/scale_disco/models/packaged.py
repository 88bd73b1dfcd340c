"""Weights that come with the package: files in `weights/`, each next to a card in JSON that says what they are."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("weights")


class Card(NamedTuple):
    """What is known of a file of weights.

    Args:
        file: Its name in the folder of the card.
        sha256: Its checksum.
        about: What it is.
        source: Where the weights are from.
        license: Their license.
        license_file: Name of the license's text in that folder.
        made: How the file was made.
        scores: What each model that has these weights scores, by its name.
    """

    file: str
    sha256: str
    about: str
    source: str
    license: str
    license_file: str
    made: str
    scores: dict[str, str]


@cache
def cards() -> dict[str, Card]:
    """Return the cards of all weights that come with the package, by the names of the models that have them."""
    read = [Card(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(FOLDER.glob("*.json"))]
    return {model: card for card in read for model in card.scores}


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
