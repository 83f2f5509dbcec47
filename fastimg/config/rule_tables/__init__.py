"""The rules between the flags of each command: the tables that `rules` reads, in the order in which faults are named.

In: the fields of a command's dataclass. Out: tables of rules. Must not know: how a rule is told, and torch.

A new flag of `train` is a field in `config/training`, and a row of a table in `rule_tables/training` if its values
are limited or other settings exclude it, need it or leave it without effect.
"""
