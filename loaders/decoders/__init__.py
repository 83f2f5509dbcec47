"""The decoders: encoded images, arrays and tokens become rows of a batch.

In: a chunk of sample ids and their draws. Out: filled rows, and failures. Must not know: threads, devices.
"""
