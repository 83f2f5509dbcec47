"""What may happen to an image, as the user states it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Probabilities per image. The normalisation is part of it: (x / 255 - mean) / std per channel."""

    hflip: float = 0.0
    vflip: float = 0.0
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        for name, p in (("hflip", self.hflip), ("vflip", self.vflip)):
            if not 0.0 <= p <= 1.0:
                raise ValueError(f"{name} is a probability, from 0 to 1; it was {p}")
        if len(self.mean) != 3 or len(self.std) != 3:
            raise ValueError(f"mean and std have three numbers, red, green and blue; they were {self.mean}, {self.std}")
        if not all(s > 0.0 for s in self.std):  # nan neither
            raise ValueError(f"std must be above 0; it was {self.std}")
