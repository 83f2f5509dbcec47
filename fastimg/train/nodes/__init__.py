"""Training by the workers of Ray Train, on the nodes of a Ray cluster.

In: what `train` is asked for.
Out: its result; lines that rank 0 prints.
Must not know: how a model is trained.
"""
