"""The position of a loader, as `state_dict` gives it."""

from collections.abc import Mapping

from fastimg.loaders.crop import whole
from fastimg.loaders.wording import plural

_STATE = ("epoch", "position", "samples", "seed", "order", "fingerprint")  # what a state has


def position_in(state: object) -> tuple[int, int]:
    """(epoch, position) of a state. Raises ValueError for what no `state_dict` has returned."""
    advice = "give what state_dict() has returned"
    if not isinstance(state, Mapping):
        raise ValueError(f"not a state of a Loader, but of type {type(state).__name__}; {advice}")
    if missing := [name for name in _STATE if name not in state]:
        raise ValueError(f"not a state of a Loader, as it lacks {', '.join(missing)}; {advice}")
    try:
        epoch, position, samples = (whole(state[name], name) for name in ("epoch", "position", "samples"))
    except TypeError as error:
        raise ValueError(f"not a state of a Loader ({error}); {advice}") from None
    if not 0 <= position <= samples or epoch < (-1 if position == samples else 0):  # -1: no epoch has begun
        place = f"position={position} of {plural(samples, 'sample')} in epoch={epoch}"
        raise ValueError(f"not a state of a Loader ({place}); {advice}")
    return epoch, position
