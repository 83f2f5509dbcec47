"""What is in a dataset: counts, sizes, balance, copies, leaks, and sheets of pictures.

In: a dataset. Out: tables and pictures. Must not know: models' training, conversion.
"""
