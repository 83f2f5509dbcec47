"""What a run tells people: its configuration, where its time goes, its summary and its curves.

In: a run's settings, records and times. Out: lines, tables and pictures. Must not know: how a step is taken.
"""
