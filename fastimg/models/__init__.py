"""Models by name, with weights and heads, and the wrappers of a pure model: freezing, EMA, compile, precision, ranks.

In: names, weights, flags. Out: modules whose parameter names never change. Must not know: datasets, runs.
"""
