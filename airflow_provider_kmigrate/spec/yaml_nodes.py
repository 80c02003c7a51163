"""YAML as nodes, before anything is made of it: few lines with aliases may stand for more values than any memory holds."""

from __future__ import annotations

from typing import Any, Final

import yaml

MOST_BYTES: Final = 4 << 20
"""Of a file that is read as YAML."""
_MOST_VALUES: Final = 200_000  # each alias counts as what it stands for; a thousand brokers have a tenth of it
_MOST_DIGITS: Final = 100  # Python writes no integer of some thousand


def check_extent(root: yaml.Node | None) -> None:
    """Raises `yaml.MarkedYAMLError` if a value contains itself, or if the aliases stand for too many values."""
    if root is not None:
        _measure(root, {}, set())


def _measure(node: yaml.Node, sizes: dict[yaml.Node, int], outer: set[yaml.Node]) -> int:
    """How many values the node stands for. `sizes`: of nodes that are measured; `outer`: those that contain it."""
    if node in outer:
        raise yaml.MarkedYAMLError(problem="found a value that contains itself", problem_mark=node.start_mark)
    if (size := sizes.get(node)) is not None:
        return size
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:int" and len(node.value) > _MOST_DIGITS:
        raise yaml.MarkedYAMLError(problem=f"found a number longer than {_MOST_DIGITS} digits", problem_mark=node.start_mark)
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    outer.add(node)
    size = 1 + sum(_measure(part, sizes, outer) for part in parts)
    outer.remove(node)
    if size > _MOST_VALUES:
        raise yaml.MarkedYAMLError(problem=f"found more than {_MOST_VALUES} values", problem_mark=node.start_mark)
    sizes[node] = size
    return size


def read_yaml(text: bytes) -> Any:
    """A document of which no more is known than that it is YAML. Raises ValueError, whose text quotes none of it: it may hold passwords."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        check_extent(root)
        return None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or f"a {type(error).__name__}"
        place = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"it is no YAML ({what}{place})") from None
