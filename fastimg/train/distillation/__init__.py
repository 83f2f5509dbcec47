"""Distillation: a trained model, the teacher, says how probable each class is, and the student learns that, too.

In: a run or weights, and batches as the student sees them. Out: the teacher's logits, and the loss with its share.
Must not know: the loop, or the optimiser. `teacher` runs in every step; `kept_logits` are made once, of a few views.
"""
