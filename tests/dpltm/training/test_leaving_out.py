"""Batches made so that last bits decide: leaving any record out moves a sum by its bound at most, and no bit of another."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from descents import keyed_descent
from dpltm.gradients import RecordGradients, engine, mapped
from dpltm.networks import full_precision
from dpltm.networks.masks import Mask
from dpltm.privacy.checkpoint import Checkpoint
from dpltm.training.descent import cross_entropy
from dpltm.training.release import Drawn
from gradient_cases import Applied
from leaving_out import FILTERS, VICTIMS, Attacked, Victim, attacked, hostile_pairs
from refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # RMSNorm in bfloat16


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with full_precision.threads(request.param):
        yield request.param


def bits(attack: Attacked, monkeypatch: pytest.MonkeyPatch, seed: int, left_out: int | None) -> dict[bytes, bytes]:
    """Of every record in a step, by what its first layer saw: all that its passes left, and its norms."""
    found: dict[bytes, bytes] = {}
    measured = engine._measured

    def watched(layers, rows, each):
        norms, bad = measured(layers, rows, each)
        left = [value.flatten(1).double() for layer in layers for value in layer.left(rows)]
        for row in torch.cat([*left, norms.T, bad[:, None].double()], 1):
            found[row.numpy().tobytes()] = b""
        return norms, bad

    monkeypatch.setattr(engine, "_measured", watched)
    attack.sums.take(attack.sample(seed, left_out))
    monkeypatch.setattr(engine, "_measured", measured)
    return found


@pytest.mark.one_of(8)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", VICTIMS)
def test_leaving_a_record_out_changes_no_bit_of_any_other(name, precision, monkeypatch):
    attack = attacked(name, FILTERS["normalize"], 131, precision=precision)
    whole = bits(attack, monkeypatch, 0, None)
    for left_out in (0, 64, 130):
        assert len(whole) - 1 <= len(set(whole) & set(bits(attack, monkeypatch, 0, left_out))) <= len(whole)


@pytest.mark.one_of(120)
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("like", ["many", "alike", "extreme"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("name", VICTIMS)
def test_leaving_a_record_out_moves_a_sum_by_its_bound_at_most(name, filter, precision, like):
    attack = attacked(name, FILTERS[filter], 257, 1, like, precision=precision)
    moved = [attack.moved(seed, 37 * seed % 257) for seed in range(3)]
    assert max(moved) <= 1
    assert max(moved) > 0 or like == "extreme"


@pytest.mark.one_of(4)
@pytest.mark.parametrize("records", [17, 33, 65, 81, 129])
@pytest.mark.parametrize("name", VICTIMS)
def test_neither_the_passes_of_a_step_nor_the_rows_of_its_last_change_a_bit_of_a_record(name, records, monkeypatch):
    """One record less, and a step takes a pass less, or a smaller one."""
    attack = attacked(name, FILTERS["clip"], records)
    if attack.gradients.pass_rows == 1:
        pytest.skip("its records pass one by one")
    attack.gradients._wanted, attack.gradients.pass_rows = (16, 32, 64), 64
    attack.sums.rehearse()
    assert set(attack.gradients._shapes) <= {16, 32, 64}
    whole = bits(attack, monkeypatch, 0, None)  # the filler may be among them, and in one step alone
    assert len(whole) - 2 <= len(set(whole) & set(bits(attack, monkeypatch, 0, 7))) <= len(whole)


class Shrinking(nn.Linear):
    """A layer on a machine that rounds float32 otherwise in passes of 16 rows."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return found * (1 + 2.0**-20) if found.dtype == torch.float32 and len(x) == 16 else found


def test_a_pass_has_no_shape_in_which_a_record_gives_other_bits(monkeypatch):
    monkeypatch.setitem(mapped.AT_ONCE, Shrinking, Shrinking.forward)
    monkeypatch.setitem(
        VICTIMS, "shrinking", Victim(lambda: nn.Sequential(Shrinking(64, 64), nn.Linear(64, 3)), (64,))
    )
    attack = attacked("shrinking", FILTERS["normalize"], 65, 1, "alike")
    attack.gradients._wanted, attack.gradients.pass_rows = (16, 32, 64), 64
    attack.sums.rehearse()
    assert attack.gradients._shapes == (32, 64)
    assert 0 < max(attack.moved(seed, 37 * seed % 65) for seed in range(4)) <= 1
    monkeypatch.setattr(attack.gradients, "_shapes", (16, 32, 64))  # the attack would succeed then
    monkeypatch.setattr(attack.gradients, "rehearse", lambda _: None)
    assert max(attack.moved(seed, 37 * seed % 65) for seed in range(4)) > 2


def test_a_pass_has_no_shape_in_which_a_remainder_may_be_rounded_otherwise():
    """Whatever made-up rows show: its ELU has 1,296 numbers in a pass of 16 rows, 40 times 32 and 16."""
    attack = attacked("volume", FILTERS["clip"], 65)
    attack.gradients._wanted, attack.gradients.pass_rows = (16, 32, 64), 64
    attack.sums.rehearse()
    assert attack.gradients._shapes == (32, 64)
    attack.gradients.pass_rows = 48
    assert attack.gradients.rehearse(FILTERS["clip"]) == "elu, of 48 x 1 x 3 x 3 x 3 x 3 numbers"


def sliced(self: Applied, x: Tensor) -> Tensor:
    """Part of each record, whose ELU is one dense run: of 16 records it leaves a remainder."""
    return self.head(functional.elu(self.wide(x)[:, :33]))


def test_remainders_are_seen_in_whatever_shape():
    model = Applied(sliced, wide=nn.Linear(32, 64), head=nn.Linear(33, 3))
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    with full_precision.threads(1):
        gradients.check(torch.zeros(2, 32), torch.zeros(2, dtype=torch.long))
        gradients._wanted, gradients.pass_rows = (16, 32, 64), 64
        assert gradients.rehearse(FILTERS["clip"]) is None
    assert gradients._shapes == (32, 64)


def test_what_made_up_records_leave_dead_has_one_shape():
    """Zeros are zeros in any shape: a rehearsal would show nothing."""
    model = Applied(lambda self, x: self.head(torch.relu(x - 2)), head=nn.Linear(64, 3))
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    gradients.check(torch.zeros(2, 64), torch.zeros(2, dtype=torch.long))
    gradients._wanted, gradients.pass_rows = (16, 32, 64), 64
    assert gradients.rehearse(FILTERS["clip"]) is None
    assert gradients._shapes == (64,)


def test_float64_has_one_shape_as_soon_as_threads_share_it():
    model = nn.Linear(64, 3).double()
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    x, y = torch.zeros(2, 64, dtype=torch.float64), torch.zeros(2, dtype=torch.long)
    gradients.check(x, y)
    gradients._wanted, gradients.pass_rows, shapes = (32, 64), 64, []
    for number in (1, 2):  # what was chosen on one thread is not kept on two
        with full_precision.threads(number):
            assert gradients.rehearse(FILTERS["clip"]) is None
        shapes.append(gradients._shapes)
    assert shapes == [(32, 64), (64,)]


class Encoder(nn.Module):
    """A frozen encoder, in evaluation mode, of sequences that 0 pads; and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.table, self.encoder = nn.Embedding(20, 16), nn.TransformerEncoder(layer, 2)
        self.requires_grad_(False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(x), src_key_padding_mask=x == 0).mean(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_frozen_encoder_computes_the_same_whoever_is_padded_otherwise():
    """Torch has a path of its own for batches in which every record is padded at its end."""
    torch.manual_seed(0)
    model = Encoder().eval()
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    x = torch.randint(1, 20, (32, 12), generator=torch.Generator().manual_seed(1))
    y, other = torch.arange(32) % 3, x.clone()
    x[:, 6:], other[1:, 6:], other[0, :6] = 0, 0, 0
    gradients.check(x[:1], y[:1])
    gradients.pass_rows = 32
    sums = [gradients.filtered_sum(values, y, FILTERS["normalize"]).values for values in (x, other)]
    assert 0 < float((sums[0] - sums[1]).norm()) <= 2


def routed(self: Applied, x: Tensor) -> Tensor:
    """Frozen experts, each of which sees the rows that are routed to it."""
    out, chosen = x.new_zeros(len(x), 33), x[:, 0] > 1.5
    for mask, expert in ((chosen, self.one), (~chosen, self.two)):
        out[mask] = expert(x[mask])
    return self.head(out.tanh())


SLOWLY = "records pass one by one, slowly"


def test_records_pass_one_by_one_where_shapes_go_by_values(monkeypatch):
    experts = {name: nn.Linear(50, 33).requires_grad_(False) for name in ("one", "two")}
    victim = Victim(lambda: Applied(routed, **experts, head=nn.Linear(33, 3)), (50,))
    monkeypatch.setitem(VICTIMS, "routed", victim)
    attack = attacked("routed", FILTERS["normalize"], 61)
    assert attack.gradients.pass_rows == 1
    assert f"indexing with a boolean mask.), and it might mix them: {SLOWLY}" in attack.gradients.one_by_one
    assert 0 < max(attack.moved(seed, seed) for seed in range(3)) <= 1


def test_records_pass_one_by_one_where_rows_are_chosen_that_no_made_up_record_shows(monkeypatch):
    apart = partial(Applied, lambda self, x: self.head(x[(x[:, 0] - 3.15).abs() > 1e-3]))
    monkeypatch.setitem(VICTIMS, "window", Victim(lambda: apart(head=nn.Linear(7, 3)), (7,)))
    gradients = attacked("window", FILTERS["clip"], 61).gradients
    assert gradients.pass_rows == 1
    assert f"and it might mix them: {SLOWLY}" in gradients.one_by_one


def test_some_threads_that_flush_small_numbers_are_found_out_at_any_step():
    attack = attacked("wide", FILTERS["normalize"], 61)
    with full_precision.threads(2):
        torch.ones(2**20).sum()  # other threads begin before
        torch.set_flush_denormal(True)
        try:
            assert attack.gradients.rehearse(FILTERS["normalize"]) == engine.FLUSHED
            assert refused(attack.sums.check) == f"model: {engine.FLUSHED.format('no bound would hold')}"
            assert "the model or the loss failed" in refused(attack.moved, 0, 0)  # on ranks, which refuse together
        finally:
            torch.set_flush_denormal(False)
        assert attack.gradients.rehearse(FILTERS["normalize"]) is None


def beside(self: Applied, x: Tensor) -> Tensor:
    """A sum with records innermost, of what is zero for numbers from 0 to 1."""
    return self.head(torch.tanh(self.body(x))) * (1 - torch.relu(-x).T.contiguous().sum(0)[:, None])


@pytest.mark.parametrize(("records", "held"), [(33, None), (300, 48)])
def test_sums_over_what_made_up_records_leave_at_zero_keep_their_order(records, held, monkeypatch):
    """The last 16 of 48 rows are added in another order."""
    layers = {"body": nn.Linear(14, 6), "head": nn.Linear(6, 4)}
    monkeypatch.setitem(VICTIMS, "beside", Victim(lambda: Applied(beside, **layers), (14,)))
    with full_precision.threads(1):
        for seed in range(3):
            attack = attacked("beside", FILTERS["normalize"], records, seed, physical_batch=held)
            assert attack.gradients.pass_rows % 32 == 0
            assert max(attack.moved(draw, 37 * draw % records) for draw in range(8)) <= 1


class Uneven(nn.Linear):
    """A layer on a machine that rounds float32 otherwise at every fifth row."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return (
            found
            if found.dtype == torch.float64
            else found * (1 + 2.0**-20 * (torch.arange(len(x)) % 5 == 0))[:, None]
        )


@pytest.mark.parametrize("filter", ["clip", "normalize", "tanh"])
def test_on_a_machine_where_place_matters_records_pass_one_by_one(filter, monkeypatch):
    """Without the rehearsal, the attack would succeed there."""
    monkeypatch.setitem(mapped.AT_ONCE, Uneven, Uneven.forward)
    monkeypatch.setitem(VICTIMS, "uneven", Victim(lambda: nn.Sequential(Uneven(10, 7), nn.Linear(7, 3)), (10,)))
    attack = attacked("uneven", FILTERS[filter], 61, 1, "alike")
    assert SLOWLY in attack.gradients.one_by_one
    assert 0 < max(attack.moved(seed, 37 * seed % 61) for seed in range(4)) <= 1
    attack.gradients.pass_rows = 64
    monkeypatch.setattr(attack.gradients, "rehearse", lambda _: None)
    assert max(attack.moved(seed, 37 * seed % 61) for seed in range(4)) > 2


USED_BEFORE = """
import torch
torch.mm(torch.rand(64, 10), torch.rand(10, 7))  # the library has settled how it rounds
from leaving_out import FILTERS, attacked
attack = attacked(HOW)
alone = "records pass one by one" in attack.gradients.one_by_one
print(alone == (attack.gradients.pass_rows == 1), max(attack.moved(seed, 37 * seed % 61) for seed in range(4)) <= 1)
"""


@pytest.mark.parametrize(
    ("unset", "how"),
    [
        (("MKL_CBWR", "MKL_DYNAMIC"), '"one layer", FILTERS["normalize"], 61, 1, "alike"'),
        (("ONEDNN_MAX_CPU_ISA",), '"odd layers", FILTERS["normalize"], 61, 1, "extreme", precision="bfloat16"'),
    ],
)
def test_a_library_that_was_used_before_its_mode_could_be_set_is_found_out(unset, how):
    """By the rehearsal, on machines where it matters; the bound holds on all."""
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    code = USED_BEFORE.replace("HOW", how)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


WITHIN = """
import torch
from torch import nn
from dpltm import PrivateLoop
from dpltm.networks.full_precision import tiles_mix
from gradient_cases import Applied
layers = {"table": nn.Embedding(5, 13), "body": nn.Sequential(nn.Linear(13, 17), nn.Tanh(), nn.Linear(17, 3))}
net = Applied(lambda self, x: self.body(self.table(x).mean(1) * (x.sum(1) / x.sum(1))[:, None]), **layers)
loss = nn.CrossEntropyLoss(reduction="none")
plan = {"batch_size": 60, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-3, "precision": "bfloat16"}
loop = PrivateLoop(net, loss, torch.randint(5, (99, 12)), torch.randint(3, (99,)), **plan)
print(tiles_mix() == (loop.gradients.gradients.pass_rows == 1))
"""


def test_tiles_are_found_where_nan_arises_within_a_network_alone():
    """No made-up token or class is NaN, and a mean over no token is."""
    env = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", WITHIN], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_a_training_goes_on_only_where_passes_leave_the_same_bits():
    made = keyed_descent()
    here = made.gradients.gradients.kernels_digest
    assert here == keyed_descent().gradients.gradients.kernels_digest != ""
    drawn = SimpleNamespace(descent=made)
    assert refused(Drawn.resume, drawn, Checkpoint("step 1 of 7", {"kernels": f"not {here}", "step": 1})) == (
        "checkpoint: passes through the network give other bits here than where it was taken (another processor, library"
        " or number of threads); go on there, or begin again without it: `fresh`, or remove it"
    )


@pytest.mark.long
def test_ten_thousand_hostile_pairs():
    worst = max(islice(hostile_pairs(0, list(VICTIMS)), 10_000))
    assert 0.9 < worst <= 1


def in_a_window(self: Applied, x: Tensor) -> Tensor:
    seldom = (x[:, :1] > 3.1) & (x[:, :1] < 3.2)
    return self.head(torch.tanh(self.body(x)) + torch.where(seldom, 9 * x.mean(0)[:4], 0.0))


def among_twins(self: Applied, x: Tensor) -> Tensor:
    twins = (x[:, None] == x[None]).all(2).sum(1, keepdim=True)
    return self.head(torch.tanh(self.body(x))) * (twins <= 20)


def switched_on(self: Applied, x: Tensor) -> Tensor:
    return self.head(torch.tanh(self.body(x)) + (9 * x.mean(0)[:4] if self.switches[0] else 0.0))


@pytest.mark.parametrize("forward", [in_a_window, among_twins, switched_on])
def test_what_no_trial_shows_to_mix_records_does_not_mix_them(forward, monkeypatch):
    """Their passes are mapped over records; in those of batches, as they would be else, each moves the sum by more."""
    torch.manual_seed(0)
    model = Applied(forward, body=nn.Linear(6, 4), head=nn.Linear(4, 3), switches=[0.0])
    x = torch.rand(32, 6)
    x[:, 0], x[:21] = 3.15, x[20].clone()
    x[0, 1] = 3000.0 if forward is not among_twins else x[0, 1]
    y, filter = torch.ones(32, dtype=torch.long), FILTERS["normalize"]
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    gradients.check(x, y)
    gradients.settle(32.0)

    def moved() -> float:
        less, whole = (gradients.filtered_sum(x[start:], y[start:], filter).values for start in (1, 0))
        return float((less - whole).norm()) / filter.certified_bound(gradients.live)

    gradients.filtered_sum(x, y, filter)
    model.switches[0] = 1.0
    assert 0.5 < moved() <= 1
    monkeypatch.setattr(gradients, "rehearse", lambda _: None)
    gradients._plan = replace(gradients._plan, unmapped="as it would be without")
    assert moved() > 1.2
