"""The public face, continued: records that are made (``dpltm.synthesize``); see ``dpltm.face``."""

from __future__ import annotations

from typing import Any

from dpltm.calls import Labels, Records, check_types, records_and_options
from dpltm.errors import in_python
from dpltm.options.synthesize import SynthesizeOptions
from dpltm.privacy.old_ledger import Ledger
from dpltm.stages import synthesize as stage
from dpltm.stages.progress import Progress, watched_by
from dpltm.stages.services import Services

__all__ = ["synthesize"]


def synthesize(
    x: Records, y: Labels = None, *, ledger: Ledger | None = None, progress: Progress | None = None, **options: Any
) -> stage.SyntheticRecords:
    """Synthetic records under differential privacy: post-processing of one Gaussian query for moments.

    Args:
        x, y: the private records, ``(n, ...)``, and their labels ``(n,)``; or a dataset alone.
        ledger: where the release is entered; None for one in memory, which goes along with the records.
        progress: told how far it is; None for silence.
        options: ``epsilon`` and all other fields of ``SynthesizeOptions``; of arrays also ``test`` (features and labels of
            records declared separate, which a network trained on the synthetic ones is scored on), ``bounds``, ``classes``,
            ``records`` and ``name``.

    Returns:
        The records, ``.x`` and ``.y``, and as a ``.dataset`` that every stage takes; ``.privacy``, ``.score``, ``.ledger``.

    Raises:
        DpltmError: bad input, or too small a budget, before any of it is spent.

    Guarantees:
        The event is entered before the query is asked. Nothing else depends on the records, but for public facts.

    Example:
        >>> import dpltm, numpy as np
        >>> x = np.random.default_rng(5).integers(0, 256, (200, 6), dtype=np.uint8)
        >>> made = dpltm.synthesize(x, np.arange(200) % 3, epsilon=1.0, delta=1e-4, records_out=50)
        >>> made.x.shape, round(made.privacy.certified.epsilon, 2)
        ((50, 6), 1.0)
    """
    check_types(ledger=ledger)
    services = Services(watched_by(progress))
    dataset, arguments = records_and_options(x, y, options, SynthesizeOptions)
    settings, entered = arguments.take(SynthesizeOptions), Ledger() if ledger is None else ledger
    with in_python(dataset="x"):
        plan = stage.plan(dataset, settings, entered, services)
        return stage.scored(plan, stage.synthesize(plan, services), services)
