"""Files of `disco train --config`: YAML, read without trust."""

from pathlib import Path
from types import NoneType
from typing import Any

from ..files import plain, read_bytes

_MAX_BYTES = 1 << 16
_MAX_NUMBER = 10**18  # of either sign


def read_config(path: Path, experiment: str) -> dict[str, Any]:
    """Return the options in a file by name; null stands for the default."""
    import yaml  # type: ignore[import-untyped,unused-ignore]

    try:
        packed = read_bytes(path, _MAX_BYTES)
        collections = 0
        for event in yaml.parse(packed):  # before loading: aliases could expand to gigabytes
            collections += isinstance(event, yaml.CollectionStartEvent)
            if isinstance(event, yaml.AliasEvent) or collections > 1:
                raise ValueError("expected lines such as `epochs: 2`, not lists or aliases")
        content = yaml.safe_load(packed)
    except OSError:
        raise
    except Exception as error:  # malformed dates, numbers and tags make it raise a dozen types
        raise ValueError(f"{path}: not a valid YAML config file ({plain(error) or type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected options such as `epochs: 2`, got {plain(content)}")
    if (named := content.pop("experiment", experiment)) != experiment:
        raise ValueError(f"{path}: this config is for {plain(named)}, not {experiment}")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float, NoneType)):
            raise ValueError(f"{path}: expected options such as `epochs: 2`, got {plain(f'{name}: {value}')}")
        if isinstance(value, int) and abs(value) > _MAX_NUMBER:
            raise ValueError(f"{path}: {plain(name)} is too large")
    return {name: value for name, value in content.items() if value is not None}
