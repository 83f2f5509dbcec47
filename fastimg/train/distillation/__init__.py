"""Distillation: a trained model, the teacher, says of each image how probable each class is; the student learns that.

It runs in every step (`teacher`), or once over a few views of the images (`kept_logits`). `loss` is what both add.
"""
