"""For scripts that were written for torchvision: their folders, transforms and batches, by this package's loader.

In: an ImageFolder or its root, a transform. Out: (images, targets). Must not know: augment, the application.
"""
