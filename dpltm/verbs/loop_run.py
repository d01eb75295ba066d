"""A loop of the user's own that has ended, as a run: ``dpltm.tickets.save`` keeps it, and every command reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.errors import InputError, whole_number
from dpltm.networks.own import own_model
from dpltm.networks.own_network import AGREE, OwnNetwork, computed, network_trained
from dpltm.networks.state import evaluating
from dpltm.options.train import LoopOptions
from dpltm.privacy.entry import Lineage
from dpltm.privacy.statement import json_figure
from dpltm.records.batches import Records
from dpltm.records.scaling import affine, prepare, unscale
from dpltm.records.split import LabelForm
from dpltm.training.artifacts import Run

if TYPE_CHECKING:
    from dpltm.verbs.private_loop import PrivateLoop

TOKENS = (torch.int32, torch.int64)
"""Types of whole numbers that a loop hands to the model as they are."""


def run_of(
    loop: PrivateLoop,
    paid: Lineage,
    taken: int,
    bounds: tuple[float, float],
    words: int | None,
    inputs: Callable[[Tensor], Any] | None,
) -> Run:
    """Return the run of a loop that has ended. See :meth:`dpltm.PrivateLoop.finish`.

    Args:
        paid: lineage of the loop, with its own entry.
        taken: gradients that were taken.
    """
    terms, (x, y) = loop.settings, loop.records
    dtype = (x[:0] if isinstance(x, Tensor) else torch.from_numpy(x[:0].copy())).dtype
    tables: tuple[int, ...] = ()
    if words is not None:
        tables, bounds = (whole_number("words", words),), (0.0, float(words) - 1)
    elif dtype in TOKENS and terms.prepare is None:
        raise InputError(
            "`words` is missing: the records are whole numbers, positions of words; say how many there are"
        )
    affine(bounds)
    declared = loop.provenance if loop.provenance in ("data-free", "public") else None
    own = own_model(loop.model, inputs=inputs, start_provenance=declared)
    pruned = None if terms.mask is None else terms.mask.prunable
    network, built = network_trained(own, tuple(x.shape[1:]), tables, _label_form(y), pruned, lineage=loop.lineage)
    _check_computes_the_same(network, built, loop, dtype, bounds)
    tensors = {name: torch.ones(size, dtype=torch.bool) for name, size in network.shapes().items()}
    live = {name: value.cpu() for name, value in (terms.mask or {}).items() if name not in network.frozen}
    mask = network.mask(tensors | live)
    if any(bool(value[~mask[name]].any()) for name, value in built.named_parameters()):
        raise InputError(
            "`model`: a pruned weight is not zero; an optimizer with the loop's gradients alone leaves it so"
        )
    options = {item.name: getattr(terms, item.name) for item in fields(LoopOptions)} | {"accountant": "pld"}
    options["filter"] = str(terms.filter)
    for norm in ("clip_norm", "clip_quantile"):  # of the filter, or of what clips in front of it or behind
        parts = (terms.filter, getattr(terms.filter, "before", None), getattr(terms.filter, "after", None))
        options[norm] = next((getattr(part, norm) for part in parts if hasattr(part, norm)), None)
    gradients, plan, report = loop.gradients, loop.gradients.plan, loop.report()
    facts = {**plan.step_facts(mask), "kernels": dict(gradients.gradients.kernels)}
    persons = terms.units is not None
    settings = plan.run_config(network, loop.entry, bounds, persons, options=options, resolved=facts)
    end = {"step": taken, "epsilon": json_figure(report.certified.epsilon), "accuracy": None}
    return Run(
        settings, built, mask, metrics=(end,), privacy=report, ledger=loop.ledger, lineage=paid,
        observations=gradients.canaries.observations, network=network,
    )  # fmt: skip


def _label_form(y: Tensor | np.ndarray) -> LabelForm | None:
    """Return the form of labels that are no class numbers, of more than one dimension or quantities; None of others."""
    quantities = y.is_floating_point() if isinstance(y, Tensor) else y.dtype.kind == "f"
    form = LabelForm("float32" if quantities else "int64", tuple(y.shape[1:]))
    return form if quantities or y.ndim > 1 else None


@torch.no_grad()
def _check_computes_the_same(
    network: OwnNetwork, built: nn.Module, loop: PrivateLoop, dtype: torch.dtype, bounds: tuple[float, float]
) -> None:
    """Raise InputError unless a run gives, for made-up records, what the model of the loop gives for them."""
    model = loop.model
    like = next(model.parameters())
    made_up = network.made_up().numpy()
    stored = torch.from_numpy(made_up if network.tables else unscale(made_up, bounds)).unflatten(
        1, network.record_shape
    )
    stored = stored.to(dtype) if dtype.is_floating_point else stored.round().to(dtype)
    records = Records(
        stored, np.zeros(len(stored)), dtype=like.dtype, device=like.device, prepare=loop.settings.prepare
    )
    with evaluating(model), evaluating(built):
        wanted = computed(model, records.take(np.arange(len(stored)))[0], network.text).cpu()
        found = built(torch.from_numpy(prepare(stored.float().numpy(), bounds, network.tables)))
    largest = max(float(wanted.abs().max()), 1e-30)
    if wanted.shape != found.shape or not torch.allclose(found, wanted, rtol=0, atol=AGREE * largest, equal_nan=True):
        raise InputError(
            f"`bounds`, `inputs`: a run scales records by `bounds` ({bounds[0]:g}, {bounds[1]:g}), and for made-up ones its"
            " network then gives something else than the model of the loop; give the public range of `x`, and `inputs`,"
            " from scaled records to what the model takes"
        )
