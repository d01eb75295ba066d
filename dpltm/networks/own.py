"""What a user names as a network of their own: a module, its class or a factory, given weights, and patterns of names.

``dpltm.networks.own_network`` makes it a network for some records. Artifacts say where its code came from; never the code.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from dpltm import __version__
from dpltm.errors import InputError, did_you_mean, first_line
from dpltm.networks import MAX_NAME_LENGTH, Batch, names_code
from dpltm.networks.layers import check_layers
from dpltm.networks.state import check_names, persistent_buffers
from dpltm.privacy.entry import Lineage
from dpltm.records.files import file_digest, read_weights

Form = Literal["flat", "stored", "image"]
"""How a record reaches the module: in a row; in the shape in which it is stored; or ``(channels, height, width)``."""

StartProvenance = Literal["data-free", "public", "lineage"]
"""What starting weights depend on: no records; public ones; those of a lineage."""

RECORDS, MOST_OUTPUTS = 8, 1024
"""Made-up records that a network is known by, and most outputs of each that are kept."""

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Of buffers."""

Code = nn.Module | Callable[[], nn.Module] | str
"""A module, its class or another factory without arguments, or the name of a kind."""


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A network of the user's own, not yet for any records.

    Attributes:
        code: an instance, whose weights are theta0; a class or factory, called under a seed; or the name of a kind.
        text, source_sha256: where it came from, as artifacts say it, and of the file of its code, if that is known.
        start: weights to start from, by name; or a safetensors file.
        start_provenance: what an instance's weights, or those of ``start``, depend on: ``data-free`` or ``public``.
        start_lineage: the same, where they depend on private records: ``run.lineage``.
        freeze: patterns of parameters that are not trained (``fnmatch``).
        prunable: patterns of weights that may be pruned; None for all that are trained.
        loss, score: see :class:`dpltm.networks.Network`.
        inputs: from a batch to the module's arguments: one, a tuple, or a mapping by name.
    """

    code: Code
    text: str
    source_sha256: str | None = None
    start: Mapping[str, Tensor] | Path | None = None
    start_provenance: str | None = None
    start_lineage: Lineage | None = None
    freeze: tuple[str, ...] = ()
    prunable: tuple[str, ...] | None = None
    loss: Batch | None = None
    score: Batch | None = None
    inputs: Callable[[Tensor], Any] | None = None

    def given_start(self, module: nn.Module) -> dict[str, Tensor] | None:
        """Return the weights that take the place of a module's, if any; InputError with everything that does not fit."""
        if self.start is None:
            return None
        weights: Mapping[Any, Any] = read_weights(self.start) if isinstance(self.start, Path) else self.start
        if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
            raise InputError("start", weights, "a state dict, or the path of a safetensors file")
        where = str(self.start) if isinstance(self.start, Path) else "the state dict"
        wanted = dict(module.named_parameters()) | persistent_buffers(module)
        first = {id(value): name for name, value in module.named_parameters()}
        aliases = {name: first[id(value)] for name, value in module.named_parameters(remove_duplicate=False)}
        values = {aliases.get(name, name): value for name, value in weights.items()}
        both = [(name, value, wanted[name]) for name, value in values.items() if name in wanted]
        shapes = [(name, value.shape, other.shape) for name, value, other in both if value.shape != other.shape]
        wrong = {
            "missing": [name for name in wanted if name not in values],
            "additional": [name for name in values if name not in wanted],
            "of another shape": [f"{name} {tuple(shape)} for {tuple(other)}" for name, shape, other in shapes],
            "not finite": [name for name, value, _ in both if not bool(value.isfinite().all())],
        }
        if any(wrong.values()):
            problems = "; ".join(f"{what}: {', '.join(names)}" for what, names in wrong.items() if names)
            raise InputError(f"`start`: {where} does not fit the network. {problems}")
        return {name: value.detach().to("cpu", other.dtype, copy=True) for name, value, other in both}

    def provenance(self, module: nn.Module, again: Callable[[], nn.Module], has_start: bool) -> StartProvenance:
        """Return what the starting weights depend on; InputError where nobody said so and they are no random draw, as the
        module made ``again`` under another seed shows."""
        declared = self.start_provenance
        handed_in = has_start or isinstance(self.code, nn.Module)
        if declared not in (None, "data-free", "public") or (declared and self.start_lineage is not None):
            raise InputError("start_provenance", declared, "data-free or public, or a run's `start_lineage` alone")
        if declared is not None or self.start_lineage is not None:
            return cast(StartProvenance, declared or "lineage")
        # drawn weights follow the seed: all but those of one value throughout, zeros and ones
        pairs = () if handed_in else zip(module.parameters(), again().parameters(), strict=True)
        if handed_in or any(_is_fixed(value.detach(), other.detach()) for value, other in pairs):
            raise InputError(
                f"`start_provenance` is missing: say what the weights of {'`start`' if has_start else self.text} depend on:"
                " data-free (drawn at random), public (public records alone); those of a run bring its lineage:"
                " start_lineage=run.lineage in Python, RUN/model.safetensors as a file"
                + ("" if handed_in else ". They are the same under every seed, so they are not drawn at random")
            )
        return "data-free"

    def frozen(self, module: nn.Module) -> tuple[str, ...]:
        """Return the names of the parameters that are not trained."""
        parameters = dict(module.named_parameters())
        chosen = _matching(self.freeze, parameters, "freeze", f"parameter of {self.text}")
        frozen = tuple(name for name, value in parameters.items() if name in chosen or not value.requires_grad)
        if len(frozen) == len(parameters):
            raise InputError("`freeze`: every parameter is frozen, so there is nothing to train; leave some out")
        return frozen

    def may_be_pruned(self, shapes: Mapping[str, tuple[int, ...]], frozen: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the weights that may be pruned."""
        weights = [name for name, shape in shapes.items() if len(shape) >= 2 and name not in frozen]
        if self.prunable is None:
            return tuple(weights)
        chosen = _matching(self.prunable, weights, "prunable", f"weight of {self.text} that is trained")
        return tuple(name for name in weights if name in chosen)


SETTINGS = tuple(item.name for item in fields(OwnModel) if item.name not in ("code", "text", "source_sha256"))
"""What is said of a network of the user's own, by name."""


def own_model(code: Any, **settings: Any) -> OwnModel:
    """Return a module, class or factory as a network of the user's own; ``settings`` are fields of ``OwnModel``."""
    if not isinstance(code, (nn.Module, str)) and not callable(code):
        raise InputError("model", code, "the name of a network, a torch.nn.Module, its class, or a factory of one")
    text, digest = settings.pop("text", None), settings.pop("source_sha256", None)
    if text is None:
        text, digest = (code, None) if isinstance(code, str) else _described(code)
    if len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise InputError(f"`model`: {text!r:.80} is no printable name of at most {MAX_NAME_LENGTH:,} characters")
    for name in ("loss", "score", "inputs"):
        if settings.get(name) is not None and not callable(settings[name]):
            raise InputError(name, settings[name], "a function")
    for name in ("freeze", "prunable"):
        if settings.get(name) is not None:
            settings[name] = _patterns(name, settings[name])
    if isinstance(settings.get("start"), str):
        settings["start"] = Path(settings["start"])
    options = {name: value for name, value in settings.items() if value is not None}
    return OwnModel(code=code, text=text, source_sha256=digest, **options)


def check_no_code(name: str) -> None:
    """Raise InputError for a name of code, in Python, where it is imported."""
    if names_code(name):
        raise InputError(f"`model`: {name!r:.80} names code; import it in Python, and give it itself: model=MyNet")


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) and part for part in parts):
        raise InputError(name, value, "a list of patterns of parameter names, such as encoder.*")
    return tuple(parts)


def _described(code: Any) -> tuple[str, str | None]:
    """Where code came from, as text, and the SHA-256 of its file, but of those of torch."""
    code_named = class_of(code) if isinstance(code, nn.Module) else code
    module = getattr(code_named, "__module__", None) or "?"
    name = getattr(code_named, "__qualname__", type(code_named).__name__)
    text = f"{module}:{name}"
    if module.partition(".")[0] == "torch":
        return text, None
    try:
        source = inspect.getsourcefile(code_named)
        return text, None if source is None else file_digest(source)
    except (TypeError, OSError):  # made at a prompt, or built in
        return text, None


def _matching(patterns: Iterable[str], names: Iterable[str], option: str, what: str) -> set[str]:
    candidates = list(names)
    matches = {pattern: {name for name in candidates if fnmatchcase(name, pattern)} for pattern in patterns}
    for pattern in (pattern for pattern, chosen in matches.items() if not chosen):
        raise InputError(f"`{option}`: no {what} has a name like {pattern!r:.80}{did_you_mean(pattern, candidates)}")
    return set().union(*matches.values())


def _is_fixed(value: Tensor, other: Tensor) -> bool:
    """Whether a good part of some weights is the same under two seeds, perhaps with a little noise."""
    if bool((value == value.flatten()[0]).all()):
        return False
    alike = (value == other) & (value != 0) & (value != 1)
    if int(alike.sum()) > 4 + 2.0**-20 * value.numel():  # sixteen times as many as of uniform draws are
        return True
    if value.numel() < 4:  # of so few, correlation is by chance
        return bool(alike.all())
    pair = torch.stack([value.double().flatten(), other.double().flatten()])
    pair -= pair.mean(1, keepdim=True)
    follows = (pair[0] @ pair[1] / (pair[0].norm() * pair[1].norm()).clamp_min(1e-300)).clamp(-1, 1)
    # six standard deviations of Fisher's z (by chance one weight in 10^5 of four numbers)
    return bool(follows > 0.5 and follows.atanh() * math.sqrt(value.numel() - 3) > 6.0)


def check_module(module: nn.Module, text: str) -> None:
    """Raise InputError for a module that dpltm cannot take, whatever the records."""
    where = f"`model`: {text}"
    check_layers(module, f"{where}:")
    if "forward" in vars(module) or module._forward_pre_hooks or module._forward_hooks:
        raise InputError(f"{where} has hooks, or a forward as an attribute; define that in its class's forward")
    parameters = dict(module.named_parameters())
    if not parameters:
        raise InputError(f"{where} has no parameters")
    for name, value in parameters.items():
        if value.dtype != torch.float32:
            raise InputError(f"{where}: {name} is of {value.dtype}; parameters must be torch.float32 (module.float())")
        if not bool(value.isfinite().all()):
            raise InputError(f"{where}: {name} holds a weight that is not finite")
    for name, (_, dtype) in buffers_of(module).items():
        if dtype not in DTYPES:
            raise InputError(f"{where}: buffer {name} is of torch.{dtype}; take one of {', '.join(DTYPES)}")


def buffers_of(module: nn.Module) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of every persistent buffer, by name."""
    return {
        name: (tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for name, value in persistent_buffers(module).items()
    }


def class_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module as the user's code has it, also of one that was built here."""
    return getattr(type(module), "_dpltm_plain", type(module))


def copied(module: nn.Module, text: str) -> nn.Module:
    """Return a copy on the processor, of the user's class, without gradients; InputError where it cannot be copied."""
    check_names(module, f"`model`: {text}")
    try:
        copied = copy.deepcopy(module)
    except Exception as error:  # of whatever the module holds
        raise InputError(f"`model`: {text} cannot be copied: {first_line(error)}") from error
    copied.__class__ = class_of(module)
    for value in copied.parameters():
        value.grad = None
    return copied.cpu() if len({value.device for value in copied.parameters()}) == 1 else copied


FILE_MODULE = "dpltm_code_"
"""Beginning of the name of a module that was run from a file by itself; the rest changes with what it holds."""

_OURS = ("dpltm", "torch")
_OF_THE_START = ("__main__", "__mp_main__", "sitecustomize", "usercustomize")
"""Modules of how a process begins, of which no network is made unless it is written there."""


def versions() -> dict[str, str]:
    """Return the versions of all that decides the bits of a sum beside a network's own code."""
    return {
        "version of dpltm": __version__,
        "version of torch": torch.__version__,
        "version of numpy": np.__version__,
        "version of python": platform.python_version(),
    }


def loaded_code(parts: Iterable[object]) -> dict[str, str]:
    """Return the SHA-256 (hex) of every module imported so far that counts, under ``code of NAME``.

    A resume must find the code of a release again: what would change a sum while its noise stays the same. Everything that
    is imported and no installed library counts, wherever it lies, and modules, installed or not, of a package that has one
    of the ``parts`` of the network. Other libraries count by version: which modules are imported depends on much else.
    """
    packages = {_home(part).partition(".")[0] for part in parts} - {*_OURS}
    libraries = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    digests = {}
    for name, module in sorted(sys.modules.items()):  # thousands: as texts, since paths would take a tenth of a second
        package = name.partition(".")[0]
        file = None if package in _OURS or not isinstance(module, ModuleType) else vars(module).get("__file__")
        if not file:
            continue
        file = os.fspath(file) if os.path.isabs(file) else os.path.abspath(file)
        installed = file.startswith(libraries) or "/site-packages/" in file or "/dist-packages/" in file
        if package not in packages and (installed or package in _OF_THE_START or package.startswith(FILE_MODULE)):
            continue
        path = Path(file)  # links are not followed: some installers keep what they link to in a cache
        holder = next((place for place in (path, *path.parents) if place.is_file()), None)  # perhaps an archive
        shown = path.name if package.startswith(FILE_MODULE) else name
        digests[f"code of {shown}"] = "gone" if holder is None else file_digest(holder)
    return digests


def _home(part: object) -> str:
    """Name of the module that a part of a network was written in."""
    while isinstance(part, (partial, MethodType)):
        part = part.func if isinstance(part, partial) else part.__func__
    return str(getattr(part, "__module__", None) or type(part).__module__)
