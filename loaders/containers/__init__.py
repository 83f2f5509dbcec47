"""Where samples lie: tars, .beton files and arrays, and the datasets over them.

In: paths. Out: random access to a sample's bytes by id. Must not know: crops, batches, devices.
"""
