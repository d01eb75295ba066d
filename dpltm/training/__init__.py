"""Training: the noisy step, descent, optimizers, averages, ranks, and ``PrivateLoop``."""

from dpltm.registry import lazily

__getattr__, __dir__ = lazily(__name__)
