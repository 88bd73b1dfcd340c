"""The commands `disco track` and `disco otb`."""
