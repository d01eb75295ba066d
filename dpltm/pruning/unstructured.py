"""Weights one by one: how many live after each round, which score highest, and the criteria that score them.

The schedule is fixed by rates alone, whatever the data, since a selection relies on densities that no record can move
(docs/privacy-model.md section 3.1). SynFlow (Tanaka, Kunin, Yamins, Ganguli 2020) looks at no data: the flow is what a
network of absolute weights makes of an input of ones. A table is a linear layer of as many inputs as it has rows; for ones
at all of them it gives the sum of its rows, at every position.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpltm.criteria import Groups, PruningRound, Schedule, Scope
from dpltm.errors import InputError
from dpltm.networks import ModelSpec, Network, build
from dpltm.networks.masks import Mask
from dpltm.records.dataset import Dataset
from dpltm.records.schema import Schema

STEPS = 10  # of a round, each by fresh scores; in one, whole layers would go (the paper's layer collapse)

UNIFORM = 1 / 12  # variance of a number that is uniform between its bounds; an empty cell is taken to vary as much


def layer_rates(rates: tuple[float, ...], layers: int) -> tuple[float, ...]:
    """One rate in (0, 1) per prunable layer; the last one given repeats (``0.3,0.3,0.2`` for three layers)."""
    if not (1 <= len(rates) <= layers and all(0 < rate < 1 for rate in rates)):
        raise InputError(
            f"`prune`: {','.join(map('{:g}'.format, rates))} is not a list of 1 to {layers} fractions of live weights, one"
            " per layer, between 0 and 1, such as 0.3,0.3,0.2"
        )
    return rates + (rates[-1],) * (layers - len(rates))


def live_schedule(sizes: tuple[int, ...], rates: tuple[float, ...], rounds: int) -> list[tuple[int, ...]]:
    """Live weights of each layer after 0, ..., ``rounds`` rounds; InputError if a round drops nothing, or all."""
    schedule = [sizes]
    for number in range(1, rounds + 1):
        before = schedule[-1]
        after = tuple(live - round(live * rate) for live, rate in zip(before, rates, strict=True))  # halves to even
        if 0 in after:
            layer = after.index(0)
            raise InputError(
                f"`rounds`: round {number} of {rounds} would empty layer {layer + 1} (of {sizes[layer]} weights); ask for"
                " fewer, or prune less"
            )
        if after == before:
            raise InputError(f"`prune`: the rates are too small: round {number} would drop no weight of any layer")
        schedule.append(after)
    return schedule


def keep_topk(scores: Mapping[str, Tensor], mask: Mask, live: Mapping[str, int], scope: Scope = "layer") -> Mask:
    """Mask of the live weights of highest score, nested in ``mask``. Equal scores are dropped in the order of their
    position; NaN counts as the highest. So many weights of each parameter in ``live`` stay, or with ``scope`` global their
    sum, but at least one of every layer, so that none is cut off.
    """
    flat = {name: scores[name].detach().flatten() for name in live}
    alive = {name: mask[name].flatten() for name in live}
    if scope == "layer":
        alive_next = {name: _topk(flat[name], alive[name], count) for name, count in live.items()}
    else:
        safe = torch.cat([_topk(flat[name], alive[name], 1) for name in live])
        others = torch.cat(list(alive.values())) & ~safe
        chosen = _topk(torch.cat(list(flat.values())), others, sum(live.values()) - int(safe.sum()))
        parts = (chosen | safe).split([len(values) for values in flat.values()])
        alive_next = dict(zip(live, parts, strict=True))
    return mask.replaced({name: values.view_as(mask[name]) for name, values in alive_next.items()})


def _topk(scores: Tensor, alive: Tensor, count: int) -> Tensor:
    positions = alive.nonzero().squeeze(1)
    if not 0 <= count <= len(positions):
        raise ValueError(f"Expected 0 <= count={count} <= {len(positions)} live weights")
    order = torch.argsort(scores[positions], stable=True)  # NaN last
    alive_next = alive.clone()
    alive_next[positions[order[: len(positions) - count]]] = False
    return alive_next


def by_trained_weights(step: PruningRound) -> Mask:
    """The next mask of ``magnitude``, DPLTM's: of each layer, or of the network, the smallest live weights go."""
    return keep_topk({name: step.trained[name].abs() for name in step.live}, step.mask, step.live, step.scope)


def by_initial_weights(step: PruningRound) -> Mask:
    """The next mask of ``init-magnitude``."""
    return keep_topk({name: step.initial[name].abs() for name in step.live}, step.mask, step.live, step.scope)


def at_random(step: PruningRound) -> Mask:
    """The next mask in a random order that the seed decides: every round goes on with the same order."""
    generator = torch.Generator().manual_seed(step.seed + 2**33)
    order = {name: torch.rand(step.mask[name].shape, generator=generator, dtype=torch.float64) for name in step.live}
    return keep_topk(order, step.mask, step.live, step.scope)


def by_trained_inputs(step: PruningRound) -> Mask:
    """The next mask of ``inputs``: the first layer loses inputs, columns of its weights or rows of a table, by the norm of
    what lives, and at most one in part. Inputs of a group, a column of a table, go together: it counts as much as what it
    adds to the next layer varies, if all that the schema allows is equally likely. Other layers lose their smallest weights.
    """
    first = next(iter(step.live))
    weights = step.trained[first].detach()
    inputs = 0 if isinstance(step.model.get_submodule(first.rpartition(".")[0]), nn.Embedding) else 1
    norms = (weights * step.mask[first]).double().transpose(0, inputs).flatten(1).norm(dim=1)
    if sum(map(len, step.groups)) == len(norms):  # else its inputs are no columns: it reads steps, or channels
        groups = zip(norms.square().split([*map(len, step.groups)]), step.groups, strict=True)
        sums = [(squares * squares.new_tensor(group)).sum().sqrt().expand(len(squares)) for squares, group in groups]
        norms = torch.cat(sums)
    shape = [1] * weights.ndim
    shape[inputs] = -1
    scores = {name: step.trained[name].detach().abs() for name in step.live}
    scores[first] = norms.view(shape).expand_as(weights)
    return keep_topk(scores, step.mask, step.live, step.scope)


def synflow_scores(model: nn.Module, weights: Mapping[str, Tensor], mask: Mask, example: Tensor) -> dict[str, Tensor]:
    """dR/dw times w for R the sum of outputs of the network of absolute live weights, no biases, for ones (its eq. 1
    and 3). Of ``example`` only the shape matters."""
    flow = copy.deepcopy(model).double().eval()
    for layer in flow.modules():
        if isinstance(layer, nn.Embedding):
            layer.register_forward_hook(lambda table, _, rows: table.weight.sum(0).expand_as(rows))
        elif isinstance(layer, _THROUGH):
            layer.register_forward_hook(lambda _, inputs, __: inputs[0])
    with torch.no_grad():
        for name, value in flow.named_parameters():
            value.copy_(weights[name].double().abs() * mask[name] * (value.ndim >= 2))
            value.requires_grad_(True)
    with torch.enable_grad():
        total = flow(torch.ones((1, *example.shape[1:]), dtype=torch.float64)).sum()
    named = {name: value for name, value in flow.named_parameters() if value.ndim >= 2}
    slopes = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if slope is None else slope * value.detach()
        for (name, value), slope in zip(named.items(), slopes, strict=True)
    }


_THROUGH = (
    nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.ReLU6, nn.Hardsigmoid,
    nn.Hardswish, nn.Softplus, nn.LogSigmoid, nn.Softsign, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm,
    nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm,
)  # fmt: skip
"""Activations and norms: everything flows, as through a ReLU; where they saturate, or divide, nothing would."""


def by_flow(step: PruningRound) -> Mask:
    """The next mask of ``synflow``, in ``STEPS`` steps of equal ratio."""
    mask, live = step.mask, step.live
    present = {name: int(mask[name].sum()) for name in live}
    for number in range(1, STEPS + 1):
        if step.scope == "layer":
            wanted = {name: _between(present[name], count, number / STEPS) for name, count in live.items()}
        else:  # where the sum is all that counts
            total = _between(sum(present.values()), sum(live.values()), number / STEPS)
            wanted = {**dict.fromkeys(live, 0), next(iter(live)): total}
        mask = keep_topk(synflow_scores(step.model, step.initial, mask, step.example), mask, wanted, step.scope)
    return mask


def _between(before: int, after: int, part: float) -> int:
    return after if part == 1 else max(after, round(before * (after / before) ** part))


def check_network(spec: Network, _schedule: Schedule) -> None:
    """Raise InputError for a network that has no flow."""
    model = build(spec, 0)
    instead = "take init-magnitude or random"
    if any(isinstance(module, (nn.RNNBase, nn.RNNCellBase)) for module in model.modules()):
        raise InputError(
            f"`criterion`: synflow follows a flow through layers that are linear for it, and the gates of {spec.text} are"
            f" not; {instead}"
        )
    if isinstance(spec, ModelSpec):
        return
    weights = dict(model.named_parameters())
    mask = Mask.dense(model)
    for name, values in synflow_scores(model, weights, mask, torch.zeros(1, spec.features)).items():
        if name in spec.prunable and not (bool(values.isfinite().all()) and bool(values.any())):
            raise InputError(f"`criterion`: no flow of {spec.text} goes through {name}; {instead}")


def input_groups(dataset: Dataset) -> Groups:
    """Inputs that each column became, by their variances if all that the schema allows is equally likely; none without a
    schema, or behind a map, which mixes columns."""
    groups = []
    for column in () if dataset.feature_map is not None else dataset.schema.columns:
        chance = 1 / max(column.features + column.other, 1)  # of one category
        variance = UNIFORM if column.kind in ("number", "date") else chance * (1 - chance)
        groups += [(variance,) * column.features] if column.features else []
    return tuple(groups)


def columns_read(schema: Schema, mask: Mask, feature_map: object | None) -> list[str] | None:
    """Columns that a network has a live weight for, on which alone its answers depend; None where that is not known."""
    first = next((value for value in mask.values() if value.ndim >= 2), None)
    if not schema.columns or feature_map is not None or first is None or first.shape[1:] != (schema.features,):
        return None
    parts = first.any(0).split([column.features for column in schema.columns])
    return [column.name for column, alive in zip(schema.columns, parts, strict=True) if bool(alive.any())]
