"""The account against the executable world, and each of its rules removed in turn against the same.

Which test fails where a rule is taken away; each was tried. ``RULES`` here are those that random histories show.

==== ================================ ======================================================================================
rule without                          caught by
==== ================================ ======================================================================================
1    beside the file                  cli/test_whose_records.py::test_everything_in_one_folder_adds_up
1    a link, another form             test_account_file.py::test_a_link_to_a_file..., ::test_other_forms...
2    names, apart, carried            here
3    ids, known again                 here
4    a draw marks its set             dpltm/test_api.py::test_a_ledger_that_is_named_is_the_one
4    and its folder                   cli/test_tickets.py::test_what_a_training_is_made_of_counts
5    heads in values                  here
5    heads in the user's folder       test_account_file.py::test_a_ledger_that_holds_less_than_it_did_is_refused...
6    unprotected is infinite          here
6    excluded, either order           dpltm/training/test_private_loop.py::test_records_that_were_tested_on_or_declared...
6    an audit of tickets is entered   dpltm/verbs/test_audit.py::test_the_mask_alone_refutes_what_is_claimed
6    --unprotected must be said       test_account.py::test_an_account_that_has_a_figure_is_not_ended_unasked
7    the same file, any name          test_account.py::test_a_declaration_holds_for_its_snapshot_under_any_name
7    the same name, edited            test_account.py::test_a_dataset_by_name_is_public_or_private_also_once_it...
8    cuts, snapshots, columns, units  here
8    no declaration beside a move     test_account.py::test_under_replace_one_no_part_by_hash_is_protected_beside...
9    one unit, two steps              here
10   first by the order of a ledger   here
10   stated for settled releases      test_account.py::test_a_figure_of_several_releases_is_said_to_hold_for_settled_ones
11   the day                          test_account.py::test_entries_carry_the_day_and_no_finer_time
12   met again, counted once          here
12   other settings or records        test_release.py::test_other_settings_or_records_do_not_go_on
12   another ledger, drawn or not     test_release.py::test_a_checkpoint_whose_ledger_is_another
13   trials that lost                 here
14   budgets                          here
15   a message counts                 here
15   of others, said one an owner     test_account.py::test_messages_of_other_owners_are_said_to_be_counted_one_each
16   a ledger in memory elsewhere     test_release.py::test_a_forked_process_draws_nothing_that_its_parent_paid_for
16   values elsewhere                 test_release.py::test_a_forked_process_draws_nothing_that_its_parent_paid_for
16   pickled ledgers                  test_account.py::test_a_ledger_is_one
16   pickled secrets                  test_release.py::test_no_secret_leaves_its_process_or_is_shown
==== ================================ ======================================================================================
"""

from collections import Counter
from dataclasses import replace

import pytest

from dpltm.privacy import account as accounts
from dpltm.privacy import accountant
from dpltm.privacy import entry as entries
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage, Part
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import PrivateSearch, Selection, Unprotected
from world import QUICK, History


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Budgets ask the accountant of the world as well: what it says differs, and which releases count does not."""
    ACCOUNTANTS.register(QUICK)
    monkeypatch.setattr(accounts, "QUICK_FIRST", (QUICK.name,))
    yield
    ACCOUNTANTS.pop(QUICK.name)


def check(histories):
    """Run histories from the first seed on, none of which may find anything; return what they counted."""
    counts = Counter()
    for seed in range(histories):
        history = History(seed).run()
        assert not history.findings, (seed, history.findings)
        counts += history.counts
    return counts


def judge(counts, histories):
    assert counts["compared"] > 10 * histories
    assert counts["equal"] > 0.4 * counts["compared"]
    assert counts["plain"] > 0.2 * counts["compared"]
    assert all(counts[what] > histories / 20 for what in ("refused", "units refused", "over budget"))


def test_no_figure_is_below_the_truth_and_plain_ones_are_equal():
    judge(check(250), 250)


@pytest.mark.long
def test_no_figure_is_below_the_truth_in_many_histories():
    counts = check(20_000)
    judge(counts, 20_000)
    print({name: round(counts[name] / counts["compared"], 3) for name in ("equal", "plain")})


# --- each rule removed ----------------------------------------------------------------------------------------------

CUT_KEY, CAN_BE_APART, PIECES = Part.cut_key.fget, Part.can_be_apart, Account.pieces.func
OF, CHECK_BUDGET, CHECK = Account.of.__func__, Account.check_budget, Book._check


def without(holder, name, act):
    return lambda patch: patch.setattr(holder, name, act)


def cuts(**where):
    """Let ranges separate as always, and also wherever a cut, a unit and a relation are those of ``where``."""

    def can_be_apart(self, unit, adjacency):
        here = {"cut": self.cut, "unit": unit, "adjacency": adjacency}
        return CAN_BE_APART(self, unit, adjacency) or where.items() <= here.items()

    return without(Part, "can_be_apart", can_be_apart)


def names(apart):
    """Let an account set aside what ``apart`` says, of an entry, the account, and the names that anybody declares apart."""

    def of(cls, held, lineage=None, **seen):
        whole = OF(cls, held, lineage, **seen)
        anybody = {entry.population for entry in whole.entries if entry.kind == "apart"}
        aside = tuple(entry for entry in whole.paid if apart(entry, whole, anybody))
        counted = tuple(entry for entry in whole.entries if entry not in aside)
        return replace(whole, entries=counted, aside={**whole.aside, "more": aside})

    return without(Account, "of", classmethod(of))


def unions(key):
    """Let unions know entries by ``key``, and believe the last one of each."""

    def union(*groups):
        return tuple({key(entry): entry for group in groups for entry in group}.values())

    def act(patch):
        patch.setattr(entries, "union", union)
        patch.setattr(accounts, "union", union)
        patch.setattr(Lineage, "__post_init__", lambda _: None)

    return act


def order(first):
    """Let a draw come first where ``first`` says so of its entry and the others; None leaves what is stored."""

    def in_order(entry, piece):
        others = [other for other in piece if other is not entry]
        for mechanism in entry.mechanisms:
            told = first(entry, others) if isinstance(mechanism, Selection) else None
            yield mechanism if told is None else replace(mechanism, adaptive=not told)

    return without(accounts, "_in_order", in_order)


def before(entry, other):
    return entry.home == other.home and entry.sequence < other.sequence


def pieces(keep):
    return without(Account, "pieces", property(lambda self: keep(PIECES(self))))


def budgets(choose):
    def budget(self):
        found = choose([entry for entry in self.entries if entry.kind == "budget"], self.home)
        return found[-1].mechanisms[0] if found else None

    return without(Account, "budget", property(budget))


def one_step(mechanism):
    if isinstance(mechanism, PrivateSearch):
        mechanism = replace(mechanism, trainings=tuple(map(one_step, mechanism.trainings)), adjacency="replace-one")
    return replace(mechanism, adjacency="replace-one")


def own_entries(self, drafts):
    own = tuple(entry for entry in self.entries if entry.home == self.home)
    return CHECK_BUDGET(replace(self, entries=own), drafts)


def seen(entries, lineage):
    """Let accounts of a book see its entries, a lineage, or only one of the two."""

    def account(self, behind=NO_LINEAGE):
        held = self.entries if entries else ()
        seen = {"home": self.home, "population": self.population, "unit": self.unit}
        return Account.of(held, behind if lineage else NO_LINEAGE, **seen)

    return without(Book, "account", account)


def any_population(self, book, drafts, ids):
    after = book.adding(drafts, ids)
    self._store.add(book, after)
    return after.entries[len(book.entries) :]


def protected(self):
    return self.kind in ("release", "local") and not isinstance(self.mechanisms[0], Unprotected)


RULES = {
    "2: a name alone separates": names(lambda entry, seen, _: entry.population not in (None, seen.population)),
    "2: whoever has no name is apart": names(
        lambda entry, seen, _: entry.population is None and entry.home != seen.home
    ),
    "2: what others declare separates": names(
        lambda entry, seen, apart: entry.population in apart - {seen.population}
    ),
    "2: what is apart is not carried": without(
        Account, "of", classmethod(lambda cls, *args, **seen: replace(OF(cls, *args, **seen), aside={}))
    ),
    "2: people of another name are entered": without(Ledger, "_add", any_population),
    "3: releases alike are one": unions(lambda entry: replace(entry, id="", sequence=0)),
    "3: an edited entry is believed": unions(lambda entry: entry.id),
    "5: heads are not compared": without(Book, "_check", lambda self, value: CHECK(self, replace(value, heads=()))),
    "5: a value may know more than its ledger": without(Book, "_check", lambda *_: None),
    "6: what is unprotected is free": without(Entry, "paid", property(protected)),
    "8: snapshots do not matter": without(Part, "cut_key", property(lambda self: CUT_KEY(self)[1:])),
    "8: columns do not matter": without(Part, "cut_key", property(lambda self: CUT_KEY(self)[:2])),
    "8: cuts do not matter": without(Part, "cut_key", property(lambda self: self.snapshot)),
    "8: an unknown snapshot is one": cuts(cut="place", unit="record"),
    "8: a record's hash separates persons": cuts(cut="record", unit="patient", adjacency="add-remove"),
    "8: the hash of whom persons see separates them": cuts(cut="person", unit="patient", adjacency="add-remove"),
    "8: places separate persons": cuts(cut="place", unit="patient"),
    "8: a record's hash separates what is replaced": cuts(cut="record", unit="record"),
    "8: a person's hash separates what is replaced": cuts(cut="person"),
    "8: ranges separate nobody": without(Part, "can_be_apart", lambda *_: False),
    "8: ranges that overlap are apart": without(
        accounts, "_cells", lambda held: [frozenset([each.id]) for each in held]
    ),
    "8: only one piece is priced": pieces(lambda found: found[:1]),
    "8: what is whole is in no piece with a range": pieces(
        lambda found: tuple(tuple(each for each in piece if each.part.cut != "whole") or piece for piece in found)
    ),
    "9: units are not compared": without(Account, "__post_init__", lambda _: None),
    "9: two steps are one": without(accounts, "as_replace_one", one_step),
    "10: first is stored": order(lambda *_: None),
    "10: other ledgers come later": order(
        lambda entry, others: all(before(entry, other) or entry.home != other.home for other in others)
    ),
    "10: a draw is first beside others of its entry": order(
        lambda entry, others: all(before(entry, other) for other in others)
    ),
    "10: no draw is first": order(lambda *_: False),
    "12: an entry that is met twice counts twice": unions(lambda _: object()),
    "13: a trial that lost is free": seen(entries=False, lineage=True),
    "14: budgets do not see what a value is made of": without(Account, "check_budget", own_entries),
    "14: the first budget rules": budgets(lambda held, home: [entry for entry in held if entry.home == home][:1]),
    "14: budgets of other ledgers rule": budgets(lambda held, _: held),
    "14: no budget rules": without(Account, "check_budget", lambda *_: None),
    "15: a message is free": without(Entry, "paid", property(lambda self: self.kind == "release")),
    "lineage: a ledger does not see it": seen(entries=True, lineage=False),
    "lineage: unions forget": without(Lineage, "__or__", lambda self, other: other or self),
    "figure: the best case": without(
        Account,
        "epsilon",
        lambda self, *asked: min(accountant.epsilon(self.mechanisms(piece), *asked) for piece in self.pieces),
    ),
}


@pytest.mark.one_of(3)
@pytest.mark.parametrize("rule", RULES)
def test_the_world_finds_what_is_wrong_without(rule, monkeypatch):
    RULES[rule](monkeypatch)
    for seed in range(500):
        if History(seed).run().findings:
            return
    pytest.fail("500 histories found nothing")
