"""The stages on files: each module opens what a request names, runs a stage, saves the result, and returns the answer.

It decides about paths. What is spent, entered or refused, ``dpltm.verbs`` decides.
"""
