"""Maps that a program made from a seed, in front of a network: any image in, by a rule that looks at this image alone."""

import hashlib
import itertools
import math
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import ModuleType

import make_drawings
import make_photographs
import numpy as np
import pytest
import torch
from make_drawings import principal_axes
from make_photographs import SIZE

from dpltm.errors import DataError
from dpltm.features import (
    DRAWINGS_DIGEST,
    DRAWINGS_FILE,
    MAPS,
    PHOTOGRAPHS_DIGEST,
    PHOTOGRAPHS_FILE,
    Choice,
    drawings,
    photographs,
)
from dpltm.features.drawings import UNITS, Drawings, as_drawings
from dpltm.features.photographs import PATCH, WAVES, Photographs, as_photographs, turned, units_of
from dpltm.records import files
from maps import make_feature_map
from refusals import refused

Tensors = dict[str, np.ndarray]


SEALED = """
import sys
sys.path.insert(0, {folder!r})
import {module} as learning
{fewer}
learning.make(9, 1)  # what is imported on the way
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event in ("open", "socket.connect", "subprocess.Popen") else None)
made = learning.make(3, 3)
print(seen)
sys.stdout.flush()
for name in sorted(made):
    sys.stdout.buffer.write(made[name].tobytes())
"""


def check_made(
    learning: ModuleType, fewer: dict[str, int], monkeypatch: pytest.MonkeyPatch, drawn: str
) -> tuple[Tensors, list[str]]:
    """The seed decides every bit, in whatever process and beside whatever threads; no file, network or process is opened.

    Args:
        learning: the module that makes them.
        fewer: numbers of ``learning`` that make it quick.
        monkeypatch: of the test.
        drawn: name of a tensor that differs from seed to seed.

    Returns:
        What seed 3 gives in three steps, and what it told who watched.
    """
    for name, number in fewer.items():
        monkeypatch.setattr(learning, name, number)
    notes: list[tuple[int, str]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = learning.make(3, 3, lambda done, note: notes.append((done, note)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    program = SEALED.format(
        folder=str(Path(str(learning.__file__)).parent),
        module=learning.__name__,
        fewer="\n".join(f"learning.{name} = {number}" for name, number in fewer.items()),
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    seen, _, again = done.stdout.partition(b"\n")
    assert seen == b"[]"
    assert again == b"".join(first[name].tobytes() for name in sorted(first))
    other = learning.make(4, 1)
    assert first.keys() == other.keys()
    assert not np.array_equal(first[drawn], other[drawn])
    assert {value.dtype for value in first.values()} == {np.dtype("float16")}
    assert all(np.isfinite(value).all() for value in first.values())
    assert [done for done, _ in notes] == [1, 2, 3]
    return first, [note for _, note in notes]


def damage(file: str, what: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a bundled file ``changed`` by one bit, or ``gone``."""
    if what == "changed":
        body = bytearray(resources.files("dpltm.features").joinpath(file).read_bytes())
        body[-1] ^= 1
        (folder / file).write_bytes(bytes(body))
    monkeypatch.setattr(files.resources, "files", lambda _: folder)


BOTH = pytest.mark.parametrize("name", ["drawings", "photographs"])


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


@BOTH
@pytest.mark.parametrize("shape", [(7, 28), (28, 5, 3), (28, 28, 2), (28, 28, 4), (784,), (2, 3, 4, 5)])
def test_what_is_no_such_image(name, shape):
    message = refused(lambda: make_feature_map(name, shape, (0.0, 1.0)).features)
    assert message.startswith(f"`features`: {name} takes images")


@pytest.mark.one_of(5)
@BOTH
@pytest.mark.parametrize("shape", [(8, 8), (8, 13, 3), (28, 28, 1), (32, 32, 3), (64, 64, 3), (64, 48)])
def test_any_size_is_taken(name, shape):
    x = np.concatenate([images(2, *shape), np.zeros((1, *shape), np.uint8)])
    features = make_feature_map(f"{name}:20", shape, (0.0, 255.0))(x)
    assert features.shape == (3, 20)
    assert features.isfinite().all()


@BOTH
def test_values_that_may_be_negative_are_as_bright(name):
    x = images(5, 32, 32, 3).astype(np.float32)
    plain, signed = (make_feature_map(name, (32, 32, 3), bounds) for bounds in ((0.0, 255.0), (-1.0, 1.0)))
    torch.testing.assert_close(signed(x / 127.5 - 1), plain(x), rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", [Drawings, Photographs])
def test_fewer_directions_are_the_first_of_them(kind):
    x = torch.from_numpy(images(4, 32, 32, 3) / 255).float()
    many, few = (kind(count, (32, 32, 3))(x) for count in (400, 30))
    torch.testing.assert_close(few, many[:, :30])


def test_the_file_is_part_of_the_id():
    found = make_feature_map("drawings", (28, 28), (0.0, 255.0))
    kind = replace(MAPS["drawings"], digest="0" * 64)
    assert replace(found, base=Choice(((kind, (400,)),))).id != found.id


@pytest.mark.parametrize(
    ("file", "digest", "most"), [(DRAWINGS_FILE, DRAWINGS_DIGEST, 2), (PHOTOGRAPHS_FILE, PHOTOGRAPHS_DIGEST, 3)]
)
def test_what_is_bundled_is_what_the_digest_says(file, digest, most):
    body = resources.files("dpltm.features").joinpath(file).read_bytes()
    assert hashlib.sha256(body).hexdigest() == digest
    assert len(body) <= most * 2**20


@pytest.mark.parametrize("what", ["changed", "gone"])
@pytest.mark.parametrize(("made", "file"), [(drawings, DRAWINGS_FILE), (photographs, PHOTOGRAPHS_FILE)])
def test_a_damaged_file_is_refused(made, file, what, tmp_path, monkeypatch):
    damage(file, what, tmp_path, monkeypatch)
    made._bundled.cache_clear()
    with pytest.raises(
        DataError, match=f"{file}, which comes with dpltm, is not what was bundled; install dpltm again"
    ):
        make_feature_map(file.partition(".")[0], (32, 32, 3), (0.0, 255.0))  # before anything is computed, or spent


@pytest.mark.long
def test_the_seed_decides_every_bit_of_drawings_and_nothing_is_read(monkeypatch):
    first, notes = check_made(make_drawings, {"SAMPLE": 80, "KINDS": 4}, monkeypatch, "layers.0.weight")
    assert first["directions"].shape == (80, UNITS), "as many as drawings, where those are fewer than DIRECTIONS"
    assert all(note.endswith("% recognised") for note in notes)


@pytest.mark.long
def test_the_seed_decides_every_bit_of_photographs_and_nothing_is_read(monkeypatch):
    first, notes = check_made(make_photographs, {"SAMPLE": 80, "PATCHES": 2000}, monkeypatch, "filters")
    assert first["filters"].shape == (SIZE, 3, PATCH, PATCH)
    assert first["directions"].shape == (2, 80 * len(WAVES), SIZE), "as many as averages, where those are fewer"
    shares = [int(note.removesuffix("% alike")) for note in notes]
    assert shares == sorted(shares), "k-means never gets worse"


# Drawings


def drawing() -> torch.Tensor:
    """A bright ring on black, 28 by 28."""
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    distance = ((rows - 13.5) ** 2 + (columns - 13.5) ** 2).sqrt()
    return torch.exp(-((distance - 8) ** 2) / 8)


def test_a_drawing_is_taken_as_it_is_bright_on_dark_in_grey_and_in_its_proportions():
    image = drawing()
    assert torch.equal(as_drawings(image[None])[0, 0], image)
    assert torch.equal(as_drawings(image[None, :, :, None])[0, 0], image)
    both = as_drawings(torch.stack([image, 1 - image]))
    torch.testing.assert_close(both[0], both[1])
    coloured = torch.stack([image, torch.zeros(28, 28), image], dim=-1)
    torch.testing.assert_close(as_drawings(coloured[None])[0, 0], image * (0.299 + 0.114))
    tall = torch.zeros(1, 28, 14)
    tall[0, :, 4:10] = 1.0
    made = as_drawings(tall)[0, 0]
    assert made[:, :11].sum() == made[:, 17:].sum() == 0
    assert made[:, 11:17].mean() == 1


# Photographs


def test_grey_is_three_equal_colours():
    x = torch.rand(2, 32, 32)
    assert torch.equal(as_photographs(x), as_photographs(x[..., None].expand(-1, -1, -1, 3)))


def test_the_mirror_image_says_the_same():
    x = images(3, 32, 32, 3)
    found = make_feature_map("photographs", (32, 32, 3), (0.0, 255.0))
    torch.testing.assert_close(found(x), found(x[:, :, ::-1].copy()), rtol=0, atol=1e-4)


def test_units_are_those_of_the_definition():
    """Patch by patch, in the words of the module: contrast, comparison, threshold, means by six waves, both ways."""
    generator = torch.Generator().manual_seed(2)
    image, filters = torch.rand(3, 8, 8, generator=generator), torch.randn(4, 3, PATCH, PATCH, generator=generator)
    filters, offset = filters - filters.mean((1, 2, 3), keepdim=True), torch.randn(4, generator=generator)
    # at three places
    lines = {0: (1.0, 1.0, 1.0), 1: (1.5**0.5, 0.0, -(1.5**0.5)), 2: (0.5**0.5, -(2**0.5), 0.5**0.5)}
    shares = {0: 1.0, 1: math.exp(-0.35), 2: math.exp(-1.4)}
    total = torch.zeros(8, 6)
    for seen, row, column in itertools.product((image, image.flip(2)), range(3), range(3)):
        patch = seen[:, row : row + PATCH, column : column + PATCH]
        patch = (patch - patch.mean()) / (patch.var(correction=0) + 0.01).sqrt()
        like = (filters * patch).sum((1, 2, 3)) - offset
        least = 0.4 * like.square().mean().sqrt()
        units = torch.cat([like - least, -like - least]).clamp_min(0)
        for at, (down, across) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2)]):
            here = shares[down] * lines[down][row] * shares[across] * lines[across][column]
            total[:, at] += units * here / 9 / 2
    alike, opposite = total.split(4)
    expected = torch.stack([alike - opposite, alike + opposite])
    torch.testing.assert_close(units_of(image[None], filters, offset)[0], expected, rtol=1e-4, atol=1e-4)


def test_images_beside_it_change_no_bit_of_an_image():
    generator = torch.Generator().manual_seed(3)
    images, filters = (
        torch.rand(3, 3, 32, 32, generator=generator),
        torch.randn(8, 3, PATCH, PATCH, generator=generator),
    )
    together = units_of(images, filters, torch.zeros(8))
    for at, image in enumerate(images):
        assert torch.equal(units_of(image[None], filters, torch.zeros(8))[0], together[at])


def test_images_may_want_a_gradient():
    """As one who asks which pixels an exported network goes by does."""
    generator = torch.Generator().manual_seed(5)
    images, filters = torch.rand(2, 3, 8, 8, generator=generator), torch.randn(4, 3, PATCH, PATCH, generator=generator)
    wanting = images.clone().requires_grad_()
    found = units_of(wanting, filters, torch.zeros(4))
    torch.testing.assert_close(found, units_of(images, filters, torch.zeros(4)))
    found.square().sum().backward()
    assert wanting.grad.isfinite().all()
    assert wanting.grad.any()


def test_units_are_turned_within_a_wave():
    """By loops: in each wave, with the sign and without, along each direction."""
    generator = torch.Generator().manual_seed(4)
    units, directions = torch.randn(3, 2, 5, 6, generator=generator), torch.randn(2, 2, 5, generator=generator)
    found = turned(units, directions).view(3, 2, 2, 6)
    for image, sign, at, wave in itertools.product(range(3), range(2), range(2), range(6)):
        expected = sum(float(directions[sign, at, unit] * units[image, sign, unit, wave]) for unit in range(5))
        assert float(found[image, sign, at, wave]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("records", [60, 12], ids=["more records than features", "fewer"])
def test_components_and_variances(records):
    x = np.random.default_rng(0).normal(size=(records, 20)) * np.linspace(3, 0.5, 20)
    found = principal_axes(torch.from_numpy(x).float(), 5, 0.25)
    np.testing.assert_allclose(found.offset, x.mean(0), atol=1e-5)
    _, singular, rows = np.linalg.svd(x - x.mean(0), full_matrices=False)
    variances = singular**2 / records
    for k in range(5):
        expected = rows[k] / variances[k] ** 0.25
        component = found.components[k].numpy()
        np.testing.assert_allclose(component * np.sign(component @ expected), expected, atol=1e-4)
