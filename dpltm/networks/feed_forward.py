"""``mlp``, and ``cnn`` and ``latent``: convolutional networks of images, which come flattened, channels last, as stored.

``mlp:300,100`` is Linear layers with ReLU between them. ``mlp:project64,300,100`` has a Linear layer ``project`` of 64
outputs in front, with no activation behind it: what is behind does not depend on the width of the records, and moves to
other ones with a new layer in front (DPLTM, section 4.5).

``cnn`` is the MNIST network of DP papers (Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial): 16 filters of
8 x 8 with stride 2, 32 of 4 x 4 with stride 2, each with ReLU and a 2 x 2 maximum of stride 1, then 32 units: 26,010
parameters on images of 28 x 28. ``cnn:28x28x1:7,20,15`` has 7 filters, 20 filters and 15 units, as compaction leaves it.

``latent`` is that of LATENT (Arachchige et al. 2019), after keras's examples and without dropout. For grey images:
filters of 3 x 3, 32 and then 64, each layer with ReLU, a 2 x 2 maximum, 128 units. For several channels: twice two layers
of filters of 3 x 3, 32 and 32, then 64 and 64, the first of each two padded, each two followed by a 2 x 2 maximum, then
512 units. Other widths may be said, three for grey images (``latent:28x28x1:32,64,128``), five for the others.
"""

from __future__ import annotations

import math
import re

from dpltm.errors import InputError
from dpltm.networks.kind import MAX_LAYER_WIDTH, MAX_WIDTH, WIDTH, LayerSpec, NetworkKind, Shapes, layer, named, stack

PROJECTION = "project"
"""Name of the layer in front whose weights belong to the records' width, and to no ticket."""


def widths(text: str) -> tuple[int | None, tuple[int, ...]]:
    """Outputs of the projection in front, None where there is none, and widths of the hidden layers."""
    parts = text.partition(":")[2].split(",") if ":" in text else []
    front = [part.removeprefix(PROJECTION) for part in parts[:1] if part.startswith(PROJECTION)]
    sizes = [int(part) if re.fullmatch("[1-9][0-9]{0,8}", part) else 0 for part in (*front, *parts[len(front) :])]
    if any(not 1 <= size <= MAX_WIDTH for size in sizes) or len(sizes) - len(front) > 100:
        raise InputError(
            f"`model`: {text!r:.80}: widths must be whole numbers from 1 to {MAX_WIDTH}, as in mlp:300,100"
            + (f"; only the first may be a projection, as in mlp:{PROJECTION}64,300,100" if PROJECTION in text else "")
        )
    return (sizes[0] if front else None), tuple(sizes[len(front) :])


class Mlp(NetworkKind):
    """The network ``mlp`` of the module's docstring."""

    def check(self, text: str, features: int) -> None:
        del features
        widths(text)

    def layers(self, text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
        front, hidden = widths(text)
        names = tuple(f"fc{number}" for number in range(1, len(hidden) + 2))
        if front is None:
            return stack((features, *hidden, classes), names)
        return stack((features, front, *hidden, classes), (PROJECTION, *names))

    def renamed(self, text: str, shapes: Shapes) -> str:
        front, hidden = widths(text)
        parts = [] if front is None else [f"{PROJECTION}{shapes[f'{PROJECTION}.weight'][0]}"]
        parts += [str(shapes[f"fc{number}.weight"][0]) for number in range(1, len(hidden) + 1)]
        return ":".join(("mlp", ",".join(parts))) if parts else "mlp"


MLP = Mlp(
    "mlp",
    "Fully connected layers with ReLU between them.",
    "as in the lottery-ticket experiments of Frankle and Carbin 2019",
    "mlp[-tanh]:W,W,...",
    ("vectors",),
    usage="mlp:WIDTH,WIDTH,... (such as mlp:300,100), mlp-tanh:...",
)


USUAL = (16, 32, 32)
"""Filters of both convolutions of ``cnn``, and units behind them, where the name does not say."""

GREY, COLOUR = (32, 64, 128), (32, 32, 64, 64, 512)
"""Filters of each convolution of ``latent`` and units behind them, where the name does not say."""

MIN_SIDE = 14
"""Side of which two convolutions and two maxima of ``cnn`` leave one pixel."""

_IMAGE = f"{WIDTH}x{WIDTH}x{WIDTH}"


class _OfImages(NetworkKind):
    """Base of both kinds."""

    def parts(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Height, width and channels of the images; filters of each convolution, and units behind them."""
        raise NotImplementedError

    def usual(self, channels: int) -> tuple[int, ...]:
        raise NotImplementedError

    def record_shape(self, text: str, features: int) -> tuple[int, ...]:
        del features
        return self.parts(text)[0]

    def check(self, text: str, features: int) -> None:
        size = math.prod(self.parts(text)[0])
        if size != features:
            raise InputError(f"`model`: {text}: such images have {size} features, but the records have {features}")

    def resolve(self, text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
        if len(shape) not in (2, 3) or tables:
            raise InputError(
                f"`model` {text}: records of shape {shape} are no images; if they are flattened ones, say their size, as"
                f" in {text}:28x28x1"
            )
        return f"{text}:" + "x".join(str(size) for size in (*shape, 1)[:3])

    def renamed(self, text: str, shapes: Shapes) -> str:
        image, before = self.parts(text)
        layers = (*(f"conv{number}" for number in range(1, len(before))), "fc1")
        widths = tuple(shapes[f"{layer}.weight"][0] for layer in layers)
        return named(f"{self.name}:" + "x".join(map(str, image)), widths, self.usual(image[2]))


class Cnn(_OfImages):
    """The network ``cnn`` of the module's docstring."""

    def usual(self, channels: int) -> tuple[int, ...]:
        del channels
        return USUAL

    def parts(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found = re.fullmatch(f"cnn:{_IMAGE}(?::(.*))?", text, re.DOTALL)
        if found is None:
            raise InputError(
                f"`model`: {text!r:.80}: say the size of the images as cnn:HEIGHTxWIDTHxCHANNELS, such as cnn:28x28x1"
            )
        *image, given = found.groups()
        widths = USUAL
        if given is not None:
            parts = re.fullmatch(f"{WIDTH},{WIDTH},{WIDTH}", given)
            first, second, units = (int(part) for part in parts.groups()) if parts else (0, 0, 0)
            widths = (first, second, units)
            if not all(1 <= width <= MAX_LAYER_WIDTH for width in widths):
                raise InputError(
                    f"`model`: {text!r:.80}: behind the size of the images come FILTERS,FILTERS,UNITS, whole numbers from"
                    f" 1 to {MAX_LAYER_WIDTH}, as in cnn:28x28x1:16,32,32"
                )
        if min(int(side) for side in image[:2]) < MIN_SIDE:
            raise InputError(f"`model`: {text}: images must be at least {MIN_SIDE} x {MIN_SIDE}")
        return tuple(map(int, image)), widths

    def layers(self, text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
        del features
        (height, width, channels), (first, second, units) = self.parts(text)

        def left(side: int) -> int:
            return ((side - 2) // 2 - 4) // 2

        return (
            layer("image", "Images", height, width, channels),
            layer("conv1", "Conv2d", channels, first, 8, stride=2, padding=3),
            layer("relu1", "ReLU"),
            layer("pool1", "MaxPool2d", 2, stride=1),
            layer("conv2", "Conv2d", first, second, 4, stride=2),
            layer("relu2", "ReLU"),
            layer("pool2", "MaxPool2d", 2, stride=1),
            layer("flat", "Flatten"),
            layer("fc1", "Linear", second * left(height) * left(width), units),
            layer("relu3", "ReLU"),
            layer("fc2", "Linear", units, classes),
        )


class Latent(_OfImages):
    """The network ``latent`` of the module's docstring."""

    def usual(self, channels: int) -> tuple[int, ...]:
        return GREY if channels == 1 else COLOUR

    def parts(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found = re.fullmatch(f"latent:{_IMAGE}(?::({WIDTH}(?:,{WIDTH})*))?", text)
        image = tuple(map(int, found.groups()[:3])) if found else ()
        given = found.group(4) if found else "0"
        widths = self.usual(image[2]) if given is None else tuple(map(int, given.split(",")))
        if len(widths) not in (len(GREY), len(COLOUR)) or max(widths) > MAX_LAYER_WIDTH:
            raise InputError(
                f"`model`: {text!r:.80}: say the size of the images, and the widths if they are others than the usual"
                f" ones, three or five whole numbers from 1 to {MAX_LAYER_WIDTH}, as in latent:28x28x1:32,64,128"
            )
        return image, widths

    def check(self, text: str, features: int) -> None:
        super().check(text, features)
        image, widths = self.parts(text)
        if min(_left(side, widths) for side in image[:2]) < 1:
            least = next(side for side in range(1, 100) if _left(side, widths) >= 1)
            raise InputError(f"`model`: {text}: images must be at least {least} x {least}")

    def layers(self, text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
        del features
        image, widths = self.parts(text)
        *filters, units = widths
        result, padded = [layer("image", "Images", *image)], len(filters) == 4
        for number, (before, after) in enumerate(zip((image[2], *filters), filters, strict=False), start=1):
            result.append(layer(f"conv{number}", "Conv2d", before, after, 3, padding=number % 2 if padded else 0))
            result.append(layer(f"relu{number}", "ReLU"))
            if number % 2 == 0:
                result.append(layer(f"pool{number // 2}", "MaxPool2d", 2, stride=2))
        return (
            *result,
            layer("flat", "Flatten"),
            layer("fc1", "Linear", filters[-1] * _left(image[0], widths) * _left(image[1], widths), units),
            layer(f"relu{len(filters) + 1}", "ReLU"),
            layer("fc2", "Linear", units, classes),
        )


def _left(side: int, widths: tuple[int, ...]) -> int:
    """Pixels of a side that the last maximum of ``latent`` leaves."""
    return (side - 4) // 2 if len(widths) == len(GREY) else ((side - 2) // 2 - 2) // 2


CNN = Cnn(
    "cnn",
    "Two convolutions and two linear layers, as for MNIST in DP papers.",
    "Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial",
    "cnn[-tanh]",
    ("images",),
)
LATENT = Latent(
    "latent",
    "The convolutional networks of LATENT, for grey images and for those of several channels.",
    "Arachchige et al. 2019",
    "latent[-tanh]",
    ("images",),
)
