"""Where maps and settings come from, all the way: ledgers, cards, exports, and what is refused for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpltm.privacy.event_json import from_json
from dpltm.privacy.parts import total_epsilon

A, B = ("--dataset", "a.npz", "--classes", "3"), ("--dataset", "b.npz", "--classes", "3")
LITTLE = ("--dense", "--model", "mlp", "--steps", "4", "--delta", "1e-4")
MAP = ("--features", "unit", "--public", "a.npz", "--components", "5")


@pytest.fixture
def records(cwd):
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        y = draw.integers(0, 3, 200)
        x = (draw.integers(0, 90, (200, 6, 6)) + 50 * y[:, None, None]).astype(np.uint8)
        np.savez(f"{name}.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])
    return cwd


@pytest.fixture
def network(cli, records):
    """A run on A with no noise at all."""
    options = ("--dense", "--model", "mlp:8", "--steps", "4", "--noise-multiplier", "0", "--delta", "1e-4")
    assert cli("train", *A, *options, "--out", "free", "--quiet").code == 0
    return records


def told(path: str) -> list[dict]:
    return [json.loads(line)["event"] for line in Path(path).read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("amount", [("--epsilon", "2"), ("--noise-multiplier", "2")], ids=["budget", "noise"])
def test_a_run_says_what_is_certified_for_the_records_of_the_network_in_front(cli, amount):
    body = cli("train", *B, *LITTLE, "--features", "network:free", *amount, "--out", "r", "--json").json
    entered = told("r/ledger.jsonl")
    assert [event["kind"] for event in entered] == ["training", "provenance", "training"]
    own = from_json(entered[-1])
    assert body["privacy"]["certified"]["epsilon"] == total_epsilon([own], 1e-4) < 10
    assert total_epsilon([from_json(event) for event in entered if event["dataset"]["name"] == "a"], 1e-4) == float(
        "inf"
    )
    assert any(note.endswith("certified for those records is epsilon inf") for note in body["privacy"]["notes"])


@pytest.mark.usefixtures("network")
def test_a_set_says_so_and_is_not_handed_on_by_accident(cli):
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "2", "--features", "network:free")
    assert cli("generate", *B, *options, "--out", "t", "--quiet").code == 0
    assert "a network trained on `a`, which goes with this folder" in Path("t/README.md").read_text(encoding="utf-8")
    assert "in front" in cli("tickets", "show", "t").out
    assert cli("tickets", "show", "t", "--json").json["feature_map"]["source"]["name"] == "a"
    for more in ((), ("--yes",)):
        refused = cli("tickets", "export", "t", "--out", "copy", *more)
        assert (refused.code, refused.err) == (
            1,
            "error: t: holds a network trained on a with no mechanism, which is never handed on; export one ticket"
            " alone, as t@ROUND\n",
        )
        assert not Path("copy").exists()
    # random masks do not depend on what stands in front
    assert cli("tickets", "export", "t@1", "--to", "state-dict", "--out", "t.safetensors", "--quiet").code == 0
    assert cli("generate", *B, *TICKETS, "--features", "network:free", "--out", "p", "--quiet").code == 0
    for form in ("state-dict", "torch-prune", "onnx"):
        refused = cli("tickets", "export", "p@1", "--to", form, "--out", f"p.{form}")
        assert (refused.code, "add --yes" in refused.err) == (1, True)
    given = ("--to", "state-dict", "--out", "p.safetensors")
    assert cli("tickets", "export", "p@1", *given, "--yes", "--predictor").code == 1
    assert cli("tickets", "export", "p@1", *given, "--yes").code == 0


@pytest.mark.usefixtures("records")
def test_a_set_behind_a_network_of_a_dp_training_is_handed_on_with_a_word(cli):
    train = ("--dense", "--model", "mlp:8", "--steps", "4", "--epsilon", "3", "--delta", "1e-4")
    cli("train", *A, *train, "--out", "spent", "--quiet")
    cli("generate", *B, *TICKETS, "--features", "network:spent", "--out", "t", "--quiet")
    refused = cli("tickets", "export", "t", "--out", "copy")
    assert (refused.code, "t: holds a network trained on a; certified for those records is" in refused.err) == (
        1,
        True,
    )
    assert cli("tickets", "export", "t", "--out", "copy", "--yes", "--quiet").code == 0


TICKETS = ("--model", "mlp", "--provenance", "public", "--rounds", "1", "--iterations", "20", "--batch-size", "50")
ROUND = ("--to", "torch-prune", "--out", "t.safetensors", "--quiet")


@pytest.fixture
def behind(cli, records):
    """Tickets made from the public B behind a network that a DP training on A made."""
    train = ("--dense", "--model", "mlp:8", "--steps", "4", "--epsilon", "3", "--delta", "1e-4")
    assert cli("train", *A, *train, "--out", "spent", "--quiet").code == 0
    assert cli("generate", *B, *TICKETS, "--features", "network:spent", "--out", "t", "--quiet").code == 0
    assert cli("tickets", "export", "t@1", *ROUND).code == 0
    return records


@pytest.mark.usefixtures("behind")
def test_a_ticket_behind_a_network_costs_its_records_the_same_after_export_and_import(cli):
    given = ("tickets", "import", "t.safetensors", *B, "--features", "network:spent", "--model", "mlp")
    made = cli(*given, "--out", "in", "--json").json
    assert made["feature_map"] == cli("tickets", "show", "t", "--json").json["feature_map"]
    assert cli("tickets", "verify", "in", "--json").json["ok"]
    amount = ("--noise-multiplier", "2", "--steps", "4", "--delta", "1e-4")
    whole, back = (
        cli("train", f"{name}@1", *A, *amount, "--out", f"{name}.run", "--json").json for name in ("t", "in")
    )
    assert [event["kind"] for event in told("in.run/ledger.jsonl")] == ["training", "provenance", "training"]
    alone = total_epsilon([from_json(told("in.run/ledger.jsonl")[-1])], 1e-4)
    assert back["privacy"]["certified"]["epsilon"] == whole["privacy"]["certified"]["epsilon"] > alone


@pytest.mark.usefixtures("behind")
def test_a_ticket_behind_a_network_is_not_imported_without_it(cli):
    given = ("tickets", "import", "t.safetensors", *B, "--model", "mlp", "--out", "in")
    needs = (
        "error: --features is missing: the network in t.safetensors stands behind network features, made from a,"
        " whose tensors the file does not hold; name what they were made by, as --features network:RUN\n"
    )
    assert (cli(*given).code, cli(*given).err) == (2, needs)
    other = ("--dense", "--model", "mlp:8", "--steps", "4", "--epsilon", "3", "--delta", "1e-4", "--seed", "1")
    cli("train", *A, *other, "--out", "another", "--quiet")
    for features in ("network:another", "unit", "scatter:1,2"):
        refused = cli(*given, "--features", features)
        assert (refused.code, refused.err) == (
            2,
            f"error: --features: {features} is not what the network in t.safetensors stands behind (network, made from"
            " a); name the very same\n",
        )
    assert not Path("in").exists()


@pytest.mark.usefixtures("records")
def test_features_without_tensors_come_back_by_themselves(cli):
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "1", "--features", "scatter:1,2")
    cli("generate", *B, *options, "--out", "t", "--quiet")
    cli("tickets", "export", "t@1", *ROUND)
    made = cli("tickets", "import", "t.safetensors", *B, "--model", "mlp", "--out", "in", "--json").json
    assert made["feature_map"] == cli("tickets", "show", "t", "--json").json["feature_map"]
    amount = ("--noise-multiplier", "2", "--steps", "4", "--delta", "1e-4")
    assert cli("train", "in@1", *A, *amount, "--out", "r", "--json").json["features"] == "scatter:1,2"
    again = ("tickets", "import", "t.safetensors", *B, "--model", "mlp", "--out", "again")
    assert (
        "is not what the network in t.safetensors stands behind (scatter:1,2)" in cli(*again, "--features", "unit").err
    )
    assert cli(*again, "--features", "scatter:1,2", "--quiet").code == 0


@pytest.mark.usefixtures("records")
def test_statistics_of_public_records_come_back_with_whose_they_are(cli):
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "1")
    cli("generate", *B, *options, *MAP, "--out", "t", "--quiet")
    cli("tickets", "export", "t@1", *ROUND)
    given = ("tickets", "import", "t.safetensors", *B, "--model", "mlp", "--out", "in")
    assert "--features is missing" in cli(*given).err
    assert cli(*given, *MAP, "--quiet").code == 0
    refused = cli("train", "in@1", *A, "--noise-multiplier", "2", "--steps", "4", "--delta", "1e-4", "--out", "r")
    assert (refused.code, refused.err.startswith("error: --public: a was declared public")) == (2, True)


@pytest.mark.usefixtures("records")
def test_a_network_on_records_as_they_are_says_so(cli):
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "1")
    cli("generate", *B, *options, "--out", "t", "--quiet")
    cli("tickets", "export", "t@1", *ROUND)
    given = ("tickets", "import", "t.safetensors", *B, "--model", "mlp", "--out", "in")
    refused = cli(*given, "--features", "unit")
    assert refused.err == "error: --features: the network in t.safetensors takes records as they are; leave it out\n"
    assert cli(*given, "--json").json["notes"] == []


@pytest.mark.usefixtures("records")
def test_a_file_that_does_not_say_what_stands_in_front_is_read_with_a_word(cli):
    """As dpltm wrote them before, or from elsewhere."""
    from safetensors.torch import load_file, save_file

    options = ("--model", "mlp", "--criterion", "random", "--rounds", "1", "--features", "unit")
    cli("generate", *B, *options, "--out", "t", "--quiet")
    cli("tickets", "export", "t@1", *ROUND)
    data = Path("t.safetensors").read_bytes()
    stated = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["dpltm_origin"]
    origin = json.loads(stated)
    assert origin.pop("feature_map")["text"] == "unit:1"
    state = load_file("t.safetensors")
    save_file(state, "old.safetensors", metadata={"dpltm_origin": json.dumps(origin)})
    save_file(state, "other.safetensors")
    for name, more in (("old", ()), ("other", ("--provenance", "data-free"))):
        given = ("tickets", "import", f"{name}.safetensors", *B, "--model", "mlp", *more)
        plain = cli(*given, "--out", f"{name}.plain", "--json").json
        assert plain["feature_map"] is None
        assert plain["notes"] == [
            f"{name}.safetensors does not say what stands in front of its network; records as they are is what is taken: if"
            " it is features, name them with --features, since what they were made from counts as well"
        ]
        named = cli(*given, "--features", "unit", "--out", f"{name}.named", "--json").json
        assert (named["feature_map"]["text"], named["notes"]) == ("unit:1", [])


@pytest.mark.usefixtures("behind")
def test_onnx_carries_where_it_comes_from(cli):
    onnx = pytest.importorskip("onnx", reason="the extra dpltm[onnx] is not installed")
    assert cli("tickets", "export", "t@1", "--to", "onnx", "--out", "t.onnx").code == 0
    (entry,) = onnx.load("t.onnx").metadata_props
    assert entry.key == "dpltm_origin"
    stated = json.loads(entry.value)
    assert stated["feature_map"] == cli("tickets", "show", "t", "--json").json["feature_map"]
    assert stated["provenance"] == "public"


def test_nothing_in_an_onnx_file_says_where_the_program_lies(cli):
    pytest.importorskip("onnx", reason="the extra dpltm[onnx] is not installed")
    import torch

    assert cli("tickets", "export", "pub@1", "--to", "onnx", "--out", "t.onnx").code == 0
    data = Path("t.onnx").read_bytes()
    for folder in (Path(torch.__file__).parent.parent, Path.home()):
        assert str(folder).encode() not in data
    assert b"stack_trace" not in data


@pytest.mark.usefixtures("records")
def test_a_set_with_components_says_whose(cli):
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "2")
    assert cli("generate", *B, *options, *MAP, "--out", "t", "--quiet").code == 0
    assert "with statistics of `a`, declared public" in Path("t/README.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("records")
def test_records_that_a_ledger_has_spent_on_are_not_public_afterwards(cli):
    cli("train", *A, *LITTLE, "--epsilon", "1", "--ledger", "l.jsonl", "--out", "r", "--quiet")
    before = Path("l.jsonl").read_bytes()
    for command in (
        ("train", *B, *LITTLE, *MAP, "--epsilon", "1", "--ledger", "l.jsonl", "--out", "s"),
        ("generate", *A, "--provenance", "public", "--rounds", "1", "--iterations", "5", "--batch-size", "50",
         "--ledger", "l.jsonl", "--out", "t"),
    ):  # fmt: skip
        done = cli(*command, "--quiet")
        assert done.code == 2
        assert done.err.startswith(
            "error: --dataset, --public: the ledger holds what was spent on a, so they are private"
        )
        assert Path("l.jsonl").read_bytes() == before
    assert not Path("s").exists()
    assert not Path("t").exists()


@pytest.mark.usefixtures("records")
def test_statistics_of_public_records_are_known_under_every_key(cli, monkeypatch, tmp_path):
    """They are named by a fingerprint that anybody can compute, so whose key it was does not count."""
    options = ("--model", "mlp", "--criterion", "random", "--rounds", "2")
    cli("generate", *B, *options, *MAP, "--out", "t", "--quiet")
    own = cli("train", "t@1", *A, "--epsilon", "1", "--delta", "1e-4", "--steps", "4", "--out", "r")
    assert (own.code, own.err.startswith("error: --public: a was declared public")) == (2, True)
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another"))
    again = cli("train", "t@1", *A, "--epsilon", "1", "--delta", "1e-4", "--steps", "4", "--out", "r")
    assert (again.code, again.err) == (2, own.err)
    assert cli("train", "t@1", *B, "--epsilon", "1", "--delta", "1e-4", "--steps", "4", "--out", "r").code == 0


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize("centre", ["", "centre = 0.1\n"])
def test_a_run_of_all_stages_behind_features(cli, centre):
    Path("all.toml").write_text(
        '[run]\nepsilon = 4.0\ndelta = 1e-4\n[generate]\ndataset = "a.npz"\nclasses = 3\nprovenance = "public"\n'
        'features = "scatter:1,2"\nmodel = "mlp"\nrounds = 2\niterations = 10\nbatch-size = 50\n'
        f'[select]\nscore = "additive"\n[train]\ndataset = "b.npz"\nclasses = 3\nsteps = 4\n{centre}',
        encoding="utf-8",
    )
    planned = cli("run", "--config", "all.toml", "--out", "o", "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert not Path("o").exists()
    done = cli("run", "--config", "all.toml", "--out", "o", "--json").json
    assert done["train"]["features"] == "scatter:1,2"
    assert (done["train"]["centre"] is None) == (not centre)
    ours = done["privacy"]["certified"]["epsilon"]
    assert planned.json["privacy"]["certified"]["epsilon"] == pytest.approx(ours, rel=1e-3)
    assert ours <= 4


@pytest.mark.usefixtures("network")
def test_a_run_of_all_stages_counts_the_network_in_front_before_it_starts(cli):
    options = ("--dense", "--model", "mlp:8", "--steps", "4", "--epsilon", "3", "--delta", "1e-4")
    cli("train", *B, *options, "--out", "spent", "--quiet")
    Path("all.toml").write_text(
        '[run]\nepsilon = 3.0\ndelta = 1e-4\n[generate]\ndataset = "a.npz"\nclasses = 3\nprovenance = "public"\n'
        'features = "network:spent"\nmodel = "mlp"\nrounds = 2\niterations = 10\nbatch-size = 50\n'
        '[select]\nscore = "additive"\n[train]\ndataset = "b.npz"\nclasses = 3\nsteps = 4\n',
        encoding="utf-8",
    )
    for dry in (("--dry-run",), ()):
        done = cli("run", "--config", "all.toml", "--out", "o", *dry)
        assert done.code != 0
        assert not Path("o").exists()


@pytest.mark.usefixtures("records")
def test_a_failure_that_could_be_seen_comes_before_the_budget(cli, monkeypatch):
    """With --centre the features without copies are needed too: where they cannot be kept, nothing is spent."""
    from dpltm.tickets import feature_cache

    made = feature_cache._make

    def full(path, split, found, copies, *more):
        if copies == 1 and len(split) == 150:
            raise OSError(28, "No space left on device")
        made(path, split, found, copies, *more)

    monkeypatch.setattr(feature_cache, "_make", full)
    options = ("--features", "unit", "--centre", "0.1", "--augment", "flip", "--epsilon", "1")
    done = cli("train", *B, *LITTLE, *options, "--out", "r")
    assert done.code == 2
    assert not list(Path().glob("r*"))
