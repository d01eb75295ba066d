"""What was done, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpltm.privacy.figures import figure
from dpltm.reports.fields import HARDLY, people, percent, provenance_of

TICKETS = "A lottery ticket is a small part of a network, found by training, pruning and going back to the start."
ENTRIES = "Whatever touched private records is among the entries, and the figure covers all of it."


def in_plain_words(body: Mapping[str, Any]) -> list[str]:
    """A few sentences for somebody who knows neither tickets nor differential privacy."""
    kind = {"run": _run, "tickets": _tickets, "sweep": _sweep}[body["kind"]]
    return [*kind(body["settings"], body), _cost(body)]


def _run(said: Mapping[str, Any], body: Mapping[str, Any]) -> list[str]:
    if said.get("steps") is None:
        return ["A training under differential privacy, of which not everything is known here."]
    who = people(body)
    part = "" if said.get("density") in (None, 1.0) else f", of whose weights {percent(said['density'])} are live,"
    network = f"A network ({said['model']}){part}" if said.get("model") else f"A network{part}"
    took = f"all {who}" if said.get("sampling_rate") == 1 else f"a random part of the {who}"
    each = "each group of them" if said.get("groups") is not None else "each of them"
    lines = [
        f"{network} was trained on the records {said['records'] or said['dataset']} in {said['steps']:,} steps. Each step"
        f" took {took}, limited what {each} could contribute, and added random noise to the sum."
    ]
    if said.get("per_unit") is not None:
        lines.append(f"A person may have several records; {said['per_unit']:,} of each person were used at most.")
    if said.get("ticket_set") is not None:
        lines.append(f"It started from a ticket, round {said.get('round')} of a set. {TICKETS} {provenance_of(said)}")
    kinds = {mechanism["mechanism"] for entry in body["entries"] for mechanism in entry["mechanisms"]}
    if "search" in kinds and said.get("tries") is not None:
        lines.append(
            f"It is the best of a secret number of trainings, {said['tries']:.3g} in the mean, each at one of"
            f" {said.get('tried')} settings drawn at random. The figure pays for all of them."
        )
    released = dict.fromkeys(
        str(entry["words"])
        for entry in body["entries"]
        if {mechanism["mechanism"] for mechanism in entry["mechanisms"]} & {"gaussian", "laplace"}
        and not any(mechanism["mechanism"] == "sgd" for mechanism in entry["mechanisms"])
    )
    if released:
        lines.append(f"Released with noise of their own, and counted as well: {', '.join(released)}.")
    if "selection" in kinds:
        lines.append(
            "Which ticket it was, was drawn at random, the better ones with a larger chance: that is private as well."
        )
    return lines


def _tickets(said: Mapping[str, Any], body: Mapping[str, Any]) -> list[str]:
    del body
    made = "no records at all" if said.get("records") is None else f"the records {said['records']}"
    return [
        f"A set of {said['rounds']} lottery tickets of a network ({said['model']}), made from {made} by {said['criterion']}"
        f" pruning. {TICKETS} {provenance_of(said)}"
    ]


def _sweep(said: Mapping[str, Any], body: Mapping[str, Any]) -> list[str]:
    del body
    return [
        f"An experiment: {said['finished']} of {said['members']} trainings in {said['arms']} rows have ended. Each has its"
        " own guarantee, for the case that it alone is released. The figure here is for all of them together."
    ]


def _cost(body: Mapping[str, Any]) -> str:
    certified = body["certified"]
    if certified["epsilon"] == "inf":
        return "Something was made from private records without protection, so nothing can be certified for them."
    if certified["epsilon"] == 0:
        return "No private record was touched, so it may be released without a thought for privacy."
    little = " So large an epsilon is hardly a guarantee." if certified["epsilon"] >= HARDLY else ""
    return f"Together this costs epsilon {figure(certified['epsilon'])} at delta {certified['delta']:g}. {ENTRIES}{little}"
