from __future__ import annotations

import errno
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from scale_disco import (
    Basis,
    DiscreteBasis,
    HermiteBasis,
    Scales,
    Stencil,
    equivariance_error,
    hermite_mixing_preset,
)
from scale_disco.functional import scale_lift
from tests.conftest import CUBE_ROOT_2, ROOT_2


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_dense_packing_acts_like_the_stencils(kernel_size, dims):
    basis = DiscreteBasis(kernel_size, Scales.geometric(2**0.5, 4), spatial_dims=dims)
    images = torch.randn(2, 1, *[11] * dims, dtype=torch.float64)
    conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    for k, stencil in enumerate(basis.stencils):
        kernel = basis.dense()[:, k, None]
        side = kernel.shape[-1]
        padded = F.pad(images, ((side - 1) // 2, side // 2) * dims)
        torch.testing.assert_close(stencil.apply(images), conv(padded, kernel))


def test_dense_packing_of_the_paper():
    dense = DiscreteBasis(3, [1, 2]).dense()
    assert dense.shape == (9, 2, 5, 5)
    assert dense[0, 1, 0, 0] == 1
    assert dense[0, 0, 1, 1] == 1
    assert dense.sum() == 18


def test_from_dense_cuts_every_scale_to_its_support():
    basis = DiscreteBasis(3, ROOT_2)
    again = Basis.from_dense(basis.dense().float(), ROOT_2, kernel_size=3)
    assert again.support == (3, 7, 5)
    torch.testing.assert_close(again.dense(), basis.dense(), atol=1e-7, rtol=0)


def test_mix_is_the_same_at_every_scale():
    basis = DiscreteBasis(3, ROOT_2)
    matrix = torch.randn(4, 9, dtype=torch.float64)
    mixed = basis.mix(matrix)
    torch.testing.assert_close(mixed.dense(), torch.einsum("fg,gskl->fskl", matrix, basis.dense()))
    assert [s.dilation for s in mixed.stencils] == [1, 1, 2]
    assert mixed.spec != basis.mix(matrix + 1).spec
    # A rotation of the functions does not change the error of independent random weights.
    rotation = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64))[0]
    assert basis.mix(rotation).error == pytest.approx(basis.error)


def test_mix_refuses_a_matrix_of_another_shape():
    with pytest.raises(ValueError, match=r"expected a real matrix \[F', 9\] .* of shape \(4, 25\)"):
        DiscreteBasis(3, ROOT_2).mix(torch.zeros(4, 25))
    with pytest.raises(ValueError, match=r"expected a real matrix .* got torch.complex64"):
        DiscreteBasis(3, ROOT_2).mix(torch.zeros(4, 9, dtype=torch.complex64))
    assert DiscreteBasis(3, ROOT_2).mix(np.eye(9)).num_functions == 9


def test_normalized_divides_by_the_norm_at_the_first_scale():
    basis = DiscreteBasis(3, ROOT_2).mix(2 * torch.eye(9)).normalized()
    torch.testing.assert_close(basis.dense(), DiscreteBasis(3, ROOT_2).dense())
    with pytest.raises(ValueError, match="vanishes at the first scale"):
        DiscreteBasis(3, ROOT_2).mix(torch.zeros(2, 9)).normalized()


@pytest.mark.parametrize(
    ("scales", "mode", "antialias"),
    [(ROOT_2, "cubic", False), ([1, 1.3, 1.7, 2.6], "linear", True), ([1, 1.5, 2], "nearest", False)],
)
def test_predicted_error_equals_that_measured_on_white_noise(scales, mode, antialias):
    """The formula against a large sample, for a solved and for a poor basis."""
    images = torch.randn(8, 1, 192, 192, dtype=torch.float64)
    operator = {"mode": mode, "antialias": antialias}
    solved = DiscreteBasis(3, scales, prior="white", **operator)
    poor = Basis(solved.scales, [solved.stencils[0]] * len(solved.scales), kernel_size=3, spec=solved.spec)
    weight = torch.eye(9, dtype=torch.float64)[:, None]
    for basis in (solved, poor):
        measured = equivariance_error(lambda x, basis=basis: scale_lift(x, weight, basis), images, scales, **operator)
        assert measured == pytest.approx(basis.error, rel=0.04)


def test_pair_errors_for_another_prior_or_operator():
    basis = DiscreteBasis(3, ROOT_2)
    white = basis.pair_errors(prior="white")
    assert white[1, 0][0] / white[1, 0][1] > basis.pair_errors()[1, 0][0] / basis.pair_errors()[1, 0][1]
    linear, antialiased = basis.pair_errors(mode="bilinear"), basis.pair_errors(antialias=True)
    assert linear[1, 0] != antialiased[1, 0] != basis.pair_errors()[1, 0]


def test_pair_errors_of_rounded_scales_at_exact_ones():
    exact = DiscreteBasis(3, ROOT_2)
    rounded = Basis([1, 1.41, 2], exact.stencils, kernel_size=3)
    assert len(rounded.scales.steps()) == 3
    assert rounded.pair_errors(scales=ROOT_2) == exact.pair_errors()
    with pytest.raises(ValueError, match="expected 3 scales"):
        rounded.pair_errors(scales=[1, 2])


def test_changed_values_change_the_digest(tmp_path):
    basis = DiscreteBasis(3, ROOT_2)
    before = basis.digest
    basis.stencils[1].functions[0, 0, 0] += 1
    assert basis.digest != before
    basis.save(tmp_path / "basis.safetensors")
    assert Basis.load(tmp_path / "basis.safetensors").digest == basis.digest


def test_a_saved_basis_is_loaded_unchanged(tmp_path):
    for basis in (
        DiscreteBasis(3, ROOT_2),
        DiscreteBasis(2, [1, 1.3], spatial_dims=3, prior=torch.rand(1, 1, 20, 20, 20)),
        DiscreteBasis(3, ROOT_2).mix(torch.rand(5, 9)).normalized(),
    ):
        path = tmp_path / "basis.safetensors"
        basis.save(path)
        again = Basis.load(path)
        assert again.spec == basis.spec
        assert again.digest == basis.digest
        assert again.scales == basis.scales
        assert torch.equal(again.dense(), basis.dense())
    assert list(tmp_path.iterdir()) == [path]


def test_a_loaded_discrete_basis_keeps_its_class(tmp_path):
    path = tmp_path / "basis.safetensors"
    DiscreteBasis(3, ROOT_2, prior="white").save(path)
    again = DiscreteBasis.load(path)
    assert isinstance(again, DiscreteBasis)
    assert again.error == DiscreteBasis(3, ROOT_2, prior="white").error


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "basis.safetensors"
    DiscreteBasis(3, ROOT_2).save(path)
    before = path.read_bytes()

    def full(file, content):
        file.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        DiscreteBasis(3, ROOT_2, prior="white").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def read(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return load_file(path), json.loads(raw[8 : 8 + length])["__metadata__"]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "basis.safetensors"
    DiscreteBasis(3, ROOT_2).save(path)
    return path


def test_changed_values_are_refused(saved):
    tensors, metadata = read(saved)
    tensors["1"][0, 0, 0] += 1e-6
    save_file(tensors, saved, metadata)
    with pytest.raises(ValueError, match=r"Basis.load: refused .*its values do not match its digest"):
        Basis.load(saved)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scales", [1, 1.5, 2], "digest"),
        ("scales", [2, 1, 3], "ascending"),
        ("support", [3, 9, 3], "spec has support"),
        ("dilation", [1, 1], "one stencil per scale"),
        ("dilation", [1, 1, 0], "dilation must be"),
        ("prior", "white", "digest"),
        ("kernel_size", 5, "digest"),
    ],
)
def test_a_changed_spec_is_refused(saved, field, value, message):
    tensors, metadata = read(saved)
    metadata["spec"] = json.dumps({**json.loads(metadata["spec"]), field: value})
    save_file(tensors, saved, metadata)
    with pytest.raises(ValueError, match=message) as caught:
        Basis.load(saved)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path, saved):
    save_file({"x": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="its format is None"):
        Basis.load(tmp_path / "weights.safetensors")
    with pytest.raises(FileNotFoundError, match="no such file"):
        Basis.load(tmp_path / "missing.safetensors")
    with pytest.raises(ValueError, match=r"refused .*: it is a folder"):
        Basis.load(tmp_path)
    tensors, metadata = read(saved)
    save_file(tensors, saved, {**metadata, "spec": "[]"})
    with pytest.raises(ValueError, match="refused"):
        Basis.load(saved)
    DiscreteBasis(3, ROOT_2).mix(torch.rand(5, 9)).save(saved)
    with pytest.raises(ValueError, match="it contains a recombined discrete basis, expected discrete"):
        DiscreteBasis.load(saved)


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_files_raise_a_one_line_error(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "basis.safetensors"
    DiscreteBasis(2, [1, 1.5], spatial_dims=1).save(path)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        index = data.draw(st.integers(0, len(raw) - 1))
        raw[index] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(raw))
    with pytest.raises(ValueError, match=r"\ABasis.load: refused [^\n]*\Z"):
        Basis.load(path)


@pytest.mark.parametrize(
    ("stencils", "message"),
    [
        ([Stencil(torch.tensor(1.0))] * 2, r"with 1 to 3 equal sides, .*, got shape \(\)"),
        ([Stencil(torch.rand(4))] * 2, r"with 1 to 3 equal sides, .*, got shape \(4,\)"),
        ([Stencil(torch.rand(4, 3, 2).double())] * 2, r"equal sides, .*, got shape \(4, 3, 2\)"),
        (
            [Stencil(torch.rand(4, 3, 3).double()), Stencil(torch.rand(5, 3, 3).double())],
            r"the same F and axes .*, got shape \(5, 3, 3\)",
        ),
        ([Stencil(torch.full((1, 1), float("nan")).double())] * 2, "NaN"),
        ([Stencil(torch.rand(4, 3, 3).double(), dilation=0)] * 2, "dilation must be an integer >= 1, got 0"),
        ([Stencil(torch.rand(4, 3, 3).double())], "one stencil per scale, 2, got 1"),
    ],
)
def test_invalid_stencils_raise_a_one_line_error(stencils, message):
    with pytest.raises(ValueError, match=message):
        Basis([1, 2], stencils, kernel_size=3)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_power_of_pixels_is_their_number(dims):
    assert DiscreteBasis(3, [1, 2, 4], spatial_dims=dims).power == pytest.approx(3**dims)


def test_power_is_quadratic_in_the_functions():
    basis = HermiteBasis.preset("stl10")
    doubled = basis.mix(2 * torch.eye(basis.num_functions))
    assert doubled.power == pytest.approx(4 * basis.power)


def test_smooth_functions_amplify_smooth_features():
    mixed = DiscreteBasis(7, CUBE_ROOT_2).mix(hermite_mixing_preset("mnist")).normalized()
    assert mixed.power > 2 * 49 > 1.5 * DiscreteBasis(7, CUBE_ROOT_2).power


def test_a_vanishing_basis_has_no_power():
    with pytest.raises(ValueError, match="vanish at a scale"):
        _ = Basis([1], [Stencil(torch.zeros(1, 3, 3))], kernel_size=3).power


def test_bases_are_on_the_cpu_within_the_meta_device():
    with torch.device("meta"):
        solved, sampled = DiscreteBasis(3, [1, 1.2345]), HermiteBasis.preset("mnist")
        assert solved.error > 0
        assert sampled.power > 0
        mixed = solved.mix(hermite_mixing_preset("stl10")).normalized()
    assert mixed.stencils[1].functions.device.type == "cpu"
    assert solved.stencils[1].functions.device.type == "cpu"
    torch.testing.assert_close(sampled.stencils[1].functions, HermiteBasis.preset("mnist").stencils[1].functions)


def test_sources_of_dilations_are_their_roots():
    assert DiscreteBasis(3, [1, 2**0.5, 2, 8**0.5]).sources == (0, 1, 0, 1)
    assert HermiteBasis.preset("stl10").sources == (0, 1, 2)
    assert DiscreteBasis(1, [1, 1.3, 2]).pointwise
    assert not DiscreteBasis(3, [1, 2]).pointwise
