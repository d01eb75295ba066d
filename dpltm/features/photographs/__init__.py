"""Scenes that programs paint, and a dictionary of their patches: features of photographs that come from nobody's data.

``leaves`` paints, ``scenes`` composes, ``dictionary`` says what a photograph is made of, ``learning`` takes patches and
directions, all from painted scenes. Nothing here reads a file or a network.
"""
