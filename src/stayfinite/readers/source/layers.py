"""What comes out of a layer of torch.nn that the file itself builds."""

from __future__ import annotations

from dataclasses import dataclass, field

from stayfinite.findings.subjects.source_file import Value
from stayfinite.readers.source.intervals import ANY
from stayfinite.readers.source.transfer import TRANSFERS, Draft, span_of
from stayfinite.readers.source.vocabulary import ACTIVATIONS, PASSING_LAYERS, UNBOUNDED_LAYERS


@dataclass(slots=True)
class Layer:
    """A module as it was built: its class, its arguments, and for a Sequential its parts."""

    name: str
    arguments: tuple[Value, ...] = ()
    options: dict[str, Value] = field(default_factory=dict)
    parts: tuple[Layer, ...] = ()

    @property
    def biased(self) -> bool:
        bias = self.options.get("bias")
        if bias is None and self.name == "Linear" and len(self.arguments) > 2:
            bias = self.arguments[2]
        return bias is None or bias.const is not False

    @property
    def width(self) -> int | None:
        """The number of outputs of a linear layer, where it is written down."""
        last = self.parts[-1] if self.parts else self
        given = last.options.get("out_features") or (
            last.arguments[1] if len(last.arguments) > 1 else Value()
        )
        number = given.number
        return int(number) if last.name == "Linear" and number is not None and number == int(number) else None


def output(layer: Layer, given: Value, dtype: str | None) -> Draft:
    """The draft of a layer's output; `dtype` is that of an autocast around it, or of the module."""
    if layer.parts:
        value = given
        draft = Draft(known=False, grad=True)
        for part in layer.parts:
            draft = output(part, value, dtype)
            value = Value(
                draft.kind, *draft.span, made=given.made, dtype=draft.dtype, grad=True, traits=draft.traits
            )
        return draft
    if layer.name in UNBOUNDED_LAYERS:
        kept = given.traits & ({"slice"} if layer.biased else {"slice", "zero_rows"})
        width = layer.width
        shape = (None, width) if width is not None else None
        return Draft(ANY, traits=frozenset({"network"}) | kept, dtype=dtype, shape=shape, grad=True)
    if layer.name in ("Embedding", "EmbeddingBag"):
        padded = "padding_idx" in layer.options and layer.options["padding_idx"].kind != "none"
        return Draft(ANY, traits=frozenset({"network"} | ({"zero_rows"} if padded else set())), grad=True)
    if layer.name in ACTIVATIONS:
        draft = TRANSFERS[ACTIVATIONS[layer.name]]((given,), {}) if ACTIVATIONS[layer.name] in TRANSFERS else (
            Draft(known=False)
        )  # fmt: skip
        draft.grad = True
        draft.dtype = draft.dtype or dtype or given.dtype
        return draft
    if layer.name in PASSING_LAYERS:
        return Draft(
            span_of(given), traits=given.traits, known=given.known, dtype=given.dtype, grad=given.grad
        )
    return Draft(known=False, dtype=dtype, grad=True)
