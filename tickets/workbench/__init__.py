"""The stages on files: each module opens what a request names, runs a stage, saves what it gave, and says what came of it.

It decides about paths. What is spent, entered or refused, ``dpltm.verbs`` decides.
"""
