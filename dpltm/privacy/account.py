"""Accounts: what the entries of a ledger and of a lineage come to together, for one population and one unit.

Which entries count, and which of them touched the same people (docs/privacy-model.md 1.5 to 1.7 and 5.9):

- Everything in the ledger and in the lineage counts, once an id. Entries of a population that this ledger declares *apart*
  are set aside and shown beside the figure; a name alone separates nothing.
- Disjoint ranges of one public cut of one snapshot compose in parallel: a neighbour changes one of them. All else adds up.
- One unit. A figure for records and one for persons are never added: such an account is refused.
- Under mixed relations everything is priced as replace-one: a release that is stated for add/remove counts as two steps.
- Messages under local DP add up in the ledger of their owner. In any other account each ledger that messages come from is
  one owner, and nobody is several of them: what counts is the owner who spent most.
- A draw is the first release only where everything else that counts with it was entered later in the same ledger.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from dpltm.errors import BudgetError, InputError
from dpltm.privacy.accountants import FINE, Resolution
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import NO_LINEAGE, RECORD, UNKNOWN_RECORDS, Entry, Id, Lineage, Part, union
from dpltm.privacy.mechanisms import Adjacency, Guarantee, Mechanism, Selection, Unprotected, over_two_steps
from dpltm.registry import Deferred

if TYPE_CHECKING:
    from dpltm.privacy.pld import Profile

# the accountant takes libraries that entering an entry does not
_EPSILON, _PROFILE = Deferred("dpltm.privacy.accountant:epsilon"), Deferred("dpltm.privacy.accountant:profile")
_FILTER = Deferred("dpltm.privacy.accountant:filter_epsilon")
MAX_PIECES = 256  # combinations of parts that are priced singly; beyond, cuts are whole, which never costs less
QUICK_FIRST = "rdp", "pld"  # accountants that budgets ask: what one admits is admitted; either may be the tighter


@dataclass(frozen=True)
class Account:
    """Entries that count together, those of the ledger first; an entry that protects another unit raises InputError.

    Attributes:
        home: id of the ledger from which they are seen; empty where there is none.
        population, unit: of that ledger; the unit is whom the figure is for.
        aside: entries of populations that are declared apart, by population.
    """

    entries: tuple[Entry, ...] = ()
    home: Id = ""
    population: str | None = None
    unit: str = RECORD
    aside: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for entry in self.entries:
            if entry.paid and entry.unit != self.unit:
                raise InputError(
                    f"`unit`: a release from {entry.part} ({entry.words}) protects one {entry.unit}, and this account one"
                    f" {self.unit}, with no common figure; use another `ledger`, in Python with unit={entry.unit!r}"
                )

    @classmethod
    def of(
        cls,
        entered: Iterable[Entry],
        lineage: Lineage = NO_LINEAGE,
        *,
        home: Id = "",
        population: str | None = None,
        unit: str = RECORD,
    ) -> Account:
        """Return the account of what a ledger holds and a value depends on.

        Args:
            entered: entries of the ledger, in order.
            lineage: of the value.
            home, population, unit: of the ledger.
        """
        entries = union(entered, lineage.entries)
        apart = {entry.population for entry in entries if entry.kind == "apart" and entry.home == home}
        counted: list[Entry] = []
        aside: dict[str, list[Entry]] = {}
        for entry in entries:
            name = entry.population
            if entry.paid and name is not None and name != population and name in apart:
                aside.setdefault(name, []).append(entry)
            else:
                counted.append(entry)
        return cls(tuple(counted), home, population, unit, {name: tuple(group) for name, group in aside.items()})

    @classmethod
    def alone(cls, lineage: Lineage) -> Account:
        """Return the account of a value by itself, without its ledger, for whom its first release protects."""
        return cls.of((), lineage, unit=next((entry.unit for entry in lineage.paid), RECORD))

    def __add__(self, drafts: Iterable[Entry]) -> Account:
        """The account with drafts added, as they would be entered in its ledger; what counts already counts once."""
        last = max((entry.sequence for entry in self.entries if entry.home == self.home), default=0)
        new = (
            entry if entry.id else replace(entry, id=f"draft {last + place}", home=self.home, sequence=last + place)
            for place, entry in enumerate(drafts, start=1)
        )
        return replace(self, entries=union(self.entries, new))

    def without(self, left_out: Entry) -> Account:
        return replace(self, entries=tuple(entry for entry in self.entries if entry.id != left_out.id))

    @property
    def paid(self) -> tuple[Entry, ...]:
        """Entries that cost something."""
        return tuple(entry for entry in self.entries if entry.paid)

    @property
    def adjacency(self) -> Adjacency | None:
        """Relation that the figure is for: replace-one where any release needs it; None of no release."""
        stated = {m.adjacency for entry in self.paid for m in entry.mechanisms if not isinstance(m, Unprotected)}
        return "replace-one" if "replace-one" in stated else ("add-remove" if stated else None)

    @property
    def replaced(self) -> Account:
        """The account of the same releases as they concern a person who is replaced."""
        entries = (replace(entry, mechanisms=tuple(map(as_replace_one, entry.mechanisms))) for entry in self.entries)
        return replace(self, entries=tuple(entries))

    @cached_property
    def pieces(self) -> tuple[tuple[Entry, ...], ...]:
        """Groups of entries that can touch one person together; none is part of another.

        Guarantees:
            Whoever a neighbour changes, the entries whose outcome that can change are all in one of the groups, or cost what
            those of one do: of owners of messages whose ledgers hold the same mechanisms, one stands for all.
        """
        adjacency = self.adjacency or "add-remove"
        everywhere, cuts = set[Id](), dict[tuple[object, ...], list[Entry]]()
        owners = dict[Id, list[Entry]]()
        for entry in self.paid:
            if entry.kind == "local" and entry.home != self.home:
                owners.setdefault(entry.home, []).append(entry)
            elif entry.part.can_be_apart(self.unit, adjacency):
                cuts.setdefault(entry.part.cut_key, []).append(entry)
            else:
                everywhere.add(entry.id)
        groups, too_many = [frozenset(everywhere)], False
        for key in sorted(cuts, key=repr):
            cells = _cells(cuts[key])
            # once there are too many, all that follow are whole: so no entry lowers a figure
            too_many = too_many or len(groups) * len(cells) > MAX_PIECES
            if too_many:
                cells = [frozenset().union(*cells)]
            groups = [group | cell for group in groups for cell in cells]
        alike = {
            tuple(entry.mechanisms for entry in sent): frozenset(entry.id for entry in sent)
            for sent in owners.values()
        }
        apart = list(alike.values()) if len(alike) <= MAX_PIECES else [frozenset().union(*alike.values())]
        groups = [group | owner for group in groups for owner in apart] if apart else groups
        touched = [tuple(entry for entry in self.paid if entry.id in group) for group in groups]
        return tuple(dict.fromkeys(touched))

    def mechanisms(self, piece: tuple[Entry, ...]) -> tuple[Mechanism, ...]:
        """Return the mechanisms of a piece as an accountant takes them."""
        mechanisms = [mechanism for entry in piece for mechanism in _in_order(entry, piece)]
        return tuple(map(as_replace_one, mechanisms) if self.adjacency == "replace-one" else mechanisms)

    def epsilon(self, delta: float, accountant: str = "pld", *, resolution: Resolution = FINE) -> float:
        """Return the certified epsilon of everything that counts, for any one person.

        Arguments as :func:`dpltm.privacy.accountant.epsilon`, and raises as that.

        Guarantees:
            Upper bound on the true epsilon of the composition of what the entries state. It holds for mechanisms that were
            settled beforehand, or by a rule that does not look at answers (docs/privacy-model.md 5.9).
        """
        prices = (_EPSILON(self.mechanisms(piece), delta, accountant, resolution=resolution) for piece in self.pieces)
        return float(max(prices))

    def filter_epsilon(self, delta: float) -> float:
        """Return the figure of Renyi filters (``accountant.filter_epsilon``), of parts that answers chose, too."""
        return max(float(_FILTER(self.mechanisms(piece), delta)) for piece in self.pieces)

    def profiles(self) -> list[Profile]:
        """Return the certified delta at every epsilon, one profile a piece; InputError where nothing can be certified."""
        return [_PROFILE(self.mechanisms(piece)) for piece in self.pieces]

    @property
    def budget(self) -> Guarantee | None:
        """Budget in force: the last one that its own ledger holds."""
        set_here = [entry for entry in self.entries if entry.kind == "budget" and entry.home == self.home]
        return set_here[-1].mechanisms[0] if set_here else None  # type: ignore[return-value]

    def check_budget(self, drafts: Iterable[Entry]) -> None:
        """Raise BudgetError, with the total, if ``drafts``, in order, would exceed the budget in force."""
        drafts = tuple(drafts)
        limit = (self + drafts).budget
        if limit is None or not any(entry.paid for entry in drafts):
            return
        total = math.inf
        for accountant in QUICK_FIRST:
            if (total := min(total, (self + drafts).epsilon(limit.delta, accountant))) <= limit.epsilon:
                return
        raise BudgetError(
            f"budget: this would bring the population to epsilon {figure(total)} at delta {limit.delta:g}, above the budget"
            f" of {limit.epsilon:g}; spend less, set another (dpltm privacy budget), or name the account of other people"
            " (`ledger`, `population`)"
        )


def as_replace_one(mechanism: Mechanism) -> Mechanism:
    """Return a mechanism as it concerns a person who is replaced: two steps, where it is stated for add/remove."""
    if mechanism.adjacency == "replace-one" or isinstance(mechanism, Unprotected):
        return mechanism
    if mechanism.adjacency != "add-remove":
        raise InputError(f"adjacency: no price is known under {mechanism.adjacency} for whoever is replaced")
    return replace(over_two_steps(mechanism), adjacency="replace-one")


def _in_order(entry: Entry, piece: tuple[Entry, ...]) -> Iterator[Mechanism]:
    """Mechanisms of an entry; a draw that came before everything else in its piece composes better."""
    later = (other is entry or (other.home == entry.home and other.sequence > entry.sequence) for other in piece)
    first = len(entry.mechanisms) == 1 and all(later)
    for mechanism in entry.mechanisms:
        yield replace(mechanism, adaptive=not first) if isinstance(mechanism, Selection) else mechanism


def _cells(entries: list[Entry]) -> list[frozenset[Id]]:
    """Sets of these entries, of ranges of one cut, that can touch one person together; none is part of another."""
    edges = sorted({edge for entry in entries for edge in (entry.part.start, entry.part.stop)})
    cells = {
        frozenset(entry.id for entry in entries if entry.part.start <= start and stop <= entry.part.stop)
        for start, stop in itertools.pairwise(edges)
    }
    return [cell for cell in cells if not any(cell < other for other in cells)]


@dataclass(frozen=True)
class Planned:
    """An account, and where in it a mechanism is to go: the ``part`` of the records, and ``others`` of the same release."""

    account: Account = field(default_factory=Account)
    part: Part = UNKNOWN_RECORDS
    others: tuple[Mechanism, ...] = ()

    @classmethod
    def after(cls, *mechanisms: Mechanism) -> Planned:
        """Return what comes after mechanisms that ran on the same records, one release each, in this order."""
        return cls(Account() + [Entry("release", mechanisms=(mechanism,), day="") for mechanism in mechanisms])

    def with_mechanism(self, mechanism: Mechanism | None) -> Account:
        """Return the account with the release in it; for None, with ``others`` and what can touch the same people."""
        account, mechanisms = self.account, (*self.others, *(() if mechanism is None else (mechanism,)))
        if mechanism is None:
            relation = account.adjacency or "add-remove"
            touching = (entry for entry in account.entries if not entry.part.apart(self.part, account.unit, relation))
            account = replace(account, entries=tuple(touching))
        return account + ([Entry("release", self.part, mechanisms, unit=account.unit, day="")] if mechanisms else [])

    def epsilon(
        self, plan: Mechanism | None, delta: float, accountant: str = "pld", *, resolution: Resolution = FINE
    ) -> float:
        """Return the certified epsilon of the account and then ``plan``, None for nothing. See :meth:`Account.epsilon`."""
        return self.with_mechanism(plan).epsilon(delta, accountant, resolution=resolution)


NOTHING = Planned()  # nothing was released before
_DECLARED = {"public": "public", "excluded": "apart from the people that are protected (a test split)"}  # not private


def check_private(account: Account, part: Part) -> None:
    """Raise InputError for a release on ``part`` if it was declared public, or not to be the population's."""
    for entry in account.entries:
        if entry.kind in _DECLARED and _meets(entry.part, part, by_name=entry.kind == "public"):
            raise InputError(
                f"`dataset`: {entry.part} was declared {_DECLARED[entry.kind]}, and {part} shares records with it; the same"
                " records cannot be private here: take other records, or a `ledger` of their own"
            )
    for entry in account.paid:
        if entry.part.regroups(part):
            raise InputError(
                f"`units`: an earlier release ({entry.words}, {entry.day}) protects other persons than {part} says, in the"
                " same records, and no figure would hold for both; name the same persons"
            )


def check_moves(account: Account) -> None:
    """Refuse releases under replace-one from a part by hash, beside a declaration of another by hash of the same
    records: a record replaced by one of another hash would leave what is protected for what is not."""
    paid = account.paid if account.adjacency == "replace-one" else ()
    for declared, entry in itertools.product([entry for entry in account.entries if entry.kind in _DECLARED], paid):
        moves = not declared.part.can_be_apart(account.unit, "replace-one")
        if moves and entry.part.snapshot is not None and entry.part.snapshot == declared.part.snapshot:
            raise InputError(
                f"`dataset`: {declared.part} was declared {_DECLARED[declared.kind]}; under replace-one a record may leave"
                f" one part by hash for another, so {entry.part} is not protected beside it: take places for both, or"
                " add-remove"
            )


def check_declared(account: Account, part: Part, kind: str) -> None:
    """Raise InputError if ``part``, from which a release was made, is to be declared public or excluded."""
    measured = (
        ", name the `ledger` that paid, which tells parts of a file apart, or train with `eval_private`, which pays for a"
        " measurement; a test split has to be left out of every release, that of a schema too (`test`)"
    )
    for entry in account.paid:
        if _meets(entry.part, part, by_name=kind == "public"):
            raise InputError(
                f"`dataset`: {entry.part} is protected by a release on record ({entry.words}, {entry.day}), and {part}"
                f" shares records with it; the same records cannot be {kind}: take other records"
                + ("" if kind == "public" else measured)
            )


def check_unprotected(account: Account, drafts: Iterable[Entry], allowed: bool) -> None:
    """Refuse drafts that would join releases without protection to an account that has guarantees, unless ``allowed``."""
    ends = any(draft.of(Unprotected) for draft in drafts)
    if ends and account.paid and not allowed and not any(entry.of(Unprotected) for entry in account.paid):
        raise InputError(
            "`unprotected`: the ledger holds releases with a guarantee, and one without protection would leave none for"
            " anybody in it; name a `ledger` for trying out, or say `unprotected`"
        )


def _meets(left: Part, right: Part, *, by_name: bool) -> bool:
    """True if two parts share records, as far as is declared: of one snapshot, or of a dataset that changed."""
    if left.snapshot is not None and left.snapshot == right.snapshot:
        return left.overlaps(right)
    changed = left.name == right.name and left.snapshot is not None and right.snapshot is not None
    # parts of it are known by the dataset's name; with ``by_name`` so is all of it, but for arrays of the default name
    by_known_name = by_name and left.name != UNKNOWN_RECORDS.name
    return changed and (by_known_name or left.cut != "whole" or right.cut != "whole")
