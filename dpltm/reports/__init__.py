"""Reports on a run, for a person or a program: facts, gathered from values."""

from dpltm.registry import lazily

__getattr__, __dir__ = lazily(__name__)
