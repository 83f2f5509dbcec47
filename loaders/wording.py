"""How counts are written in messages."""


def plural(count: int, noun: str) -> str:
    """`count` and `noun` in the number that goes with it: "1 class", "1,200 samples"."""
    several = f"{noun}es" if noun.endswith(("s", "ch")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else several}"
