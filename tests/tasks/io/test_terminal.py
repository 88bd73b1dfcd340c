"""CLI conventions: signals."""

import signal
import time
import weakref

import pytest

from scale_disco.cli import main
from scale_disco.tasks.equivariance import command as cli_equivariance
from tests.conftest import PATIENCE


class _Referent:
    """An object with weak references."""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_in_a_callback_of_a_weak_reference_stops_the_command(name, capsys, monkeypatch):
    number = getattr(signal, name)

    def run(options):
        referent = _Referent()
        reference = weakref.ref(referent, lambda _: signal.raise_signal(number))
        del referent  # Python drops what the callback raises
        assert reference() is None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            time.sleep(0.01)

    monkeypatch.setattr(cli_equivariance, "run", run)
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of shells
    try:
        assert main(["equivariance"]) == 128 + number
    finally:
        signal.signal(signal.SIGINT, outside)
    assert capsys.readouterr().err == "\ndisco equivariance: stopped\n"
