"""A search within a time, by stages: heads on kept embeddings, fine-tuning by successive halving, the winner in full.

In: data, a time, what runs trials, a clock. Out: records of trials, Optuna's studies of them, a leaderboard.
Must not know: processes.
"""
