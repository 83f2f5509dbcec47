"""Models by name with their weights and heads, and what wraps a pure model: freezing, EMA, compile, precision, ranks.

In: names, weights, flags. Out: modules whose parameter names never change. Must not know: datasets, runs.
"""
