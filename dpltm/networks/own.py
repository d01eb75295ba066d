"""Networks of the user's own: any PyTorch module, with what dpltm has to know of it.

``OwnModel`` is what a user names: a module, its class or a factory, given starting weights, and patterns of parameter names.
``OwnNetwork`` is that for some records: a :class:`dpltm.networks.Network`. Artifacts hold its layout and where its code came
from, as text; never the code. Whoever loads one names the code again (``with_code``), and it is compared.

A built network is a copy of the module whose ``forward`` takes what all networks of dpltm take, ``(batch, features)``:
records are put into their shape, images as ``(channels, height, width)``, words as whole numbers, and ``.logits`` is taken
of what comes out. It is done in a subclass made for it, so all parameter names stay what they are.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import json
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from dpltm.errors import ArtifactError, CodeError, InputError, did_you_mean, first_line
from dpltm.networks import KINDS, MAX_NAME_LENGTH, MAX_WEIGHTS, Looked, ModelSpec, Network, kind_name, resolve
from dpltm.networks.content import content_id
from dpltm.networks.kind import MAX_WIDTH
from dpltm.networks.masks import Mask
from dpltm.networks.norms import check_batch_norm
from dpltm.networks.state import evaluating, persistent_buffers, put, weights_of
from dpltm.privacy.entry import NO_LINEAGE, Lineage
from dpltm.records.made_up import constant, padded
from dpltm.records.scaling import MAX_CHANNELS
from dpltm.records.weights import file_digest, read_weights

Form = Literal["flat", "stored", "image"]
"""How a record reaches the module: in a row; in the shape in which it is stored; or ``(channels, height, width)``."""

StartProvenance = Literal["data-free", "public", "lineage"]
"""What starting weights depend on: no records; public ones; those of a lineage."""

Batch = Callable[[Tensor, Tensor], Tensor]
"""From outputs and labels to one value a record, ``(batch,)``."""

RECORDS, MOST_OUTPUTS = 8, 1024
"""Made-up records that a network is known by, and most outputs of each that are kept."""

AGREE = 1e-3
"""Largest difference between outputs on two machines, over the largest output."""

APART = 1e-4
"""The same between a record alone and in a batch, in float32."""

MAX_TENSORS = 100_000
"""Most parameters and buffers."""

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Of buffers."""

SETTINGS = (
    "start", "start_prefix", "start_skip", "start_provenance", "start_lineage", "freeze", "prunable",
    "loss", "score", "inputs",
)  # fmt: skip
"""What is said of a network of the user's own, by name: fields of ``OwnModel``."""

Code = nn.Module | Callable[[], nn.Module] | str
"""A module, its class or another factory without arguments, or the name of a kind."""


@dataclass(frozen=True)
class Buffer:
    """Shape and dtype of a persistent buffer."""

    shape: tuple[int, ...]
    dtype: str


# --- what a user names ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A network of the user's own, not yet for any records.

    Attributes:
        code: an instance, whose weights are theta0; a class or factory without arguments, called under a seed; or the
            name of a kind.
        text: where it came from, as artifacts say it.
        source_sha256: of the file of its code, if it is known.
        start: weights to start from, by name; or a safetensors file.
        start_prefix: only names that begin with it count, without it.
        start_skip: patterns of parameters that ``start`` need not have, which start as the code says: a new head.
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
    start_prefix: str = ""
    start_skip: tuple[str, ...] = ()
    start_provenance: str | None = None
    start_lineage: Lineage | None = None
    freeze: tuple[str, ...] = ()
    prunable: tuple[str, ...] | None = None
    loss: Batch | None = None
    score: Batch | None = None
    inputs: Callable[[Tensor], Any] | None = None

    def for_records(self, dataset: Looked) -> OwnNetwork:
        """Return the network for these records, tried out on made-up ones.

        Raises:
            InputError: a module that cannot be trained record by record, or whose outputs, loss or score are not what
                they must be; patterns or starting weights that do not fit; weights that nobody declared.
        """
        text, features = self.text, dataset.features
        if isinstance(self.code, str):
            text = resolve(self.code, dataset.input_shape, dataset.input_tables)
            ModelSpec(text, features, dataset.classes)
        draft = OwnNetwork(
            text=text,
            features=features,
            classes=dataset.classes,
            record_shape=dataset.input_shape,
            tables=dataset.input_tables,
            own=self if text == self.text else replace(self, code=text, text=text),
        )
        module = draft.made(0)
        again = draft.made(0)
        _check_module(module, text)
        first, second = weights_of(module), weights_of(again)
        shapes = [{name: value.shape for name, value in each.items()} for each in (first, second)]
        if shapes[0] != shapes[1] or list(first) != list(second):
            raise InputError(
                f"`model`: {text} gives another network each time: its parameters have other names or shapes"
            )
        if not all(torch.equal(value, second[name]) for name, value in first.items()):
            raise InputError(
                f"`model`: {text} gives other weights under the same seed; draw them by torch's own generator"
            )
        del again, second
        start = self._start(module)
        provenance = self._declared(draft, module, given=start is not None)
        draft = replace(
            draft,
            parameter_shapes={name: tuple(value.shape) for name, value in module.named_parameters()},
            buffers=_buffers(module),
            frozen=self._frozen(module),
            start=start,
            start_provenance=provenance,
            lineage=self.start_lineage or NO_LINEAGE,
        )
        draft = replace(draft, weights=self._prunable(draft))
        _check_layout(draft, "`model`: " + text)
        return draft.tried()

    def _start(self, module: nn.Module) -> dict[str, Tensor] | None:
        if self.start is None:
            for name in ("start_prefix", "start_skip"):
                if getattr(self, name):
                    raise InputError(f"`{name}`: only with `start`; leave it out")
            return None
        given, where = _read_start(self.start)
        if self.start_prefix:
            given = {
                name.removeprefix(self.start_prefix): value
                for name, value in given.items()
                if name.startswith(self.start_prefix)
            }
            if not given:
                raise InputError(f"`start_prefix`: no name in {where} begins with {self.start_prefix!r:.80}")
        return _fitting(module, given, where, self.start_skip)

    def _declared(self, draft: OwnNetwork, module: nn.Module, given: bool) -> StartProvenance:
        """Return what the starting weights depend on; InputError where nobody said so and they are no random draw."""
        said = self.start_provenance
        if said == "private":
            raise InputError(
                "`start_provenance`: weights that were trained on private records with no mechanism certify nothing; give"
                " the `start_lineage` of the run that they are from, or train with PrivateLoop(provenance='private')"
            )
        if said not in (None, "data-free", "public"):
            raise InputError("start_provenance", said, "data-free or public")
        if self.start_lineage is not None:
            if said is not None:
                raise InputError("`start_provenance`, `start_lineage`: give one of them")
            return "lineage"
        handed_in = given or isinstance(self.code, nn.Module)
        if said is not None:
            return cast(StartProvenance, said)
        if handed_in or not _is_drawn(module, draft):
            raise InputError(
                "`start_provenance` is missing: say what the weights"
                + (" of `start`" if given else f" of {self.text}")
                + " depend on: data-free (drawn at random), public (public records alone); or give the `start_lineage` of"
                " the run that they are from"
                + ("" if handed_in else ". They are the same under every seed, so they are not drawn at random")
            )
        return "data-free"

    def _frozen(self, module: nn.Module) -> tuple[str, ...]:
        named = dict(module.named_parameters())
        chosen = _matching(self.freeze, named, "freeze", f"parameter of {self.text}")
        frozen = tuple(name for name, value in named.items() if name in chosen or not value.requires_grad)
        if len(frozen) == len(named):
            raise InputError("`freeze`: every parameter is frozen, so there is nothing to train; leave some out")
        return frozen

    def _prunable(self, draft: OwnNetwork) -> tuple[str, ...]:
        weights = [
            name for name, shape in draft.parameter_shapes.items() if len(shape) >= 2 and name not in draft.frozen
        ]
        if self.prunable is None:
            return tuple(weights)
        chosen = _matching(self.prunable, weights, "prunable", f"weight of {self.text} that is trained")
        return tuple(name for name in weights if name in chosen)


def own_model(code: Any, **settings: Any) -> OwnModel:
    """Return a module, class or factory as a network of the user's own; ``settings`` are fields of ``OwnModel``.

    Raises:
        InputError: it is none of them.
    """
    if not isinstance(code, (nn.Module, str)) and not callable(code):
        raise InputError("model", code, "the name of a network, a torch.nn.Module, its class, or a factory of one")
    text, digest = settings.pop("text", None), settings.pop("source_sha256", None)
    if text is None and isinstance(code, str):
        text = code
    elif text is None:
        text, digest = _described(code)
    if len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise InputError(f"`model`: {text!r:.80} is no printable name of at most {MAX_NAME_LENGTH:,} characters")
    for name in ("loss", "score", "inputs"):
        if settings.get(name) is not None and not callable(settings[name]):
            raise InputError(name, settings[name], "a function")
    for name in ("freeze", "prunable", "start_skip"):
        if name in settings and settings[name] is not None:
            settings[name] = _patterns(name, settings[name])
    if isinstance(settings.get("start"), str):
        settings["start"] = Path(settings["start"])
    given = {name: value for name, value in settings.items() if value is not None}
    return OwnModel(code=code, text=text, source_sha256=digest, **given)


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) and part for part in parts):
        raise InputError(name, value, "a list of patterns of parameter names, such as encoder.*")
    return tuple(parts)


def _described(code: Any) -> tuple[str, str | None]:
    """Return where code came from, as text, and the SHA-256 of its file, but of those of torch."""
    named = type(_plain(code)) if isinstance(code, nn.Module) else code
    module, name = getattr(named, "__module__", None) or "?", getattr(named, "__qualname__", type(named).__name__)
    text = f"{module}:{name}"
    if module.partition(".")[0] == "torch":
        return text, None
    try:
        source = inspect.getsourcefile(named)
        return text, None if source is None else file_digest(source)
    except (TypeError, OSError):  # made at a prompt, or built in
        return text, None


def _matching(patterns: Iterable[str], names: Iterable[str], option: str, what: str) -> set[str]:
    known, chosen = list(names), set[str]()
    for pattern in patterns:
        found = {name for name in known if fnmatchcase(name, pattern)}
        if not found:
            raise InputError(f"`{option}`: no {what} has a name like {pattern!r:.80}{did_you_mean(pattern, known)}")
        chosen |= found
    return chosen


def _read_start(start: Mapping[str, Tensor] | Path) -> tuple[dict[str, Tensor], str]:
    if isinstance(start, Path):
        return read_weights(start), str(start)
    if not isinstance(start, Mapping) or not all(isinstance(value, Tensor) for value in start.values()):
        raise InputError("start", start, "a state dict, or the path of a safetensors file")
    return dict(start), "the state dict"


def _fitting(module: nn.Module, given: Mapping[str, Tensor], where: str, skip: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the starting weights of a module among those given; InputError with everything that does not fit."""
    wanted = dict(module.named_parameters()) | persistent_buffers(module)
    first = {id(value): name for name, value in module.named_parameters()}
    aliases = {name: first[id(value)] for name, value in module.named_parameters(remove_duplicate=False)}
    values: dict[str, Tensor] = {}
    additional = []
    for name, value in given.items():
        if (place := aliases.get(name, name)) in wanted:
            values.setdefault(place, value)
        else:
            additional.append(name)
    skipped = _matching(skip, wanted, "start_skip", "parameter") if skip else set()
    values = {name: value for name, value in values.items() if name not in skipped}
    additional = [name for name in additional if not any(fnmatchcase(name, pattern) for pattern in skip)]
    missing = [name for name in wanted if name not in values and name not in skipped]
    misshapen = [
        f"{name} {tuple(value.shape)} for {tuple(wanted[name].shape)}"
        for name, value in values.items()
        if value.shape != wanted[name].shape
    ]
    wrong = [
        f"{what}: {', '.join(names)}"
        for what, names in (("missing", missing), ("additional", additional), ("of another shape", misshapen))
        if names
    ]
    if wrong:
        raise InputError(f"`start`: {where} does not fit the network. {'; '.join(wrong)}")
    for name, value in values.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"`start`: {name} of {where} holds a weight that is not finite")
    return {name: value.detach().to("cpu", wanted[name].dtype, copy=True) for name, value in values.items()}


def _is_drawn(module: nn.Module, draft: OwnNetwork) -> bool:
    """Tell whether the weights of two and more dimensions follow the seed, but for those of one value throughout."""
    other = dict(draft.made(1).named_parameters())
    return not any(
        value.ndim >= 2 and torch.equal(value, other[name]) and bool((value != value.flatten()[0]).any())
        for name, value in module.named_parameters()
    )


def _check_module(module: nn.Module, text: str) -> None:
    """Raise InputError for a module that dpltm cannot take, whatever the records."""
    where = f"`model`: {text}"
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
        raise InputError(f"{where} is compiled, which hides its layers; give the module itself")
    if "forward" in vars(module):
        raise InputError(f"{where} has a forward of its own as an attribute; define it in the class")
    if module._forward_pre_hooks or module._forward_hooks:
        raise InputError(f"{where} has hooks; do in its forward what they do")
    parameters = dict(module.named_parameters())
    if not parameters:
        raise InputError(f"{where} has no parameters")
    buffers = persistent_buffers(module)
    if len(devices := {value.device for value in (*parameters.values(), *buffers.values())}) > 1:
        raise InputError(f"{where} is on several devices ({', '.join(sorted(map(str, devices)))}); move it to one")
    for name, value in parameters.items():
        if isinstance(value, UninitializedParameter):
            raise InputError(
                f"{where}: {name} is lazy and has no shape yet; run one batch of made-up records through it"
            )
        if value.dtype != torch.float32:
            raise InputError(f"{where}: {name} is of {value.dtype}; parameters must be torch.float32 (module.float())")
        if any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)):
            raise InputError(f"{where}: coordinates of {name} share memory (expand); use clone()")
        if not bool(value.isfinite().all()):
            raise InputError(f"{where}: {name} holds a weight that is not finite")
    for name, held in buffers.items():
        if str(held.dtype).removeprefix("torch.") not in DTYPES:
            raise InputError(f"{where}: buffer {name} is of {held.dtype}; take one of {', '.join(DTYPES)}")
    check_batch_norm(module)


# --- a network for some records ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnNetwork:
    """A network of the user's own for some records: a :class:`dpltm.networks.Network`.

    Attributes:
        form: how a record reaches the module.
        parameter_shapes, buffers: of the module, in order.
        frozen: names of the parameters that are not trained.
        weights: names of those that may be pruned.
        outputs: on the made-up records, ``(8, k)`` float32, at the weights that the artifact holds.
        start: weights in the place of the code's, by name.
        source_sha256: of the file of the code, as it was.
        own: the code; None where it is not at hand.
        edited: whether its file is another one than that of ``source_sha256``.
    """

    text: str
    features: int
    classes: int
    record_shape: tuple[int, ...]
    tables: tuple[int, ...]
    form: Form = "stored"
    parameter_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    outputs: Tensor | None = None
    start: Mapping[str, Tensor] | None = None
    start_provenance: StartProvenance = "data-free"
    lineage: Lineage = NO_LINEAGE
    source_sha256: str | None = None
    own: OwnModel | None = None
    edited: bool = False

    def __post_init__(self) -> None:
        if self.own is not None and self.source_sha256 is None:
            object.__setattr__(self, "source_sha256", self.own.source_sha256)

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.parameter_shapes.values())

    @property
    def prunable(self) -> tuple[str, ...]:
        return self.weights

    @property
    def takes_copies(self) -> bool:
        return False

    @property
    def user_parameters(self) -> tuple[str, ...]:
        return ()

    @property
    def loss(self) -> Batch | None:
        return None if self.own is None else self.own.loss

    @property
    def score(self) -> Batch | None:
        return None if self.own is None else self.own.score

    @cached_property
    def identity(self) -> str:
        """Digest of its layout, and of its outputs, so of its weights and of what it computes."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self.parameter_shapes)

    def mask(self, tensors: Mapping[str, Tensor]) -> Mask:
        return Mask(tensors, self.weights, self.frozen)

    def with_roles_of(self, other: Network) -> OwnNetwork:
        """Return the same where what ``other`` freezes, or may prune, is so by name."""
        if not isinstance(other, OwnNetwork):
            return self
        frozen = tuple(name for name in self.parameter_shapes if name in (*self.frozen, *other.frozen))
        weights = tuple(name for name in self.parameter_shapes if name in other.weights and name not in frozen)
        return replace(self, frozen=frozen, weights=weights)

    def check_code(self, label: str) -> None:
        if self.own is None:
            raise InputError(
                f"{label}: the code of its network, {self.text!a:.100}, is not at hand; name it by `model` FILE.py:NAME"
            )

    def build(self, seed: int | None) -> nn.Module:
        """Build the network; see :func:`dpltm.networks.build`. Without code, a module that only holds weights."""
        if self.own is None:
            return _Holder.of(self)
        module = self.made(seed)
        if self.start is not None:
            put(module, {**weights_of(module), **self.start})
        for name, value in module.named_parameters():
            value.requires_grad_(name not in self.frozen)
        return _adapted(module, self)

    def made(self, seed: int | None) -> nn.Module:
        """Return what the code gives: a copy of the instance, or what the factory makes under the seed."""
        assert self.own is not None
        code = self.own.code
        if isinstance(code, str):
            return ModelSpec(code, self.features, self.classes).build(0 if seed is None else seed)
        if isinstance(code, nn.Module):
            return _copied(code, self.text)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed or 0)
            try:
                module = code()
            except Exception as error:  # the user's own code
                raise CodeError(
                    f"`model`: {self.text} cannot be made without arguments: {first_line(error)}"
                ) from error
        if not isinstance(module, nn.Module):
            raise InputError(f"`model`: {self.text} gives a value of type {type(module).__name__}, no torch.nn.Module")
        return _copied(module, self.text)  # or a factory could hand out one and the same

    def made_up(self) -> Tensor:
        """Return the made-up records, ``(8, features)``: fractions of multiples of the golden ratio; of tables positions."""
        places = torch.arange(RECORDS * self.features, dtype=torch.float64)
        parts = (places * 0.6180339887498949).frac().view(RECORDS, self.features)
        if self.tables:
            sizes = torch.tensor(self.tables, dtype=torch.float64).repeat(self.features)[: self.features]
            parts = (parts * sizes).floor()
        return parts.float()

    def tried(self) -> OwnNetwork:
        """Return the network with its form and outputs; InputError where it is none for these records."""
        failures: list[InputError] = []
        for form in _forms(self):
            draft = replace(self, form=form)
            try:
                return replace(draft, outputs=draft.outputs_of(draft.build(0)))
            except InputError as error:
                failures.append(error)
        ran = [error for error in failures if not isinstance(error, CodeError)]
        if ran or len(failures) == 1:
            raise (ran or failures)[0]
        raise CodeError(" ".join(map(str, failures))) from failures[0].__cause__

    def outputs_of(self, model: nn.Module) -> Tensor:
        """Return the outputs that are kept of a network that was built, ``(8, k)`` float32; InputError as :meth:`tried`."""
        x, before = self.made_up(), weights_of(model)
        outputs = _run(self, model, x)
        self._check_outputs(outputs)
        if not torch.equal(outputs, _run(self, model, x, seed=1)):
            raise InputError(
                f"`model`: {self.text} gives another answer to the same records in evaluation mode; does it draw at random,"
                " or keep a state?"
            )
        after = weights_of(model)
        changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
        if changed:
            raise InputError(
                f"`model`: {changed[0]} of {self.text} changes with the records it sees, outside the ledger; use a module"
                " without state"
            )
        self._check_apart(model, x, outputs)
        self._check_functions(model, x, outputs)
        return _kept(outputs)

    def _check_outputs(self, outputs: Tensor) -> None:
        shape, classes = tuple(outputs.shape), (RECORDS, self.classes)
        if shape[:1] != (RECORDS,):
            raise InputError(
                f"`model`: {self.text} gives outputs of shape {shape} for {RECORDS} records; dimension 0 must be the record"
            )
        if self.loss is None and shape != classes:
            raise InputError(
                f"`model`: {self.text} gives outputs of shape {shape} for {RECORDS} records of {self.classes} classes, where"
                f" {classes} are expected; or say what they are for: `loss` and `score`, one value a record each"
            )
        if self.loss is not None and self.score is None and shape != classes:
            raise InputError(
                f"`score` is missing: outputs of shape {shape} are no classes, so say how good they are for a record, from 0"
                " to 1"
            )
        if not bool(outputs.isfinite().all()):
            raise InputError(f"`model`: {self.text} gives outputs that are not finite for made-up records")

    def _check_apart(self, model: nn.Module, x: Tensor, outputs: Tensor) -> None:
        """Refuse a network whose outputs for a record depend on the others: on how many there are, on what they hold (not
        by a bit), or on whether a long one is among short ones."""
        alone = torch.cat([_run(self, model, x[row : row + 1]) for row in range(RECORDS)])
        apart = alone.shape == outputs.shape and float((alone - outputs).abs().max()) <= APART * _largest(outputs)
        pairs = [(x, other) for other in self._with_another(x)]
        rows = (x.long() if self.tables else x).unflatten(1, self.record_shape)
        pairs += [(short.flatten(1).float(), long.flatten(1).float()) for short, long in padded(rows)]
        for one, other in pairs:
            try:
                given, with_other = (_run(self, model, each)[1:].nan_to_num() for each in (one, other))
            except CodeError:  # records that it will not take
                continue
            apart = apart and torch.equal(given, with_other)
        if not apart:
            raise InputError(
                f"`model`: what {self.text} gives for a record depends on the others in the batch: no bound would hold;"
                " leave out whatever averages or compares over records, or takes another dimension than 0 for the record"
            )

    def _with_another(self, x: Tensor) -> Iterator[Tensor]:
        for first in (1 - x[0], *constant(x[0])):
            yield torch.cat([first[None], x[1:]])

    def _check_functions(self, model: nn.Module, x: Tensor, outputs: Tensor) -> None:
        del model, x
        labels = torch.arange(RECORDS) % self.classes
        for name, function in (("loss", self.loss), ("score", self.score)):
            if function is None:
                continue
            try:
                values = function(outputs, labels)
            except Exception as error:  # the user's own code
                raise CodeError(f"`{name}`: fails on {RECORDS} made-up records: {first_line(error)}") from error
            if not isinstance(values, Tensor) or tuple(values.shape) != (RECORDS,):
                shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise InputError(
                    f"`{name}`: gives {shape} for {RECORDS} records; give one value a record"
                    + (", with reduction='none'" if name == "loss" else "")
                )
            if name == "score" and not bool(((values >= 0) & (values <= 1)).all()):
                raise InputError(
                    "`score`: gives values outside [0, 1] for made-up records; scale them by public numbers"
                )

    # --- on disk ------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return what artifacts say of it, beside text, features and classes: no code, and no weights."""
        assert self.outputs is not None
        return {
            "source_sha256": self.source_sha256,
            "record": list(self.record_shape),
            "tables": list(self.tables),
            "form": self.form,
            "parameters": [[name, list(shape)] for name, shape in self.parameter_shapes.items()],
            "buffers": [[name, list(one.shape), one.dtype] for name, one in self.buffers.items()],
            "frozen": list(self.frozen),
            "prunable": list(self.weights),
            "start_provenance": self.start_provenance,
            "outputs": [list(self.outputs.shape), content_id({"outputs": self.outputs.numpy()})],
        }

    @classmethod
    def from_json(cls, where: str, document: Mapping[str, Any], body: object) -> OwnNetwork:
        """Return the network, without code and outputs, that ``document`` states; ArtifactError if it is none.

        Args:
            where: what messages call the document, which holds ``model``, ``features`` and ``classes``.
            body: the result of ``to_json``.
        """
        try:
            network = _read(document, body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            said = str(error) if isinstance(error, InputError) else "not the layout of a network"
            raise ArtifactError(f"{where}: own: {said}") from None
        return network

    @property
    def output_shape(self) -> tuple[int, int]:
        """Shape of the outputs that go with it."""
        assert self.outputs is not None
        return RECORDS, self.outputs.shape[1]

    def with_outputs(self, where: str, body: Mapping[str, Any], outputs: Tensor) -> OwnNetwork:
        """Return the same with the outputs that lie beside ``body``; ArtifactError if they are others."""
        if body["outputs"][1] != content_id({"outputs": outputs.numpy()}):
            raise ArtifactError(
                f"{where}: the outputs on made-up records are not those of the network; damaged or changed"
            )
        return replace(self, outputs=outputs)

    def with_code(self, model: OwnModel, values: Mapping[str, Tensor]) -> OwnNetwork:
        """Return the same network with its code at hand.

        Args:
            values: the weights that ``outputs`` are of.

        Raises:
            InputError: the code is another network: other names, shapes or buffers, or other outputs for the same
                weights; or settings that the network has already.
        """
        for name in ("start", "freeze", "prunable", "start_provenance", "start_lineage"):
            if getattr(model, name) not in (None, (), ""):
                raise InputError(f"`{name}`: the network that was made says so itself; leave it out")
        made = replace(self, own=model, start=None, edited=self.source_sha256 != model.source_sha256)
        module = made.made(0)
        _check_module(module, model.text)
        shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
        _check_same(shapes, self.parameter_shapes, model.text, "parameter")
        buffers, stored = (
            {key: (one.shape, one.dtype) for key, one in each.items()} for each in (_buffers(module), self.buffers)
        )
        _check_same(buffers, stored, model.text, "buffer")
        built = made.build(0)
        put(built, values)
        outputs = made.outputs_of(built)
        assert self.outputs is not None
        if outputs.shape != self.outputs.shape or not float((outputs - self.outputs).abs().max()) <= AGREE * _largest(
            self.outputs
        ):
            raise InputError(
                f"`model`: {model.text} has the same parameters, but computes something else with them: it is another"
                " network than the one that this was made with"
            )
        return made


def _check_same(mine: Mapping[str, Any], stored: Mapping[str, Any], text: str, what: str) -> None:
    if list(mine.items()) != list(stored.items()):
        wrong = next((name for name in (*stored, *mine) if mine.get(name) != stored.get(name)), "")
        found, wanted = mine.get(wrong, "not there"), stored.get(wrong, "not there")
        raise InputError(
            f"`model`: {text} is another network than the one that this was made with: {what} {wrong} is {found}, and was"
            f" {wanted}"
            if wrong
            else f"`model`: {text} has its {what}s in another order than the network that this was made with"
        )


def network_notes(network: Network) -> tuple[str, ...]:
    """Return what is said of starting weights that were handed in, and of code that was edited."""
    if not isinstance(network, OwnNetwork) or network.own is None:
        return ()
    notes = []
    if network.own.start_provenance is not None:
        notes.append(
            f"the starting weights of {network.text} were declared {network.start_provenance}; that was not checked"
        )
    if network.edited:
        notes.append(
            f"the file of {network.own.text} is not the one that the network was made with, though it computes the same for"
            " made-up records"
        )
    return tuple(notes)


def as_trained(network: Network, model: nn.Module) -> OwnNetwork | None:
    """Return a network of the user's own, known by its outputs after training; numbers that are not finite count as 0.

    None for a kind by name.
    """
    if not isinstance(network, OwnNetwork):
        return None
    outputs = _run(network, model, network.made_up()).nan_to_num(0.0, 0.0, 0.0)
    return replace(network, outputs=_kept(outputs), start=None)


def network_trained(
    model: OwnModel,
    shape: tuple[int, ...],
    tables: tuple[int, ...],
    prunable: tuple[str, ...] | None = None,
    *,
    lineage: Lineage = NO_LINEAGE,
) -> tuple[OwnNetwork, nn.Module]:
    """Return the network of an instance that was trained elsewhere, for records as they are stored, and a copy of it.

    Args:
        shape: of a record.
        tables: sizes of the tables that its values are positions in; empty where they are quantities.
        prunable: names of the weights that might have been pruned; None for all of two and more dimensions.
        lineage: of its starting weights.

    Raises:
        InputError: a module that artifacts cannot hold, or whose outputs are no classes.
    """
    draft = OwnNetwork(model.text, math.prod(shape), 1, shape, tables, own=model)
    module = draft.made(None)
    _check_module(module, model.text)
    draft = replace(
        draft,
        parameter_shapes={name: tuple(value.shape) for name, value in module.named_parameters()},
        buffers=_buffers(module),
        frozen=tuple(name for name, value in module.named_parameters() if not value.requires_grad),
        start_provenance=cast(StartProvenance, "lineage" if lineage else model.start_provenance or "data-free"),
    )
    weights = [name for name, size in draft.parameter_shapes.items() if len(size) >= 2 and name not in draft.frozen]
    draft = replace(draft, weights=tuple(name for name in weights if prunable is None or name in prunable))
    _check_layout(draft, "`model`: " + model.text)
    built = draft.build(None)
    outputs = _run(draft, built, draft.made_up())
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise InputError(
            f"`model`: {model.text} gives outputs of shape {tuple(outputs.shape)} for {RECORDS} records; a run is of two"
            " classes and more, (records, classes); keep the weights and the report of others yourself"
        )
    made = as_trained(replace(draft, classes=outputs.shape[1]), built)
    assert made is not None
    return made, built


def _buffers(module: nn.Module) -> dict[str, Buffer]:
    return {
        name: Buffer(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for name, value in persistent_buffers(module).items()
    }


def _kept(outputs: Tensor) -> Tensor:
    flat = outputs.detach().float().flatten(1)
    return flat[:, :: -(-flat.shape[1] // MOST_OUTPUTS)].contiguous()


def _largest(values: Tensor) -> float:
    return max(float(values.abs().max()), 1e-30)


@torch.no_grad()
def _run(network: OwnNetwork, model: nn.Module, x: Tensor, seed: int = 0) -> Tensor:
    """Outputs in evaluation mode, whatever is drawn at random by a seed; CodeError where the module fails."""
    x = x.to(next(model.parameters()).device)
    with evaluating(model), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            outputs = model(x)
        except InputError:
            raise
        except Exception as error:  # the user's own code
            shape = tuple(_shaped(network, x[:1]).shape[1:])
            raise CodeError(
                f"`model`: {network.text} fails on made-up records of shape {shape}: {first_line(error)}; `inputs` makes"
                " other arguments of them"
            ) from error
    return outputs.cpu()


def _forms(network: OwnNetwork) -> tuple[Form, ...]:
    """Forms in which records may reach the module, in the order in which they are tried."""
    shape, own = network.record_shape, network.own
    if own is not None and isinstance(own.code, str):
        return ("flat",)
    if network.tables or len(shape) not in (2, 3):
        return ("stored",)
    if len(shape) == 3:
        return ("image",) if shape[2] <= MAX_CHANNELS else ("stored",)
    return ("image", "stored")


def _shaped(network: OwnNetwork, x: Tensor) -> Tensor:
    """Records ``(batch, features)`` in the form that the module takes."""
    if network.tables and x.is_floating_point():
        known = (x >= 0) & (x < max(network.tables))
        x = torch.where(known, x, 0).long()
    if network.form == "flat" or x.shape[1:] != (network.features,):
        return x
    x = x.unflatten(1, network.record_shape)
    if network.form == "image":
        x = x.unsqueeze(1) if len(network.record_shape) == 2 else x.movedim(-1, 1).contiguous()
    return x


def _adapted(module: nn.Module, network: OwnNetwork) -> nn.Module:
    """Give a module a class of its own whose ``forward`` takes ``(batch, features)``; in place."""
    assert network.own is not None
    base, inputs = type(module), network.own.inputs

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        given: Any = _shaped(network, x)
        if inputs is not None:
            given = inputs(given)
        if isinstance(given, Mapping):
            outputs = base.forward(self, **given)
        else:
            outputs = base.forward(self, *(given if isinstance(given, tuple) else (given,)))
        return _logits(outputs, network.text)

    made = types.new_class(base.__name__, (base,))
    made.forward = forward  # type: ignore[attr-defined]
    made._dpltm_plain = base  # type: ignore[attr-defined]
    module.__class__ = made
    return module


def computed(module: nn.Module, given: Any, text: str) -> Tensor:
    """Return what a module of the user's gives for its arguments; CodeError where it fails, InputError for no tensor."""
    try:
        outputs = module(given)
    except Exception as error:  # the user's own code
        raise CodeError(f"`model`: {text} fails on made-up records: {first_line(error)}") from error
    return _logits(outputs, text)


def _logits(outputs: Any, text: str) -> Tensor:
    if not isinstance(outputs, Tensor):
        found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
        if not isinstance(found, Tensor):
            raise InputError(
                f"`model`: {text} gives a value of type {type(outputs).__name__}; give a tensor, or something with .logits"
            )
        return found
    return outputs


def _plain(module: nn.Module) -> nn.Module:
    """A module as the user's class makes it, of one that was built here."""
    base = getattr(type(module), "_dpltm_plain", None)
    if base is None:
        return module
    plain = copy.copy(module)
    plain.__class__ = base
    return plain


def _copied(module: nn.Module, text: str) -> nn.Module:
    lazy = next((name for name, one in module.named_parameters() if isinstance(one, UninitializedParameter)), None)
    if lazy is not None:
        raise InputError(
            f"`model`: {text}: {lazy} is lazy and has no shape yet; run one batch of made-up records through it"
        )
    try:
        copied = copy.deepcopy(module)
    except Exception as error:  # of whatever the module holds
        raise InputError(f"`model`: {text} cannot be copied: {first_line(error)}") from error
    copied.__class__ = type(_plain(module))
    for value in copied.parameters():
        value.grad = None
    return copied.cpu() if len({value.device for value in copied.parameters()}) == 1 else copied


# --- without code -----------------------------------------------------------------------------------------------------


class _Holder(nn.Module):
    """Parameters and buffers of a network whose code is not at hand, by their names."""

    network: OwnNetwork

    @classmethod
    def of(cls, network: OwnNetwork, device: str = "cpu") -> _Holder:
        holder = cls()
        for name, shape in network.parameter_shapes.items():
            place, _, last = name.rpartition(".")
            value = nn.Parameter(torch.zeros(shape, device=device), requires_grad=name not in network.frozen)
            holder._at(place).register_parameter(last, value)
        for name, one in network.buffers.items():
            place, _, last = name.rpartition(".")
            holder._at(place).register_buffer(
                last, torch.zeros(one.shape, dtype=getattr(torch, one.dtype), device=device)
            )
        object.__setattr__(holder, "network", network)
        return holder

    def _at(self, place: str) -> nn.Module:
        module: nn.Module = self
        for part in place.split(".") if place else ():
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = cast(nn.Module, module._modules[part])
        return module

    def forward(self, x: Tensor) -> Tensor:
        del x
        self.network.check_code("this network")
        raise AssertionError


def with_kind(network: Network, values: Mapping[str, Tensor]) -> Network:
    """Return a network that was read with its code at hand, where that is a kind that dpltm knows; else itself."""
    if isinstance(network, OwnNetwork) and kind_name(network.text) in KINDS:
        with contextlib.suppress(InputError):  # else it is another's, of the same name
            return network.with_code(own_model(network.text), values)
    return network


def network_of(where: str, document: Mapping[str, Any]) -> Network:
    """Return the network that a document of an artifact states, by ``model``, ``features``, ``classes`` and ``own``.

    Raises:
        InputError: there is no such kind.
        ArtifactError: the layout of a network of the user's own is none.
    """
    if document.get("own") is None:
        return ModelSpec(document["model"], document["features"], document["classes"])
    return OwnNetwork.from_json(where, document, document["own"])


_KEYS = frozenset(
    {"source_sha256", "record", "tables", "form", "parameters", "buffers", "frozen", "prunable", "start_provenance"}
) | {"outputs"}


def _read(document: Mapping[str, Any], body: Any) -> OwnNetwork:
    if not isinstance(body, dict) or body.keys() != _KEYS:
        raise ValueError("keys")
    parameters = {_name(name): _shape(shape) for name, shape in body["parameters"]}
    buffers = {_name(name): Buffer(_shape(shape), dtype) for name, shape, dtype in body["buffers"]}
    if len(parameters) != len(body["parameters"]) or len(buffers) != len(body["buffers"]):
        raise InputError("a name is there twice")
    if any(one.dtype not in DTYPES for one in buffers.values()):
        raise InputError(f"a buffer is of none of {', '.join(DTYPES)}")
    digest, (size, checked) = body["source_sha256"], body["outputs"]
    if not (digest is None or _is_digest(digest)) or not _is_digest(checked):
        raise InputError("what should be a SHA-256 is none")
    if _shape(size)[:1] != (RECORDS,) or len(size) != 2 or not 1 <= size[1] <= MOST_OUTPUTS:
        raise InputError(f"outputs are not of {RECORDS} records")
    text = document["model"]
    if not isinstance(text, str) or len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise InputError("model is no printable name")
    network = OwnNetwork(
        text=text,
        features=_count(document["features"]),
        classes=_count(document["classes"]),
        record_shape=_shape(body["record"]),
        tables=_shape(body["tables"]),
        form=body["form"],
        parameter_shapes=parameters,
        buffers=buffers,
        frozen=tuple(body["frozen"]),
        weights=tuple(body["prunable"]),
        start_provenance=body["start_provenance"],
        outputs=torch.zeros(*size),
        source_sha256=digest,
    )
    if network.form not in get_args(Form) or network.start_provenance not in get_args(StartProvenance):
        raise InputError("form or start_provenance is none that there is")
    _check_layout(network, "the network")
    return network


def _check_layout(network: OwnNetwork, where: str) -> None:
    """Raise InputError for a layout that no module has, or that is too large."""
    shapes = network.parameter_shapes
    if not shapes or len(shapes) + len(network.buffers) > MAX_TENSORS or shapes.keys() & network.buffers.keys():
        raise InputError(f"{where} has no parameters, more than {MAX_TENSORS:,} tensors, or a name twice")
    weights = network.parameters + sum(math.prod(one.shape) for one in network.buffers.values())
    if weights > MAX_WEIGHTS:
        raise InputError(f"{where} has {weights:,} weights, more than the {MAX_WEIGHTS:,} that are taken")
    if math.prod(network.record_shape) != network.features:
        raise InputError(
            f"{where} takes records of shape {network.record_shape}, which are not {network.features} values"
        )
    if not {*network.frozen} < shapes.keys() or not {*network.weights} <= shapes.keys() - {*network.frozen}:
        raise InputError(f"{where}: frozen or prunable names parameters that there are none of")
    if any(len(shapes[name]) < 2 for name in network.weights):
        raise InputError(f"{where}: only weights of two and more dimensions can be pruned")
    try:
        held = _Holder.of(network, "meta")
    except (KeyError, ValueError, TypeError, AttributeError):
        raise InputError(f"{where}: names of parameters that no module has") from None
    if list(dict(held.named_parameters())) != list(shapes):
        raise InputError(f"{where}: names of parameters in an order that no module has")


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= MAX_NAME_LENGTH:
        raise InputError("the name of a parameter is not printable")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 16:
        raise InputError("a shape is none")
    return tuple(_count(part, 2**31) for part in value)


def _count(value: Any, most: int = MAX_WIDTH) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InputError(f"a size is not from 1 to {most:,}")
    return value


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef")
