"""The files that this package brings for features, and what their contents must be."""

from __future__ import annotations

DRAWINGS_FILE = "drawings.safetensors"
DRAWINGS_DIGEST = "d5c1280962839806a1eb38d58afc8ce4f5192109fa840f9ee1df20115933f00b"
"""The encoder of drawings, and what ``dpltm features make drawings`` gave for it."""

PHOTOGRAPHS_FILE = "photographs.safetensors"
PHOTOGRAPHS_DIGEST = "24f769062018535c810149a34ab08653cec37ab21c481ac6097d51ff486627ec"
"""The dictionary of patches of painted scenes, and what ``dpltm features make photographs`` gave for it."""
