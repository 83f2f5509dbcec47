"""Other programs that show runs: TensorBoard, Weights & Biases, MLflow. None is imported unless --log names it.

In: the records of metrics.jsonl, the configuration, pictures. Out: what each keeps. Must not know: how a step is taken.
"""
