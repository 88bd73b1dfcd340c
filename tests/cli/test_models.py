"""`disco models`: which networks there are, and which weights come with the package."""

from __future__ import annotations

import json

from scale_disco.cli import main
from scale_disco.models import list_models
from scale_disco.models.packaged import cards


def printed(capsys, *words, code=0):
    capsys.readouterr()
    assert main(["models", *words]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_all_models_are_listed_and_those_with_weights_have_a_score(capsys):
    lines = printed(capsys).splitlines()
    shown = {line.split()[0]: line for line in lines if line and "create_model" not in line}
    assert list(shown) == list_models()
    for name, line in shown.items():
        card = cards().get(name)
        assert (line == name) if card is None else (card.scores[name] in line and f", {card.license})" in line)


def test_named_models_are_shown_with_their_card(capsys):
    out = printed(capsys, "track/disco", "mnist")
    assert "track/siamfc" not in out
    assert out.count("sha256: ") == 3
    for name in ("track/disco", "mnist/disco", "mnist/cnn"):
        for text in (cards()[name].source, cards()[name].made, cards()[name].sha256):
            assert text in out
    assert "mnist/sicnn\n" in out


def test_json_has_the_cards(capsys):
    document = json.loads(printed(capsys, "scene", "--json"))
    assert [model["name"] for model in document["models"]] == list_models("scene")
    weights = {model["name"]: model["weights"] for model in document["models"]}
    assert weights.pop("scene/shift") == cards()["scene/shift"]._asdict()
    assert set(weights.values()) == {None}


def test_a_wrong_name_is_corrected(capsys):
    line = printed(capsys, "mnist/disko", code=1)
    assert line == "disco models: no model or family mnist/disko, did you mean mnist/disco?\n"
    assert printed(capsys, "xyzzy", code=1).endswith("no model or family xyzzy; disco models lists all\n")
