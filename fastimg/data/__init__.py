"""What DATA means: datasets and their splits, the loaders over them, and the augmentation that was asked for.

In: paths and flags. Out: datasets, loaders and policies. Must not know: how a model is trained or where results go.
"""
