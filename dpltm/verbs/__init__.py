"""The verbs: what a user asks for, each one module. ``dpltm`` has their functions; ``dpltm.cli`` calls the same ones."""

from dpltm.registry import lazily

__getattr__, __dir__ = lazily(__name__)
