"""Training: the noisy step, descent, optimizers, averages, ranks, and ``PrivateLoop``."""
