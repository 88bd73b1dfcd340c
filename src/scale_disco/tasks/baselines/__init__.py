"""Layers of the methods that the paper compares with."""
