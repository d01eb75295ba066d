"""Maps in front of a network that act on one record at a time: fixed wavelets, which need no data, or a frozen network.

What kinds there are, and what options say of them, is here and light to import; the maps themselves are in
``dpltm.features.feature_map``.
"""

from dpltm.features.registry import (
    MAPS,
    Choice,
    JoinedChoice,
    MapChoice,
    MapKind,
    NetworkRun,
    Takes,
    Transform,
    metavar,
    names_with_channels,
    parse,
)

__all__ = [
    "MAPS",
    "Choice",
    "JoinedChoice",
    "MapChoice",
    "MapKind",
    "NetworkRun",
    "Takes",
    "Transform",
    "metavar",
    "names_with_channels",
    "parse",
]
