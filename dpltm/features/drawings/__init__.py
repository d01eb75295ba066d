"""Drawings that a formula makes, and an encoder that learned to tell them apart: features that come from nobody's data.

``strokes`` draws, ``encoder`` is the network, ``learning`` trains it and takes directions of its units, all from drawings.
Nothing here reads a file or a network.
"""
