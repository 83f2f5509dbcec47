"""Where samples are stored: tars, .beton files and arrays, and the datasets that read them.

In: paths. Out: random access to a sample's bytes by id. Must not know: crops, batches, devices.
"""
