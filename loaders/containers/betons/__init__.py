"""FFCV's .beton container.

In: .beton files. Out: values by sample and field; .beton files. Must not know: tars, batches.
"""
