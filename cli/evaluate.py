"""``dpltm evaluate`` and ``dpltm predict``: the network of a run, in tables."""

from __future__ import annotations

from functools import partial

from dpltm.cli.console import answering
from dpltm.cli.show import show_noted
from dpltm.registry import Deferred

evaluate_command = answering(Deferred("dpltm.tickets.workbench.evaluate:evaluate"), partial(show_noted, "evaluated"))
predict_command = answering(Deferred("dpltm.tickets.workbench.predict:predict"), partial(show_noted, "predicted"))
