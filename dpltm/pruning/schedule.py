"""How many weights live after each round: fixed by the schedule alone, whatever the data.

A selection relies on it: densities that no record can move (docs/privacy-model.md section 3.1).
"""

from __future__ import annotations

from dpltm.errors import InputError


def prune_count(live: int, rate: float) -> int:
    """Number of weights to drop from ``live`` of them at ``rate``: the nearest whole number, halves to even."""
    return round(live * rate)


def layer_rates(rates: tuple[float, ...], layers: int) -> tuple[float, ...]:
    """One rate per prunable layer; the last one given repeats (``0.3,0.3,0.2`` for three layers).

    Raises:
        InputError: a rate outside (0, 1), none at all, or more rates than layers.
    """
    if not rates:
        raise InputError("`prune`: no rate given; give one per layer, such as 0.3,0.3,0.2")
    for rate in rates:
        if not 0 < rate < 1:
            raise InputError(
                f"`prune`: {rate:g} is not between 0 and 1; a rate is the fraction of live weights dropped"
            )
    if len(rates) > layers:
        raise InputError(f"`prune`: {len(rates)} rates for a network of {layers} layers; give at most {layers}")
    return rates + (rates[-1],) * (layers - len(rates))


def live_schedule(sizes: tuple[int, ...], rates: tuple[float, ...], rounds: int) -> list[tuple[int, ...]]:
    """Live weights of each layer after 0, 1, ..., ``rounds`` rounds.

    Args:
        sizes: weights of each prunable layer.
        rates: fraction of live weights that a round drops, of each layer, in (0, 1).
        rounds: how many; none gives ``sizes`` alone.

    Raises:
        InputError: a round would leave a layer empty, or drop nothing at all.
    """
    schedule = [sizes]
    for number in range(1, rounds + 1):
        before = schedule[-1]
        after = tuple(live - prune_count(live, rate) for live, rate in zip(before, rates, strict=True))
        for layer, live in enumerate(after, start=1):
            if live < 1:
                raise InputError(
                    f"`rounds`: round {number} of {rounds} would empty layer {layer} (of {sizes[layer - 1]} weights);"
                    + (f" ask for at most {number - 1} rounds or prune less" if number > 1 else " prune less")
                )
        if after == before:
            raise InputError(f"`prune`: the rates are too small: round {number} would drop no weight of any layer")
        schedule.append(after)
    return schedule
