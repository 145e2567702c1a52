"""What real projects do and is right: no finding. Each was a false alarm in an installed package."""

from __future__ import annotations

from pathlib import Path

from stayfinite.lint.examine import lint
from stayfinite.lint.settings import Settings

_RECIPE = """\
import torch


def train(model, optimizer, loader, every):
    running_loss = 0
    for step, batch in enumerate(loader):
        loss = model(batch)
        running_loss += loss
        loss.backward()
        if step % every == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(running_loss.item())
            {reset}
"""


def _codes(folder: Path, name: str, text: str) -> set[str]:
    (folder / name).write_text(text)
    return {finding.code for finding in lint([str(folder / name)], Settings()).findings}


def test_a_sum_of_losses_that_is_emptied_does_not_grow(tmp_path: Path) -> None:
    assert "SRC025" not in _codes(tmp_path, "a.py", _RECIPE.format(reset="running_loss = 0"))
    assert "SRC025" in _codes(tmp_path, "b.py", _RECIPE.format(reset="pass"))


def test_omegaconf_reads_an_exponent_without_a_dot(tmp_path: Path) -> None:
    text = "optimizer:\n  {component}\n  lr: 2e-5\n"
    assert "CFG001" not in _codes(tmp_path, "a.yaml", text.format(component="_component_: torch.optim.AdamW"))
    assert "CFG001" not in _codes(tmp_path, "b.yaml", text.format(component="out: ${output_dir}/logs"))
    assert "CFG001" in _codes(tmp_path, "c.yaml", text.format(component="name: adamw"))
