"""What may be asked for: one frozen dataclass per command, YAML files, recipes and spans.

In: flags and YAML. Out: a configuration whose keys and types are right. Must not know: torch, datasets, models.
"""
