"""The commands `disco scene` and `disco test scene`."""
