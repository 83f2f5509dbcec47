"""What the machine has and allows: hardware, memory, disks, installed packages, signals, progress lines.

In: nothing but the machine. Out: facts about it. Must not know: datasets, models, training.
"""
