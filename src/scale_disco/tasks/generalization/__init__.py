"""Generalization to unseen scales: digits of sizes, and materials at distances, that are not in the training data."""
