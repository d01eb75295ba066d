"""What a network draws for a record is the record's own: neighbours move sums by the bound, whatever draws, and wherever."""

import inspect
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients, draws
from dpltm.gradients.draws import STEP, Draws, blocks, mixed
from dpltm.records.made_up import of_all_rows
from gradient_cases import Applied, checked, cross_entropy, dot

pytestmark = pytest.mark.parametrize("_products", ["dense"], indirect=True)

RECORDS = 24


def some_keys(count: int, seed: int = 0) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(seed))


def some_records(shape: tuple[int, ...], seed: int = 0, records: int = RECORDS) -> tuple[Tensor, Tensor, Tensor]:
    """Records, labels of three classes, and keys."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(records, *shape, generator=draw)
    return x, torch.randint(0, 3, (records,), generator=draw), some_keys(records, seed)


# --- the numbers ---


def test_words_are_those_of_splitmix64():
    """Outputs for the seed 1234567, as its authors' code and others print them; keys of 64 bits wrap round."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    found = mixed(1234567 + torch.arange(1, 6) * STEP)
    assert [value % 2**64 for value in found.tolist()] == known


def words(keys: Tensor, draw: int, count: int) -> Tensor:
    return torch.cat([part.clone() for _, part in blocks(keys, draw, count)])


def test_a_word_follows_from_key_draw_and_position_alone():
    keys = some_keys(50)
    whole = words(keys, 3, 1000)  # in blocks of rows
    assert torch.equal(words(keys[7:8], 3, 1000), whole[7:8])
    assert torch.equal(words(keys.flip(0), 3, 400), whole.flip(0)[:, :400])
    assert not torch.equal(words(keys, 4, 1000), whole)


def test_draws_have_their_laws():
    """Also between records, positions and draws; the least p-value of all tests."""
    rows = 400
    with Draws(some_keys(rows)):
        uniform, normal = torch.rand(rows, 250, dtype=torch.float64), torch.randn(rows, 250, dtype=torch.float64)
        chances = torch.bernoulli(torch.full((rows, 250), 0.3))
        dropped = (functional.dropout(torch.ones(rows, 1001), 0.1) == 0).double()
        between = torch.empty(rows, 250).uniform_(-1, 3)
    values = [
        stats.kstest(uniform.flatten().numpy(), "uniform").pvalue,
        stats.kstest(normal.flatten().numpy(), "norm").pvalue,
        stats.kstest(between.flatten().numpy(), "uniform", (-1, 4)).pvalue,
        stats.binomtest(int(chances.sum()), chances.numel(), 0.3).pvalue,
        stats.binomtest(int(dropped.sum()), dropped.numel(), 0.1).pvalue,
    ]
    for first, second in (
        (uniform[:, 1:], uniform[:, :-1]),
        (uniform[1:], uniform[:-1]),
        (uniform, normal),
        (dropped[:, 1:], dropped[:, :-1]),
        (dropped[:, 2:], dropped[:, :-2]),
        (dropped[1:], dropped[:-1]),
    ):
        values.append(stats.pearsonr(first.flatten().numpy(), second.flatten().numpy()).pvalue)
    by_record, by_place = dropped.sum(1), dropped.sum(0)
    values.append(stats.chisquare(by_record.numpy(), [float(by_record.mean())] * 400).pvalue)
    values.append(stats.chisquare(by_place.numpy(), [float(by_place.mean())] * 1001).pvalue)
    assert min(values) > 1e-3 / len(values)


@pytest.mark.parametrize("chance", [0.0, 2.0**-40, 2.0**-31, 0.25, 0.5, 1 - 2.0**-31, 1.0])
def test_the_chance_is_exact_to_32_bits(chance, monkeypatch):
    """The lowest round(p 2^32) of all 32-bit words are below, and no others."""
    count = round(chance * 2**32)
    edge = [max(count - 1, 0), min(count, 2**32 - 1)]
    served = torch.tensor([[value - 2**31 for value in edge]], dtype=torch.int32).view(torch.int64)
    monkeypatch.setattr(draws, "blocks", lambda *_: [(slice(0, 1), served)])
    found = Draws(torch.zeros(1, dtype=torch.int64)).below(torch.Size([1, 2]), chance, torch.device("cpu"))
    assert found.tolist() == [[value < count for value in edge]]


def test_gradients_are_those_of_the_masks_that_were_drawn():
    """By hand: of y . W (m x / (1 - p)), it is y times what the mask m left of x."""
    x, _, keys = some_records((6,))
    y = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Dropout(0.25), nn.Linear(6, 3, bias=False))
    found = checked(model, dot, x, y).filtered_sum(x, y, Clip(1e6), keys=keys).values
    mask = Draws(keys).below(x.shape, 0.75, x.device)
    assert 0.6 < float(mask.float().mean()) < 0.9
    torch.testing.assert_close(found.float(), (y.T @ (mask * x / 0.75)).flatten(), rtol=1e-4, atol=1e-5)


# --- neighbours ---


def moved(gradients: RecordGradients, x: Tensor, y: Tensor, keys: Tensor, record: int, clip: float = 0.01) -> float:
    """How far the sum moves where a record is not there, in bounds."""
    rest = torch.arange(len(x)) != record
    whole, less = (
        gradients.filtered_sum(x[rows], y[rows], Clip(clip), keys=keys[rows]).values
        for rows in (torch.ones_like(rest), rest)
    )
    return float((whole - less).norm()) / clip


def held(model: nn.Module, shape: tuple[int, ...]) -> None:
    """A record in front, in the middle or at the end, and one that is replaced, move sums by the bound; batches of any size
    draw the same; something is drawn, and not from a generator of PyTorch's."""
    x, y, keys = some_records(shape)
    gradients = checked(model, cross_entropy, x, y)
    before = torch.get_rng_state()
    for record in (0, RECORDS // 2, RECORDS - 1):
        assert moved(gradients, x, y, keys, record) <= 1
    other = x.clone()
    other[5] = -3 * x[5]
    whole, replaced, drawn_anew = (
        gradients.filtered_sum(each, y, Clip(0.01), keys=own).values
        for each, own in ((x, keys), (other, keys), (x, keys + 1))
    )
    assert float((whole - replaced).norm()) <= 2 * 0.01
    assert float((whole - drawn_anew).norm()) > 1e-4
    parts = torch.zeros_like(whole)
    for start in range(0, RECORDS, 7):
        rows = slice(start, start + 7)
        gradients.filtered_sum(x[rows], y[rows], Clip(0.01), keys=keys[rows], out=parts)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
    assert torch.equal(before, torch.get_rng_state())


class Attention(nn.Module):
    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.weights, self.out = weights, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x, x, x, need_weights=self.weights)[0].mean(1))


def sequence(*modules: nn.Module) -> nn.Module:
    return Applied(lambda s, x: s.out(s.inner(x).mean(1)), inner=nn.Sequential(*modules), out=nn.Linear(8, 3))


def decoded(module: nn.Module) -> nn.Module:
    return Applied(lambda s, x: s.out(s.inner(x, 2 * x).mean(1)), inner=module, out=nn.Linear(8, 3))


def image(module: nn.Module, size: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), module, nn.Flatten(), nn.Linear(size, 3))


def volume(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), module, nn.Flatten(), nn.Linear(192, 3))


def flat(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), module, nn.Linear(16, 3))


WIDE = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "batch_first": True}
DRAWING: dict[str, list[tuple[Callable[[], nn.Module], tuple[int, ...]]]] = {
    "Dropout": [(lambda: flat(nn.Dropout(0.3)), (6,)), (lambda: flat(nn.Dropout(0.3, inplace=True)), (6,))],
    "Dropout1d": [(lambda: image(nn.Sequential(nn.Flatten(2), nn.Dropout1d(0.3)), 144), (1, 8, 8))],
    "Dropout2d": [(lambda: image(nn.Dropout2d(0.3), 144), (1, 8, 8))],
    "Dropout3d": [(lambda: volume(nn.Dropout3d(0.3)), (3, 4, 4, 4))],
    "AlphaDropout": [(lambda: flat(nn.AlphaDropout(0.3)), (6,))],
    "FeatureAlphaDropout": [(lambda: image(nn.FeatureAlphaDropout(0.3), 144), (1, 8, 8))],
    "FractionalMaxPool2d": [(lambda: image(nn.FractionalMaxPool2d(2, 4), 64), (1, 8, 8))],
    "FractionalMaxPool3d": [
        (lambda: nn.Sequential(nn.Linear(5, 5), nn.FractionalMaxPool3d(2, 3), nn.Flatten(), nn.Linear(54, 3)), (2, 5, 5, 5))
    ],
    "MultiheadAttention": [(lambda: Attention(False), (5, 8)), (lambda: Attention(True), (5, 8))],
    "TransformerEncoderLayer": [(lambda: sequence(nn.TransformerEncoderLayer(**WIDE)), (5, 8))],
    "TransformerDecoderLayer": [(lambda: decoded(nn.TransformerDecoderLayer(**WIDE)), (5, 8))],
    "Transformer": [(lambda: decoded(nn.Transformer(8, 2, 1, 1, 12, batch_first=True)), (5, 8))],
}  # fmt: skip
"""Every module of torch.nn that draws in training, but for those that are refused."""

REFUSED = {"RNNBase", "RNN", "GRU", "LSTM", "RReLU"}
"""As ``test_probe`` has it."""

DRAW_NOTHING = {"LPPool1d", "LPPool2d", "LPPool3d", "PairwiseDistance", "TripletMarginLoss", "MultiMarginLoss"}
"""Whose p is a norm."""


def test_no_module_of_torch_that_draws_is_forgotten():
    """By the parameters that shares and bounds of draws have."""
    found = {
        name
        for name, kind in vars(nn).items()
        if inspect.isclass(kind)
        and issubclass(kind, nn.Module)
        and {"p", "dropout", "_random_samples", "lower"} & inspect.signature(kind.__init__).parameters.keys()
    }
    assert found - DRAW_NOTHING - REFUSED <= DRAWING.keys()
    assert {"Dropout", "FractionalMaxPool2d", "TransformerEncoderLayer", "RReLU", "RNNBase"} <= found


@pytest.mark.one_of(8)
@pytest.mark.parametrize(
    ("kind", "which"), [(kind, which) for kind, builds in DRAWING.items() for which in range(len(builds))]
)
def test_every_module_of_torch_that_draws_keeps_to_the_bound(kind, which):
    build, shape = DRAWING[kind][which]
    torch.manual_seed(0)
    held(build(), shape)


def of(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), Applied(lambda _, x: function(x)), nn.Linear(16, 3))


def owning(function: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """A module that has a parameter and draws: torch.func runs it once more for each record."""
    inner = Applied(lambda s, x: function(x, s.scale), scale=nn.Parameter(torch.full((16,), 0.7)))
    return nn.Sequential(nn.Linear(6, 16), inner, nn.Linear(16, 3))


@pytest.mark.one_of(4)
@pytest.mark.parametrize(
    "build",
    [
        lambda: of(lambda x: x + torch.randn_like(x)),
        lambda: of(lambda x: x * torch.rand(len(x), 1)),
        lambda: of(lambda x: x * torch.bernoulli(torch.full((len(x), 1), 0.5))),
        lambda: of(lambda x: x * torch.empty(len(x), 1).bernoulli_(0.5) / 0.5),
        lambda: of(lambda x: x + torch.randn(16, len(x)).T),
        lambda: of(lambda x: functional.dropout(x.view(-1, 4), 0.5).view(-1, 16)),
        lambda: of(lambda x: functional.dropout(x.T, 0.5).T),
        lambda: owning(lambda x, scale: functional.dropout(x * scale, 0.5)),
        lambda: owning(lambda x, scale: functional.dropout((x * scale).view(-1, 4), 0.5).view(-1, 16)),
        lambda: owning(lambda x, scale: functional.dropout(x.T, 0.5).T * scale),
        lambda: owning(lambda x, scale: x * scale * torch.rand(len(x), 1)),
        lambda: owning(lambda x, scale: x * scale + torch.randn_like(x)),
        lambda: owning(lambda x, scale: functional.alpha_dropout(x * scale, 0.5, training=True)),
    ],
    ids=["noise", "rand", "bernoulli", "depth", "across", "rows", "records last", "func", "func rows",
         "func records last", "func depth", "func noise", "func alpha"],
)  # fmt: skip
def test_functions_that_draw_keep_to_the_bound(build):
    torch.manual_seed(0)
    held(build(), (6,))


def test_a_draw_of_the_loss_is_each_records_own():
    def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs + torch.randn_like(outputs), labels)

    x, y, keys = some_records((6,))
    gradients = checked(flat(nn.ReLU()), smoothed, x, y)
    assert max(moved(gradients, x, y, keys, record) for record in (0, 11, 23)) <= 1


def test_modules_called_twice_draw_twice():
    """One Dropout used at two places: were the masks the same, the second would drop nothing more."""
    model = Applied(lambda s, x: s.out(s.drop(s.drop(x))), drop=nn.Dropout(0.5), out=nn.Linear(400, 3))
    x, y, keys = torch.ones(RECORDS, 400), torch.zeros(RECORDS, dtype=torch.long), some_keys(RECORDS)
    seen: list[Tensor] = []
    model.out.register_forward_pre_hook(lambda _, inputs: seen.append(of_all_rows(len(x), inputs[0])))
    checked(model, cross_entropy, x, y).filtered_sum(x, y, Clip(1.0), keys=keys)
    assert 0.2 < float((seen[-1] != 0).float().mean()) < 0.3


def perceptron(share: float) -> nn.Module:
    return nn.Sequential(
        nn.Dropout(share), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(share), nn.Linear(32, 3)
    )  # fmt: skip


def encoder(share: float) -> nn.Module:
    return sequence(nn.TransformerEncoderLayer(**WIDE, dropout=share))


@pytest.mark.one_of(2)
@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize(("build", "shape"), [(perceptron, (16,)), (encoder, (5, 8))], ids=["mlp", "transformer"])
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_neighbours_move_the_sum_by_the_bound(build, shape, share, count):
    """Pairs that differ by one record, small or large: sums without noise move by no more than the bound, and get near."""
    torch.manual_seed(0)
    gradients = checked(build(share), cross_entropy, *some_records(shape)[:2])
    reached = 0.0
    for pair in range(count):
        draw = torch.Generator().manual_seed(pair)
        records = int(torch.randint(1, 60, (), generator=draw))
        x, y, keys = some_records(shape, pair, records)
        x *= 10 ** (4 * torch.rand(records, *[1] * len(shape), generator=draw) - 2)
        by = moved(gradients, x, y, keys, int(torch.randint(0, records, (), generator=draw)), clip=0.5)
        assert by <= 1
        reached = max(reached, by)
    assert reached > 0.9
