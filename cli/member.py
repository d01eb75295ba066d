"""One member of a sweep: what an arm of a recipe asks for, with one seed, in a folder of its own."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli import generate, latent_encode, latent_train, select, tickets_make
from dpltm.cli.common import origin_events
from dpltm.cli.console import Console
from dpltm.cli.options import read_section, resolve
from dpltm.cli.recipe import (
    Member,
    Recipe,
    Section,
    data_of,
    dataset_of,
    digest,
    laid,
    provenance,
    searched_with,
    slug,
)
from dpltm.errors import InputError
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest

if TYPE_CHECKING:
    from dpltm.tickets.sweep_files import SweepFolder

SEARCHED = ("lr", "clip-norm", "epochs", "batch-size", "tuned-on")
"""What a search decides of a training."""


class Busy(Exception):
    """Another process is making what a member needs; there is other work meanwhile."""


@dataclass(frozen=True)
class Maker:
    """Makes members, and what they share, in the folder of a sweep."""

    folder: SweepFolder
    quiet: Console

    def run(self, member: Member) -> None:
        """Makes a member, under its lock, with whatever it needs.

        Raises:
            Busy: another process is making something that it needs; nothing was begun.
            DpltmError: it cannot be made.
        """
        from dpltm.tickets.published import published
        from dpltm.tickets.sweep_files import DIED

        settings = self._settings(member)
        self._check_settings(member, settings)
        source = None if member.arm.tickets is None else self._set(member.recipe, member.arm.tickets, member.seed)
        if not self.folder.begin(member.label):
            raise InputError(DIED)
        began = time.perf_counter()
        body = self._latent(member) if member.arm.latent is not None else self._trained(member, source, settings)
        if member.arm.tune is not None:
            body["settings"] = _found(settings)
        self.folder.took(member.label, time.perf_counter() - began, _threads())
        kept = {key: published(value) if key in ("select", "train") else value for key, value in body.items()}
        self.folder.finish(
            member.label,
            {"arm": member.arm.name, "seed": member.seed, "digest": member.digest, "records": self._records(member),
             **kept},
        )  # fmt: skip

    def _records(self, member: Member) -> dict[str, Any] | None:
        """Keyed identity of the records that were trained on, so that others are not taken for them later."""
        path = self.folder.member(member.label) / "run" / "config.json"
        return json.loads(path.read_text(encoding="utf-8")).get("records") if path.exists() else None

    def _trained(self, member: Member, source: Path | None, settings: Section) -> dict[str, Any]:
        from dpltm.tickets.workbench.train import train

        arm, home = member.arm, self.folder.member(member.label)
        out, ledger = home / "run", home / "ledger.jsonl"
        _remove(out)
        given: dict[str, Any] = {"out": str(out), "ledger": str(ledger), "seed": member.seed}
        found: dict[str, Any] = {}
        path = str(member.recipe.path)
        if source is None:
            given["dense"] = True
        elif arm.select is not None:
            copy = home / "tickets"  # a draw is remembered with the set, and others draw from it as well
            _remove(copy)
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("ledger.jsonl"))
            public = arm.select.get("rule") == "smallest-within"
            drawn = {"set": str(copy), **({} if public else {"ledger": str(ledger)})}
            section = arm.select if public else {**data_of(arm.train), **arm.select}
            found["select"] = select.run(resolve(select.SelectOptions, drawn, section, path), self.quiet)
            given["ticket"] = str(copy)
        else:
            given["ticket"] = f"{source}@{_round(member, source, settings)}"
        options = laid(arm.train, {key: value for key, value in settings.items() if key in SEARCHED})
        found["train"] = train(resolve(TrainRequest, given, options, path), self.quiet)
        _remove(home / "tickets")
        return found

    def _latent(self, member: Member) -> dict[str, Any]:
        stages, home, path = member.arm.latent or {}, self.folder.member(member.label), str(member.recipe.path)
        scheme, messages, out = home / "scheme", home / "owners.msg", home / "run"
        for old in (scheme, messages, out):
            _remove(old)
        agreed = resolve(latent_encode.SchemeOptions, {"out": str(scheme)}, stages["scheme"], path)
        latent_encode.make_scheme(agreed, self.quiet)
        sent = {"scheme": str(scheme), "out": str(messages), "ledger": str(home / "ledger.jsonl")}
        encoded = latent_encode.encode(resolve(latent_encode.EncodeOptions, sent, stages["encode"], path), self.quiet)
        given = {"scheme": str(scheme), "messages": str(messages), "out": str(out), "seed": member.seed}
        learned = latent_train.run(resolve(latent_train.TrainOptions, given, stages["train"], path), self.quiet)
        _remove(messages)
        return {"train": {**learned, "privacy": encoded["privacy"]}}

    def _set(self, recipe: Recipe, name: str, seed: int) -> Path:
        """The folder of a ticket set; made, if nobody has."""
        section = dict(recipe.tickets[name])
        source = section.pop("from", None)
        seed = section.pop("seed", seed)
        origin = None if source is None else self._set(recipe, source, seed)
        key = digest([section, seed, None if origin is None else origin.name])
        path = self.folder.root / "tickets" / f"{slug(name)}-s{seed}-{key[:8]}"

        def make() -> None:
            if origin is not None:
                given = {"set": str(origin), "out": str(path), "seed": seed, "name": name}
                tickets_make.transferred(resolve(tickets_make.TransferOptions, given, section, str(recipe.path)))
                return
            given = {"out": str(path), "seed": seed, "name": name}
            generate.run(resolve(generate.GenerateOptions, given, section, str(recipe.path)), self.quiet)

        self._once(path, make)
        self._check_made(path, recipe, name)
        return path

    @staticmethod
    def _check_made(path: Path, recipe: Recipe, name: str) -> None:
        """Raises InputError for a set in the folder that is not what the recipe asks for: it decides what is certified."""
        from dpltm.tickets.store import find_set

        found, wanted = find_set(str(path)).provenance, provenance(recipe.tickets, name)
        if found != wanted:
            raise InputError(
                f"{path}: its provenance is {found}, and that of [tickets.{name}] is {wanted}; remove it, and it is made"
            )

    def _settings(self, member: Member) -> dict[str, Any]:
        """What a search for the arm found, as options of ``dpltm train``; nothing where there is none."""
        arm, recipe = member.arm, member.recipe
        if arm.tune is None:
            return {}
        asked = searched_with(arm)
        name, seed = asked.pop("tickets", arm.tickets), asked.pop("seed", 0)
        if self._per_seed(member):
            seed = member.seed
        tickets = None if name is None else self._set(recipe, name, seed)
        if tickets is not None and name != arm.tickets:
            self._check_other(tickets, member)
        if tickets is not None and isinstance(arm.round, int):
            asked["rounds"] = str(arm.round)
        key = digest([asked, seed, None if tickets is None else tickets.name])
        records = slug(str(asked.get("dataset", "records")))
        path = self.folder.root / "tune" / f"{records}-{key[:8]}.toml"  # of all arms that ask the same

        def make() -> None:
            from dpltm.tickets.workbench.tune import tune

            given = {"out": str(path), "seed": seed, "set": None if tickets is None else str(tickets)}
            tune(resolve(TuneRequest, given, asked, str(recipe.path)), self.quiet, portable=True)

        self._once(path, make)
        return read_section(path, "train")

    def _check_settings(self, member: Member, settings: Section) -> None:
        """Raises InputError where other members of the row were trained with what an earlier search found."""
        if member.arm.tune is None or self._per_seed(member):
            return
        found = _found(settings)
        for other in (other for other in member.recipe.members if other.arm is member.arm):
            had = (self.folder.result(other.label) or {}).get("settings", found)
            if had != found:
                raise InputError(
                    f"{other.label} was trained with what another search found, {had}, and that is gone from tune/; put it"
                    " back, or take another --out"
                )

    @staticmethod
    def _per_seed(member: Member) -> bool:
        """Whether the search looks at a release, which must be the one that this member's ledger holds."""
        arm = member.arm
        name = searched_with(arm).get("tickets", arm.tickets)
        return (
            name is not None and name == arm.tickets and provenance(member.recipe.tickets, name) in ("dp", "private")
        )

    @staticmethod
    def _check_other(tickets: Path, member: Member) -> None:
        """Raises InputError for a set to search with that tells of the records which are trained on, and is in no ledger."""
        from dpltm.tickets.identity import reference
        from dpltm.tickets.store import find_set

        dataset = dataset_of(member.arm.train, member.recipe.path)
        records = reference(dataset)
        behind = origin_events(find_set(str(tickets)), dataset, records)
        if any(event.dataset.may_overlap(records) for event in behind):
            raise InputError(
                f"tune tickets: {tickets.name} was made from records that are trained on, and what that cost is not in the"
                " ledger of this training; search with the arm's own tickets, or with a public set"
            )

    def _once(self, path: Path, make: Any) -> None:
        """Makes something that members share, unless it is there.

        Raises:
            Busy: another process is making it.
            InputError: it failed, here or in another process of this session.
        """
        if path.exists():
            return
        name = f"{path.parent.name}-{path.stem if path.suffix == '.toml' else path.name}"
        with self.folder.lock(name) as mine:
            if not mine:
                raise Busy
            if path.exists():
                return
            failed = self.folder.failure(name)
            if failed is not None:
                raise InputError(failed)
            try:
                make()
            except Exception as error:
                self.folder.fail(name, f"{path.parent.name} {path.name}: {error or type(error).__name__}")
                raise


def _found(settings: Section) -> dict[str, Any]:
    """What a search found, without where its tickets are."""
    from dpltm.tickets.store import split_round

    number = split_round(str(settings["ticket"]))[1] if "ticket" in settings else None
    return {key: settings[key] for key in SEARCHED if key in settings} | {"round": number}


def _round(member: Member, source: Path, settings: Mapping[str, Any]) -> int:
    """Which ticket a member trains, where none is drawn."""
    from dpltm.tickets.store import find_set, split_round

    wanted = member.arm.round
    if isinstance(wanted, int):
        return wanted
    if wanted == "tuned":
        number = split_round(str(settings["ticket"]))[1]
        assert number is not None  # dpltm tune names one
        return number
    rounds = [ticket.round for ticket in find_set(str(source)).body.tickets if ticket.round]
    return random.Random(f"{member.seed} {member.arm.tickets}").choice(rounds)


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _remove(path: Path) -> None:
    """Takes away what an attempt before left."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
