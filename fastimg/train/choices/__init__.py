"""What a run will do: flags that cannot be are refused, open choices are made, a batch size is found.

In: a configuration, a model and data. Out: a configuration without open choices. Must not know: how a step is taken.
"""
