"""What accelerate knows of the loaders that it has prepared, told it of ours, which it leaves as they are.

`accumulate` takes a step at an epoch's last batch, and `gather_for_metrics` leaves out what the last batch was filled
with. Both ask accelerate's GradientState, to which accelerate's own DataLoaders tell where they are.
"""

import sys
from typing import Any


def reading() -> Any | None:
    """A DataLoader's state as accelerate has it, which is being read from now on, until its `end()`; None where this
    process has no Accelerator. Its `end_of_dataloader` and `remainder` are to be set."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return None
    from accelerate.data_loader import DataLoaderStateMixin

    found = DataLoaderStateMixin()
    found.gradient_state = state.GradientState()
    found.begin()
    return found
