"""What version 0.2 had and this one has not: refused by its name, with what to do instead. Kept for one version."""

from __future__ import annotations

_SHARED: dict[str, tuple[str, ...]] = {
    "train a network of your own on an .npz with a person a record, as examples/papers/gdp_movielens.py does with the file"
    " that scripts/make_ratings.py writes": (
        "--model ncf", "--dataset .dat", "dataset movielens", "dataset movielens-like", "dataset movielens-small", "--users",
        "--items",
    ),
    "it was of `sampling` truncated, which is gone; leave it out": (
        "privacy curve --records", "privacy epsilon --records", "privacy noise --records",
    ),
    "take `criterion` dp-train": ("--criterion dp-energy", "--criterion dp-synthetic"),
    "it was of zcdp; price that by dp-accounting (ZCDpEvent)": ("privacy curve --rho", "privacy epsilon --rho"),
    "train them with dpltm train --dense, or as arms of a recipe (dpltm run), and compare the runs": (
        "compare --baselines", "compare --kinds", "compare --out", "compare --ledger", "compare --population",
        "compare --jobs",
    ),
    "search on public records (`for_records`), or train with each setting on one ledger, which pays for all": (
        "tune --private", "tune --tries",
    ),
    "it was of a private search; name it in dpltm train, with the settings that were found": (
        "tune --unit", "tune --per-unit", "tune --class-shares",
    ),
    "leave it out; tickets are made by dpltm generate": ("latent train --prune", "latent train --rounds"),
    "give a `start` file with all parameters, by the names of the network; or let its code load them": (
        "--start-prefix", "--start-skip",
    ),
    "it prunes nothing; dpltm generate takes it": ("train --prunable", "tune --prunable"),
    "take the figures of --json": ("compare --csv", "compare --md", "privacy curve --csv"),
}  # fmt: skip
"""What several go by."""

GONE: dict[str, str] = {
    **{name: answer for answer, names in _SHARED.items() for name in names},
    "bundled:NAME": "make a set of public records, as dpltm generate --help shows",
    "tickets export --to": "leave it out: SET is written as a set, SET@ROUND as torch.nn.utils.prune has it",
    "tickets export --predictor": "leave it out; a ticket is exported with its starting weights",
    "--no-predictors": "leave it out; a set has the networks that a draw scores, unless they are private",
    "tickets push": "run dpltm tickets export, then hf upload NAME FOLDER",
    "tickets pull": "run hf download NAME --local-dir FOLDER, then dpltm tickets verify FOLDER",
    "privacy restore": "a ledger is one file: put back a copy of NAME.jsonl and NAME.key",
    "privacy adopt": "artifacts carry what they cost; leave it out",
    "latent owner": "owners install dpltm, and run dpltm latent encode",
    "--tuned-on": "leave it out; a file that dpltm tune wrote says it (lineage)",
    "train --physical-batch": "set physical_batch in a file for `config`",
    "train --precision": "set precision in a file for `config`",
    "export --to": "leave it out; a run is written for ONNX Runtime",
    "--components": "take drawings:K or photographs:K, which bring their directions",
    "--features network": "take scatter, drawings or photographs, or `freeze` the first layers of a `model` FILE:NAME",
    "--public": "leave it out; scatter and conv are normalised within each record",
    "--unit": "name the column with the person of each record by `unit_column`; a single record is protected without it",
    "--clip-quantile": "take a `clip_norm`: one that follows the gradients won nothing (docs/results.md)",
    "--sampling truncated": "take poisson: passes have one shape whatever the batch",
    "privacy noise --noise-multiplier": "the answer is the least noise; ask dpltm privacy epsilon what steps and rates cost",
    "report SET": "dpltm tickets show SET, and the README.md in it, say what it is",
    "report SWEEP": "read results.md in it, or name it to dpltm compare",
    "recipe.measure": "arms are compared by accuracy; leave it out",
    "features": "scripts/make_drawings.py and scripts/make_photographs.py of the repository make what is bundled",
    "--criterion energy": "take `criterion` magnitude",
    "datasets schema --no-header": "say header = false above the columns of a `schema`, in their order",
    "datasets overlap": "compare rows by a program of your own; `test` of a command still refuses rows of its training",
    "generate --pool": "weights are judged one by one; leave it out",
    "synthesize": "make synthetic records by a library, and declare them as what they are; tickets by `criterion` dp-train",
    "--mechanism discrete-gaussian": "price it by dp-accounting (from_discrete_gaussian_mechanism)",
    "--mechanism zcdp": "price it by dp-accounting (ZCDpEvent)",
    "compare --dry-run": "it planned baselines, which are gone; a comparison spends nothing",
    "tune --dry-run": "it planned a private search; a search on public records spends nothing",
    "tune --fresh": "a search that was interrupted begins anew; leave it out",
    "latent epsilon --certified": "give --epsilon; the answer says what it certifies",
    "latent train --fresh": "a training on messages that was interrupted begins anew; leave it out",
    "loop --prepare": "give `x` as the model takes it (it becomes the dtype of its parameters), or let the model scale it",
    "loop --ends": "the figure is that of the whole plan; plan fewer steps, or go on from a state (save_every)",
    "--length": "of a text the last 256 words are kept; in Python dpltm.records.load takes another `length`",
    "train --plot": "dpltm report draws accuracy and epsilon over the steps",
    "tickets show --plot": "dpltm report has the table of density and accuracy",
    "report --plot": "leave it out; the page has the curves, and dpltm privacy curve draws a ledger's",
    "audit --plot": "leave it out; the answer has every claim beside its bound",
    "train --kernels": "leave it out; each layer has what is quicker for it",
    "train --stop-at": "end with the budget (`budget_stop`), or take fewer `steps`",
    "train --augment": "train behind features (`features` drawings, photographs or scatter), or for more steps",
    "x of a Dataset": (
        "give arrays; of PyTorch torch.stack([features for features, _ in dataset]), of Hugging Face"
        " dict(dataset.with_format('numpy')[:]) without its labels"
    ),
    "dpltm.synthesize": "make synthetic records by a library, and declare them as what they are",
    "dpltm.search": "search on public records (dpltm.tune), or train with each setting on one ledger, which pays for all",
}
"""Instead of what is gone: by ``COMMAND`` (``tickets push``), ``COMMAND --option``, ``--option`` where several commands had
it, ``--option value`` (``--criterion energy``) where one value of an option went, or a name of the package."""


def instead(*names: str) -> str | None:
    """Return the end of a refusal of something that is gone, by the first of ``names`` that is; None where none is."""
    return next((f" is gone since 0.3: {GONE[name]}" for name in names if name in GONE), None)
