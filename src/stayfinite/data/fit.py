"""What belongs together: the corners of a box, the frames and labels of a CTC sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stayfinite.findings.subjects.data_set import AlignmentFaults, BoxFaults, DataSet, Samples, Use

if TYPE_CHECKING:
    import torch

_CORNERS = 0.6
_FRAMES = (
    "input_lengths",
    "input_length",
    "frame_lengths",
    "frames_lengths",
    "logit_lengths",
    "input_len",
    "input_lens",
)
_LABELS = (
    "target_lengths",
    "target_length",
    "label_lengths",
    "label_length",
    "target_len",
    "target_lens",
    "label_lens",
)
_TARGETS = ("targets", "target", "labels", "label", "tokens", "transcripts")


def hold(
    held: dict[str, torch.Tensor], name: str, rows: torch.Tensor, shape: tuple[int, ...], most: int
) -> None:
    """Keep the values of a small array."""
    import torch

    before = held.get(name)
    if before is not None and before.numel() == 0:
        return  # it was too large
    made = rows.double().clone() if before is None else torch.cat([before, rows.double()])
    held[name] = made if made.numel() <= most else made.new_empty(0)


def find_boxes(data: DataSet, held: dict[str, torch.Tensor]) -> None:
    """Boxes without area, in the layout that most of them have."""
    for array in data.arrays:
        if array.use is not Use.BOX or array.name not in held or not held[array.name].numel():
            continue
        per_sample = len(array.shape) > 2
        boxes = held[array.name].reshape(array.rows, -1, 4)
        sized = (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])
        padding = (boxes == 0).all(dim=-1) if per_sample else sized & False
        real = ~padding
        if not real.any():
            continue
        corners = float(sized[real].double().mean()) >= _CORNERS
        good = sized if corners else (boxes[..., 2] > 0) & (boxes[..., 3] > 0)
        bad = (real & ~good).any(dim=1).nonzero().flatten()
        if bad.numel():
            layout = "x1 y1 x2 y2" if corners else "x y w h"
            samples = Samples(bad.numel(), bad[: Samples.MOST].tolist())
            data.boxes.append(BoxFaults(array.name, layout, int(real.sum()), samples))


def find_alignments(data: DataSet, held: dict[str, torch.Tensor]) -> None:
    """CTC needs a frame for each label and one more between two equal labels."""
    names = {name.rpartition(".")[2].lower(): name for name in held}
    frames = next((names[key] for key in _FRAMES if key in names), None)
    labels = next((names[key] for key in _LABELS if key in names), None)
    if frames is None or labels is None:
        return
    given, wanted = held[frames].flatten(), held[labels].flatten()
    if given.numel() != wanted.numel() or not given.numel():
        return
    needed = wanted.clone()
    targets = next(
        (held[names[key]] for key in _TARGETS if key in names and names[key] not in (frames, labels)), None
    )
    if targets is not None and targets.shape[0] == wanted.numel() and targets.dim() == 2:
        for row in range(wanted.numel()):
            tokens = targets[row, : int(wanted[row])]
            needed[row] += int((tokens[1:] == tokens[:-1]).sum())
    bad = (given < needed).nonzero().flatten()
    if bad.numel():
        first = int(bad[0])
        samples = Samples(bad.numel(), bad[: Samples.MOST].tolist())
        example = (int(given[first]), int(needed[first]))
        data.alignments.append(AlignmentFaults(frames, labels, given.numel(), samples, example))
