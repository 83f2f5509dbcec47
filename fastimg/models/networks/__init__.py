"""Networks of our own, for which `--arch fastimg/NAME` asks: what timm and torchvision do not have.

In: images [B, 3, H, W]. Out: logits [B, classes]. Must not know: data, training.
"""
