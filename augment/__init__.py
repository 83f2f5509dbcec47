"""A uint8 batch on the device -> the model's input."""
