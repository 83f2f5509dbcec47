"""What is installed, in use, slow or missing, and the advice that follows from it.

In: the machine. Out: findings with remedies. Must not know: datasets, runs.
"""
