"""Sequences with ground-truth boxes: OTB, GOT-10k and synthetic ones."""
