"""What a run keeps on disk: checkpoints, the run directory, and the profile of the machine.

In: the state of a run. Out: directories that appear complete or not at all. Must not know: how a step is taken.
"""
