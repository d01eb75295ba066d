"""Audits: attacks on what is claimed, and lower bounds on epsilon that follow from how well they do.

An audit finds bugs; it proves no guarantee. Its bounds hold with a stated confidence, whatever the attack, so they stay
below a certified epsilon that is true, and exceed one that is wrong enough (docs/privacy-model.md section 7).
"""

from dpltm.registry import lazily

__getattr__, __dir__ = lazily(__name__, __path__)
