"""What becomes of each setting of `train` when a run is resumed with another value of it.

A setting that is not named here is part of what was trained so far: the pixels, the order, the weights, or which
validation is the best. Another value of it is refused.
"""

# How a command is given and what it shows: no settings of the run. Neither compared nor kept.
OF_A_COMMAND = frozenset(
    ("resume", "output", "name", "config", "recipe", "profile", "dry_run", "verbose", "storage_option")
)

# What leaves the past as it is. A change is said, and is the run's own from then on.
MAY_CHANGE = frozenset(
    {
        *("patience", "max_time", "val_interval", "evaluate_training_set", "on_error"),
        *("save_interval", "checkpoint_hist", "log_interval", "log", "trace"),
        *("data", "cache_dir", "cache_limit"),  # places: whether it is the same data is seen by its content
        *("workers", "prefetch", "augment_stream", "numa_binding"),
        *("device", "strategy", "grad_compression", "compile", "opt_impl"),  # the same arithmetic, rounded otherwise
        "cuda_graphs",
        *("grad_checkpointing", "channels_last", "deterministic"),
        *("backend", "address", "num_workers", "resources_per_worker", "elastic", "max_failures"),
    }
)

# Images per step: what the ranks make of them together is compared (`run_directory.batch_of_before`).
OF_A_STEP = frozenset({"batch_size", "grad_accum_steps"})

# A run may be made longer (`choices.extension`).
LENGTH = frozenset({"epochs", "duration"})
