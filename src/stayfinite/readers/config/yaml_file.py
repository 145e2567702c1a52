"""YAML, by yaml.compose: nodes with places, no objects built, no tags resolved."""

from __future__ import annotations

import yaml

from stayfinite.findings.subjects.config_file import Entry
from stayfinite.readers.config.nodes import DEEPEST, Collected, UnreadableConfig

_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN = yaml.SafeLoader("")  # resolves plain scalars the way PyYAML does


def read(text: str, file: str) -> Collected:
    found = Collected(file)
    try:
        # libyaml's composer calls itself and ends the process when nested too deeply
        _refuse_deep(text, file)
        documents = list(yaml.compose_all(text, Loader=_LOADER))
    except (yaml.YAMLError, RecursionError, ValueError) as trouble:
        problem = getattr(trouble, "problem", None) or str(trouble).partition("\n")[0] or "nested too deeply"
        mark = getattr(trouble, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        raise UnreadableConfig(f"{file}{where}: not valid YAML ({problem})") from trouble
    if documents and all(isinstance(document, yaml.ScalarNode) and document.value for document in documents):
        raise UnreadableConfig(f"{file}: a single text without keys is no configuration")
    for document in documents:
        if isinstance(document, yaml.MappingNode):
            _mapping(document, (), found, set())
    return found


def _refuse_deep(text: str, file: str) -> None:
    """Count the nesting in the stream of events, which needs no stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
            if depth > DEEPEST:
                where = f":{event.start_mark.line + 1}" if event.start_mark is not None else ""
                raise UnreadableConfig(f"{file}{where}: nested too deeply for a configuration")
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1


def _mapping(node: yaml.MappingNode, path: tuple[str, ...], found: Collected, above: set[int]) -> None:
    if id(node) in above or len(path) > DEEPEST:
        return  # an alias that contains itself
    above = above | {id(node)}
    seen: dict[str, Entry] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            continue
        if key_node.value == "<<" and isinstance(value_node, yaml.MappingNode):
            _mapping(value_node, path, found, above)
            continue
        entry = _entry(key_node, value_node, path, found.file)
        if entry.key in seen:
            found.duplicates.append(entry)
        seen[entry.key] = entry
        found.add(entry)
        if isinstance(value_node, yaml.MappingNode):
            _mapping(value_node, entry.path, found, above)
        elif isinstance(value_node, yaml.SequenceNode):
            for item in value_node.value:
                if isinstance(item, yaml.MappingNode):
                    _mapping(item, entry.path, found, above)


def _entry(key: yaml.ScalarNode, value: yaml.Node, path: tuple[str, ...], file: str) -> Entry:
    quoted = isinstance(value, yaml.ScalarNode) and value.style in ("'", '"')
    return Entry(
        (*path, str(key.value)),
        _value(value),
        key.start_mark.line + 1,
        key.start_mark.column + 1,
        file,
        value.start_mark.line + 1,
        value.start_mark.column + 1,
        str(value.value) if isinstance(value, yaml.ScalarNode) else "",
        quoted,
        isinstance(value, yaml.MappingNode),
    )


def _value(node: yaml.Node) -> object:
    """A scalar as PyYAML would load it (so that 1e-5 stays text), or a list of scalars."""
    if isinstance(node, yaml.ScalarNode):
        try:
            return _PLAIN.construct_object(yaml.ScalarNode(node.tag, node.value, style=node.style))
        except (yaml.YAMLError, ValueError, OverflowError):
            return node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value[:1000] if isinstance(item, yaml.ScalarNode)]
    return None
