"""Bytes on disk -> a batch on the device."""
