"""What is asked about a sample: its targets -> outputs of the model, a loss for each sample, scores.

In: columns of targets, logits. Out: losses [B], sums on the device, scores. Must not know: loaders, the loop, files.
"""
