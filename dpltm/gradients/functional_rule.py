"""Per-record gradients of any module by ``torch.func``: it is called again, one record at a time, vectorised."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_map

from dpltm.errors import InputError, first_line
from dpltm.gradients.calls import Call

CHUNK = 4_000_000
"""Most gradient coordinates, live or not, that are made at once."""


def gradients(call: Call, records: int) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Rule for a module without one of its own: its vector-Jacobian product at each record.

    Raises:
        InputError: torch.func cannot vectorise the module, or an argument or output has not one row a record.
    """
    parameters = {name: value for name, value in call.module.named_parameters() if value.requires_grad}
    known = [
        (place, output.detach(), gradient)
        for place, output, gradient in zip(call.places, call.outputs, call.gradients, strict=True)
        if gradient is not None
    ]
    if not known:
        return
    if any(output.ndim == 0 or len(output) != records for _, output, _ in known):
        raise _not_by_record(call.module)

    def one(arguments: tuple[Any, dict[str, Any]], cotangents: list[Tensor]) -> dict[str, Tensor]:
        def forward(values: dict[str, Tensor]) -> list[Tensor]:
            inputs, keywords = tree_map(_as_batch, arguments)
            flat, _ = tree_flatten(functional_call(call.module, values, inputs, keywords))
            return [flat[place] for place, _, _ in known]

        backward = vjp(forward, parameters)[1]
        return backward([cotangent.unsqueeze(0) for cotangent in cotangents])[0]

    dtype = next(iter(parameters.values())).dtype
    arguments = tree_map(lambda value: _in_precision(value, dtype), (call.inputs, call.keywords))
    known = [(place, output, _in_precision(gradient, dtype)) for place, output, gradient in known]
    leaves, _ = tree_flatten(arguments)
    if any(isinstance(value, Tensor) and (value.ndim == 0 or len(value) != records) for value in leaves):
        raise _not_by_record(call.module)
    axes = tree_map(lambda value: 0 if isinstance(value, Tensor) else None, arguments)
    per_record = _vectorised(
        one, (axes, 0), (arguments, [gradient for _, _, gradient in known]), parameters, call.module
    )
    for name, value in per_record.items():
        yield parameters[name], 0, value


def whole_model(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Per-record gradients of every parameter of ``model`` that is not frozen, by name.

    Args:
        model: takes a batch of one record.
        loss: of outputs and labels; its sum is what is differentiated.
        x: records, ``(batch, ...)``.
        y: labels, ``(batch, ...)``.

    Returns:
        Name and gradients ``(batch, *shape of the parameter)`` of one parameter after the other.

    Raises:
        InputError: torch.func cannot vectorise the model.
    """
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}

    def one(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return loss(functional_call(model, values, (record.unsqueeze(0),)), label.unsqueeze(0)).sum()

    per_record = _vectorised(grad(one), (None, 0, 0), (parameters, x, y), parameters, model)
    yield from per_record.items()


def _vectorised(
    function: Callable[..., dict[str, Tensor]],
    axes: tuple[Any, ...],
    arguments: tuple[Any, ...],
    parameters: dict[str, nn.Parameter],
    module: nn.Module,
) -> dict[str, Tensor]:
    size = sum(value.numel() for value in parameters.values())
    try:
        mapped = vmap(function, in_dims=axes, chunk_size=max(1, CHUNK // size))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # slow is what this path is
            return {name: value.detach() for name, value in mapped(*arguments).items()}
    except Exception as error:  # whatever the module's own code raises
        raise InputError(
            f"model: torch.func cannot take a {type(module).__name__} one record at a time ({first_line(error)}); use"
            " modules with a rule of their own"
        ) from error


def _in_precision(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _as_batch(value: Any) -> Any:
    return value.unsqueeze(0) if isinstance(value, Tensor) else value


def _not_by_record(module: nn.Module) -> InputError:
    return InputError(
        f"model: a {type(module).__name__} saw or gave a tensor without one row a record; dimension 0 must be the record"
    )
