"""A source of random bytes that were prepared."""


class Prepared:
    """Hands out these bytes in order, and fails if others are asked for; over and over, if it ``repeats``."""

    def __init__(self, data: bytes, repeats: bool = False) -> None:
        self.data, self.repeats = data, repeats

    def random_bytes(self, count: int) -> bytes:
        assert count <= len(self.data), "more bytes than prepared"
        taken, rest = self.data[:count], self.data[count:]
        assert not (self.repeats and rest), "fewer bytes than prepared"
        self.data = taken if self.repeats else rest
        return taken
