"""What changes the weights: optimisers by name, their parameter groups, schedules, averages of weights.

In: a model, and a name with its settings. Out: torch optimisers, rates by step. Must not know: data, batches, losses.
"""
