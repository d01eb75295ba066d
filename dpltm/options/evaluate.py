"""Options of commands about a finished run: accuracy, predictions, the way out, reports and comparisons."""

from __future__ import annotations

from dpltm.options import Options, option
from dpltm.options.data import BY_HELP, YES_HELP, DataOptions, FolderOptions, LedgerOptions
from dpltm.options.network import CodeOptions


class EvaluateRequest(LedgerOptions, CodeOptions, DataOptions):
    """Accuracy of a run's model on the test split of a dataset, or on all records of `input`.

    These records are declared separate from the private ones: measuring costs nothing, and nothing is promised for them.
    Columns and bounds of a table are those of the training, unless you name others.

    Examples:
        dpltm evaluate digits.run --dataset digits
        # a table: the run remembers its columns and bounds
        dpltm evaluate mine.run --dataset mine.csv --test held-out.csv
        # new records alone, in any order of columns
        dpltm evaluate mine.run --input new.csv --label y
    """

    run: str = option(None, "Folder of the run.", "RUN", argument=True)
    input: str | None = option(None, "Records with labels, instead of `dataset` and its test split.", "FILE")
    by: str | None = option(None, BY_HELP, "COLUMN")


class PredictRequest(CodeOptions):
    """Class and class probabilities that a run's model gives to records without labels.

    Predictions for records that the run was not trained on are post-processing and cost nothing. The output depends on the
    records of `input`, and is as sensitive as they are.

    Examples:
        dpltm predict digits.run --input new.npz -o predicted.csv
        # a table that still has its labels, and a column that identifies records
        dpltm predict mine.run --input new.csv --label y --id patient -o predicted.csv
    """

    run: str = option(None, "Folder of the run.", "RUN", argument=True)
    input: str = option(None, "Records: a .npz with x, or a table in any order.", "FILE")
    label: str | None = option(None, "Column of a table that is no feature.", "COLUMN")
    id: str | None = option(None, "Column of a table that is written first.", "COLUMN")
    out: str = option(None, "File to write.", "FILE.csv", short="-o")


class ExportRequest(FolderOptions, CodeOptions):
    """A run's trained network for use without dpltm: with its scaling, encoding and features, in one folder.

    The folder holds the network for ONNX Runtime, `predict.py`, which predicts with it, and `encode.py`, which makes its
    inputs from a CSV file by names of columns, with Python alone. Before it is written, the network is compared with dpltm's
    on made-up records.

    Examples:
        # python mine/predict.py new.csv predictions.csv then predicts
        dpltm export mine.run --out mine
    """

    run: str = option(None, "Folder of the run.", "RUN", argument=True)
    yes: bool = option(False, YES_HELP)


class ReportRequest(Options):
    """One page about a run: what was done, what that guarantees, and what it means.

    The page is a single file of HTML that needs no network. With `card` it is a model card in Markdown instead, which dpltm
    privacy check computes again. An unfinished or damaged run gets a page, which says what is missing, and no card. The exit
    code is 1 if something is damaged, and 0 if the run has only not ended.

    Examples:
        dpltm report digits.run -o report.html
        # with purpose and contact, for the decision
        dpltm report digits.run -o report.html --purpose "reads digits" --contact "Ann, data office"
        # a model card
        dpltm report digits.run --card -o README.md
    """

    target: str = option(None, "Folder of a run.", "RUN", argument=True)
    out: str | None = option(None, "File to write.", "FILE.html|.md", short="-o", shown="NAME.html or NAME.card.md")
    card: bool = option(False, "Write a model card (Markdown) instead of a page.")
    purpose: str | None = option(None, "What the model is for.", "TEXT")
    contact: str | None = option(None, "Whom to ask about it.", "TEXT")
    ledger: str | None = option(None, "Ledger to add up all releases of.", "FILE", shown="the dataset's")


class CompareRequest(Options):
    """Runs in one table: accuracy with its interval, both epsilons, density, parameters.

    A folder of a sweep stands for all of its runs. Runs are compared if they were trained on the same records and measured
    on as many test records; others are shown, with the reason.

    The exit code is 1 if a run is damaged, and 2 if there is nothing to compare.

    Examples:
        dpltm compare one.run two.run --plot runs.svg
    """

    runs: tuple[str, ...] = option(None, "Folders of runs or sweeps.", "RUN", argument=True)
    plot: str | None = option(None, "Draw accuracy against epsilon.", "FILE.png|.svg|.pdf")
