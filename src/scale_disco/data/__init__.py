"""Readers and builders of data."""
