from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from scale_disco.tasks.io.images import _eight_bits, find_images, is_image, read_image, shrink, size_of

Image = pytest.importorskip("PIL.Image")

WIDTH, HEIGHT = 48, 36


def colors(width=WIDTH, height=HEIGHT):
    """Smooth colors that differ in every corner, uint8 [H, W, 3]."""
    down, across = np.mgrid[:height, :width]
    stack = [across * 255 / (width - 1), down * 255 / (height - 1), 255 - across * 255 / (width - 1)]
    return np.stack(stack, -1).round().astype(np.uint8)


def saved(path, image, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize(
    ("suffix", "about", "tolerance"),
    [
        (".png", {}, 0),
        (".bmp", {}, 0),
        (".tif", {}, 0),
        (".ppm", {}, 0),
        (".webp", {"lossless": True}, 0),
        (".jpg", {"quality": 95}, 12),
        (".JPEG", {"quality": 95}, 12),
        (".jpg", {"quality": 95, "format": "MPO", "save_all": True, "append_images": [Image.new("RGB", (9, 9))]}, 12),
    ],
)
def test_every_format_is_read(suffix, about, tolerance, tmp_path):
    path = saved(tmp_path / f"a{suffix}", Image.fromarray(colors()), **about)
    image = read_image(path)
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, HEIGHT, WIDTH))
    assert image.is_contiguous()
    assert np.abs(image.numpy().astype(int) - colors().transpose(2, 0, 1)).max() <= tolerance
    assert size_of(path) == (WIDTH, HEIGHT)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_mode_becomes_rgb(mode, tmp_path):
    gray = Image.fromarray(colors()).convert("L")
    if mode == "I;16":
        image = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    elif mode == "I":
        image = Image.fromarray(np.asarray(gray).astype(np.int32) * 257)
    elif mode == "F":
        low, high = gray.getextrema()
        image = Image.fromarray((np.asarray(gray).astype(np.float32) - low) / (high - low) * 7 - 3)
    else:
        image = Image.fromarray(colors()).convert(mode)
    assert image.mode == mode
    pixels = read_image(saved(tmp_path / "a.tif", image)).float()
    expected = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float()
    if mode in ("I;16", "I", "F"):
        expected = torch.from_numpy(np.array(gray)).expand(3, HEIGHT, WIDTH).float()
    if mode == "F":  # stretched over the whole range
        expected = (expected - expected.min()) * 255 / (expected.max() - expected.min())
    assert (pixels - expected).abs().max() <= 1


@pytest.mark.parametrize("kind", ["RGBA", "LA", "P", "RGB"])
def test_transparent_pixels_are_white(kind, tmp_path):
    path = tmp_path / "a.png"
    if kind == "RGB":  # one color is transparent
        saved(path, Image.new("RGB", (40, 40), (9, 8, 7)), transparency=(9, 8, 7))
    elif kind == "P":
        paletted = Image.new("RGB", (40, 40), (9, 8, 7)).quantize(4)
        saved(path, paletted, transparency=paletted.getpixel((0, 0)))
    else:
        saved(path, Image.new("RGBA", (40, 40), (0, 0, 0, 0)).convert(kind))
    assert read_image(path).unique().tolist() == [255]
    half = read_image(saved(tmp_path / "half.png", Image.new("RGBA", (40, 40), (255, 0, 0, 128))))
    assert half[:, 0, 0].tolist() == [255, 127, 127]


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path):
    ramp = np.tile(np.linspace(0, 65535, 40).round().astype(np.uint16), (40, 1))
    image = read_image(saved(tmp_path / "a.png", Image.fromarray(ramp)))
    assert image[0, 0].tolist() == [round(value / 257) for value in ramp[0].tolist()]
    dark = read_image(saved(tmp_path / "b.png", Image.fromarray(ramp // 16)))
    assert dark.max() == 16  # a dark image stays dark
    deep = read_image(saved(tmp_path / "c.tif", Image.fromarray(ramp.astype(np.int32) * 100 - 7)))
    assert (deep[0, 0, 0], deep[0, 0, -1]) == (0, 255)


@given(arrays.arrays(st.sampled_from([np.float32, np.int32, np.uint16]), (4, 5)))
def test_any_values_become_eight_bits_in_their_order(values):
    known = np.isfinite(values.astype(float))
    if not known.any():
        with pytest.raises(ValueError, match="no finite values"):
            _eight_bits(values)
        return
    eight = _eight_bits(values)
    assert eight.dtype == np.uint8
    order = np.argsort(values[known], kind="stable")
    assert (np.diff(eight[known][order].astype(int)) >= 0).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_by_exif(orientation, tmp_path):
    upright = Image.fromarray(colors())
    turns = {
        2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90", 7: "TRANSVERSE",
        8: "ROTATE_270",
    }  # fmt: skip
    stored = upright.transpose(getattr(Image.Transpose, turns[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / "a.png", stored, exif=exif)
    assert torch.equal(read_image(path), torch.from_numpy(colors()).permute(2, 0, 1))
    assert size_of(path) == (WIDTH, HEIGHT)
    jpeg = saved(tmp_path / "a.jpg", stored.resize((8 * stored.width, 8 * stored.height)), exif=exif, quality=95)
    small = read_image(jpeg, WIDTH)  # the decoder shrinks as well
    assert (small.float() - torch.from_numpy(colors()).permute(2, 0, 1).float()).abs().mean() < 4


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_large_images_are_shrunk_without_aliasing(suffix, tmp_path):
    stripes = np.zeros((400, 1000, 3), np.uint8)
    stripes[:, ::2] = 255
    path = saved(tmp_path / f"a{suffix}", Image.fromarray(stripes))
    assert read_image(path, 1000).shape == read_image(path).shape == (3, 400, 1000)
    small = read_image(path, 300)
    assert small.shape == (3, 120, 300)
    assert (small[:, :, 5:-5].float() - 127.5).abs().max() < 4
    assert size_of(path) == (1000, 400)


def test_frames_are_shrunk_alike(tmp_path):
    image = colors(300, 200)
    path = saved(tmp_path / "a.png", Image.fromarray(image))
    frame = torch.from_numpy(image).permute(2, 0, 1)
    assert torch.equal(shrink(frame, 77), read_image(path, 77))
    assert shrink(frame, 300) is frame


@pytest.mark.parametrize("size", [(1, 1), (7, 200), (200, 31)])
def test_tiny_images_are_refused(size, tmp_path):
    path = saved(tmp_path / "a.png", Image.new("RGB", size))
    with pytest.raises(ValueError, match=rf"^.*a.png is too small: {size[0]} x {size[1]} pixels, needs 32 each"):
        read_image(path, 1024)
    assert read_image(path, shortest=1).shape == (3, *size[::-1])


def test_a_strip_that_shrinks_to_a_line_is_refused(tmp_path):
    path = saved(tmp_path / "a.png", Image.new("RGB", (4000, 100)))
    with pytest.raises(ValueError, match=r"is too small: 400 x 10 pixels after shrinking to 400, needs 32 each way"):
        read_image(path, 400)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif", ".bmp"])
@pytest.mark.parametrize("fraction", [0.0, 0.02, 0.3, 0.7])
def test_damaged_files_are_one_line(suffix, fraction, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    path = saved(tmp_path / f"a{suffix}", Image.fromarray(noise))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(ValueError, match=r"^cannot read .*a\.") as caught:
        read_image(path, 100)
    message = str(caught.value)
    assert "\n" not in message
    assert message.count(str(path)) == 1
    assert fraction or message.endswith("the file is empty")


@pytest.mark.parametrize("content", [b"not an image at all", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n"])
def test_other_files_are_not_read(content, tmp_path):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot read .*: not an image in a supported format \(BMP, JPEG, "):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("side", [10_000, 60_000])
def test_decompression_bombs_are_refused(side, tmp_path):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
    for name in ("a.png", "a"):
        (tmp_path / name).write_bytes(png)
        assert is_image(tmp_path / name)
        with pytest.raises(ValueError, match=r"cannot read .*: more than [\d,]+ pixels"):
            read_image(tmp_path / name, 100)


def test_the_limit_of_pixels_does_not_depend_on_pillow(tmp_path, monkeypatch):
    """Other code in the process may have disabled that of Pillow."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").shape == (3, 48, 64)
    Image.new("1", (10_000, 10_000)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="more than 89,478,485 pixels"):
        read_image(tmp_path / "a.png")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^no file .*nothing.png"):
        read_image(tmp_path / "nothing.png")
    with pytest.raises(FileNotFoundError, match=r"^no file "):
        read_image(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^no folder .*nowhere"):
        find_images(tmp_path / "nowhere")


def test_images_in_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^no images in .* \(looked for .bmp, .jpeg"):
        find_images(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "folder.png").mkdir()
    for name in ("b.png", "a.JPG", "c.txt", ".d.png", "deep/e.tiff"):
        (tmp_path / name).touch()
    assert find_images(tmp_path) == [tmp_path / "a.JPG", tmp_path / "b.png"]
    assert find_images(tmp_path, recursive=True) == [
        tmp_path / "a.JPG",
        tmp_path / "b.png",
        tmp_path / "deep" / "e.tiff",
    ]
    with pytest.raises(FileNotFoundError, match=r"no images in .*folder.png and below it"):
        find_images(tmp_path / "folder.png", recursive=True)


def test_images_are_distinguished_from_videos(tmp_path):
    for name in ("photo", "photo.jfif"):
        Image.fromarray(colors()).save(tmp_path / name, "JPEG")
        assert is_image(tmp_path / name)
    (tmp_path / "video.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    assert not is_image(tmp_path / "video.mp4")
    (tmp_path / "empty.png").touch()
    assert is_image(tmp_path / "empty.png")
