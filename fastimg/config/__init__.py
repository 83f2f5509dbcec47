"""What a user may ask for: one frozen dataclass per command, YAML files, recipes, durations and rules between flags.

In: flags and YAML. Out: a configuration, or a sentence about its fault. Must not know: torch, datasets, models.
"""
