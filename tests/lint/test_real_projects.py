"""What real projects do and is right: no finding. Each was a false alarm in an installed package."""

from __future__ import annotations

from pathlib import Path

from stayfinite.lint.collect import collect
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
    kept = _RECIPE.format(reset="pass")
    assert "SRC025" in _codes(tmp_path, "b.py", kept)
    for way in ("scaler.scale(loss).backward()", "accelerator.backward(loss)", "(loss / 4).backward()"):
        assert "SRC025" in _codes(tmp_path, "c.py", kept.replace("loss.backward()", way)), way


def test_omegaconf_reads_an_exponent_without_a_dot(tmp_path: Path) -> None:
    text = "optimizer:\n  {component}\n  lr: 2e-5\n"
    assert "CFG001" not in _codes(tmp_path, "a.yaml", text.format(component="_component_: torch.optim.AdamW"))
    assert "CFG001" not in _codes(tmp_path, "b.yaml", text.format(component="out: ${output_dir}/logs"))
    assert "CFG001" in _codes(tmp_path, "c.yaml", text.format(component="name: adamw"))


def test_yacs_reads_an_exponent_without_a_dot(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.yaml").write_text(
        "TRAIN:\n  BASE_LR: 2e-05\n  WARMUP_EPOCHS: 5\n  EPOCHS: 30\n"
    )
    for loads, said in (("import yaml\nfrom yacs.config import CfgNode as CN", False), ("import yaml", True)):
        (tmp_path / "config.py").write_text(f"{loads}\n\nDEFAULTS = {{}}\n")
        codes = {finding.code for finding in lint([str(tmp_path)], Settings()).findings}
        assert ("CFG001" in codes) is said, loads


def _twins(folder: Path, code: str, good: str, bad: str) -> None:
    """The good form is silent; the bad one beside it is found."""
    head = "import math\nimport torch\nfrom torch import nn\n\n\n"
    assert code not in _codes(folder, "good.py", head + good)
    assert code in _codes(folder, "bad.py", head + bad)


def test_no_gradient_flows_through_a_number_of_python(tmp_path: Path) -> None:
    text = "def sides(x):\n    area = (x - 1) ** 2\n    return {}\n"
    _twins(tmp_path, "SRC007", text.format("int(area**0.5)"), text.format("area**0.5"))


def test_an_optimizer_differentiates_nothing(tmp_path: Path) -> None:
    text = """\
class Scaled({base}):
    def __init__(self, params, eps=1e-30):
        self.eps = eps

    def ratio(self, w, g):
        size = g.norm()
        return torch.where(size > 0, w.norm() / size, 1.0)
"""
    for code in ("SRC004", "SRC014"):
        good, bad = text.format(base="torch.optim.Optimizer"), text.format(base="nn.Module")
        _twins(tmp_path, code, good, bad)


def test_a_where_in_the_next_line_settles_the_division(tmp_path: Path) -> None:
    text = """\
def spread(x):
    count = torch.sum(~torch.isnan(x), dim=1)
    correction = count / (count - 1)
    return {}
"""
    kept = "torch.where(count > 1, correction, torch.full_like(correction, 1.0))"
    _twins(tmp_path, "SRC008", text.format(kept), text.format("correction"))


def test_a_test_around_a_call_holds_inside_of_it(tmp_path: Path) -> None:
    text = """\
def mean(x, n):
    return x.sum() / n


def loss(x, labels):
    kept = (labels > 0).sum()
    {}
    return mean(x, kept)
"""
    _twins(tmp_path, "SRC008", text.format("if kept == 0: return x.sum()"), text.format("print(kept)"))


def test_what_was_tested_stays_tested_as_a_tensor(tmp_path: Path) -> None:
    text = """\
def mix(a, b, alpha):
    if {}:
        return a
    share = torch.tensor(alpha)
    return torch.logaddexp(a + torch.log(1 - share), b + torch.log(share))
"""
    _twins(tmp_path, "SRC001", text.format("alpha in (0.0, 1.0) or alpha == 1.0"), text.format("a is None"))


def test_an_eps_that_was_added_keeps_a_logarithm_from_zero(tmp_path: Path) -> None:
    text = "def entropy(k, eps=1e-7):\n    {}\n    return (k * torch.log(k)).sum()\n"
    _twins(tmp_path, "SRC001", text.format("k = k + eps"), text.format("k = k + 0"))


def test_a_maximum_by_its_name_is_one(tmp_path: Path) -> None:
    text = """\
from elsewhere import safe_amax


def softmax(x):
    x_max = safe_amax(x, 1)
    powers = torch.exp({})
    return powers / powers.sum(1, keepdim=True)
"""
    _twins(tmp_path, "SRC011", text.format("x - x_max"), text.format("x - 1"))


def test_a_branch_is_looked_at_where_it_is_not_taken(tmp_path: Path) -> None:
    text = "def f(x, beta: float):\n    return {}\n"
    _twins(
        tmp_path, "SRC014",
        text.format("torch.where(x < -0.69, torch.log1p(-torch.exp(x)), torch.log(-torch.expm1(x)))"),
        text.format("torch.where(x < 0.5, x, torch.log(x))"),
    )  # fmt: skip
    _twins(
        tmp_path, "SRC014",
        text.format("torch.where(x > 0.5, x, 1 / x)"),
        text.format("torch.where(x > 0, 1 / x, x)"),
    )  # fmt: skip
    _twins(
        tmp_path, "SRC014",
        text.format("torch.where(x < beta, 0.5 * x * x / beta, x - 0.5 * beta)"),
        text.format("torch.where(0 < x, beta / x, x)"),
    )  # fmt: skip


def test_what_the_code_host_and_hydra_read_is_not_the_projects(tmp_path: Path) -> None:
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "main.yml").write_text(
        "on:\n  schedule: daily\nsteps: 3\nbatch: 4\nscheduler: none\nlr: 1\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\n\n\ndef main(cfg):\n    print(cfg.lr, cfg.epochs, cfg.batch)\n"
    )
    text = "lr: 0.001\nepochs: 3\nbatch: 8\n{}:\n  run:\n    dir: ./\n"
    (tmp_path / "config.yaml").write_text(text.format("hydra"))
    assert not lint([str(tmp_path)], Settings()).findings
    (tmp_path / "config.yaml").write_text(text.format("other"))
    assert {f.code for f in lint([str(tmp_path)], Settings()).findings} == {"CFG013"}


def test_a_scaler_of_another_function_belongs_to_another_training(tmp_path: Path) -> None:
    text = """\
def first(model, saved):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    {}
    optimizer.load_state_dict(saved)


def second(model):
    scaler = torch.amp.GradScaler("cuda")
    return scaler
"""
    _twins(tmp_path, "SRC026", text.format("pass"), text.format("scaler = torch.amp.GradScaler('cuda')"))


def test_a_command_line_that_reads_every_key_by_its_signature(tmp_path: Path) -> None:
    """LightningCLI gives `trainer.precision` to the Trainer: no source of the project mentions it."""
    (tmp_path / "config.yaml").write_text(
        "trainer:\n  precision: bf16-mixed\nmodel:\n  hidden: 8\n  lr: 0.001\n"
    )
    text = """\
from {module} import {name}


class Model:
    def __init__(self, hidden: int, lr: float = 1e-3): ...


def main():
    {name}(Model)
"""
    for module, name, silent in (
        ("lightning.pytorch.cli", "LightningCLI", True),
        ("jsonargparse", "auto_cli", True),
        ("my_own", "start", False),
    ):
        (tmp_path / "main.py").write_text(text.format(module=module, name=name))
        found = lint([str(tmp_path)], Settings()).findings
        assert ("CFG013" not in {finding.code for finding in found}) is silent, module


def test_the_logarithm_of_a_triangle_of_ones_is_a_mask(tmp_path: Path) -> None:
    text = "def mask(n):\n    band = torch.triu(torch.tril({}), diagonal=-3)\n    return torch.log(band)\n"
    made = "torch.full((n, n), fill_value=1)"
    _twins(tmp_path, "SRC001", text.format(made), text.format("torch.sigmoid(torch.randn(n, n))"))


def test_what_was_counted_is_there_at_least_once(tmp_path: Path) -> None:
    text = "def weights(ids, some):\n    counts = torch.bincount(ids[some])\n    return 1.0 / counts[{}]\n"
    _twins(tmp_path, "SRC008", text.format("ids[some]"), text.format("ids"))


def test_a_small_eps_where_no_gradient_meets_it(tmp_path: Path) -> None:
    text = "{}def scale(x, eps=1e-16):\n    return x / (x.norm() + eps)\n"
    _twins(tmp_path, "SRC004", text.format("@torch.inference_mode\n"), text.format(""))
    _twins(tmp_path, "SRC004", text.format("@torch.no_grad()\n"), text.format(""))
    text = "def log(t, eps=1e-20):\n    return torch.log(t{})\n"
    _twins(tmp_path, "SRC004", text.format(".clamp(min=eps)"), text.format(" + eps"))
    also = "def log(t, eps=1e-20):\n    return t.clamp(min=eps).log(){}\n"
    _twins(tmp_path, "SRC004", also.format(""), also.format(" / (t + eps)"))


def test_arrays_of_a_library_that_logs_with_torch_are_not_its_tensors(tmp_path: Path) -> None:
    text = (
        "import jax\nfrom torch.utils.tensorboard import SummaryWriter\n{}\n\ndef loss(adv):\n"
        "    return (adv - adv.mean()) / (adv.std() + 1e-8)\n"
    )
    assert "SRC013" not in _codes(tmp_path, "good.py", text.format(""))
    assert "SRC013" in _codes(tmp_path, "bad.py", text.format("import torch"))


def test_a_loss_scale_that_nothing_uses_is_not_odd(tmp_path: Path) -> None:
    text = '{{"bf16": {{"enabled": {}}}, "fp16": {{"enabled": {}, "initial_scale_power": 32, "min_loss_scale": 0}}}}'
    for bfloat16, half, said in (
        ("true", '"auto"', False),
        ("false", "false", False),
        ('"auto"', '"auto"', True),
    ):
        codes = _codes(tmp_path, "ds.json", text.format(bfloat16, half))
        assert ("CFG010" in codes) is said, (bfloat16, half)


def test_what_a_class_of_settings_inherits_belongs_to_it(tmp_path: Path) -> None:
    base = "class Base:\n    lr = 1e-3\n    bf16 = True\n    warmup_steps = 100\n    max_steps = 10_000\n"
    (tmp_path / "base.py").write_text(base)
    for head in (base + "\n\n", "from base import Base\n\n\n", "from .base import Base as Base\n\n\n"):
        bad = "class Large(Base):\n    fp16 = True\n    warmup_steps = 20_000\n    save_every = 50_000\n"
        assert {"CFG003", "CFG006", "CFG015"} <= _codes(tmp_path, "config.py", head + bad), head
        good = "class Large(Base):\n    bf16 = False\n    fp16 = True\n    warmup_steps = 200\n    save_every = 500\n"
        assert not _codes(tmp_path, "config.py", head + good), head
    (tmp_path / "config.py").write_text(
        "from base import Base\n\n\nclass Large(Base):\n    warmup_steps = 20_000\n"
    )
    (finding,) = lint([str(tmp_path / "config.py")], Settings()).findings
    assert f"{tmp_path / 'base.py'}:5" in finding.message


def test_presets_of_one_module_do_not_contradict_each_other(tmp_path: Path) -> None:
    text = "FAST = dict(bf16=True, lr=1e-4)\nSAFE = dict({}fp16=True, lr=1e-4)\n"
    assert "CFG003" not in _codes(tmp_path, "config.py", text.format(""))
    assert "CFG003" in _codes(tmp_path, "config.py", text.format("bf16=True, "))


def test_the_lightning_command_line_names_classes_by_their_path(tmp_path: Path) -> None:
    text = (
        "trainer:\n  precision: {}\n  max_epochs: 5\noptimizer:\n  class_path: torch.optim.Adam\n"
        "  init_args:\n    lr: {}\n    eps: 1.0e-08\n"
    )
    assert not _codes(tmp_path, "good.yaml", text.format("16-mixed", "0.001"))
    assert {"CFG002", "CFG005"} <= _codes(tmp_path, "bad.yaml", text.format("16-true", "5.0"))


def test_our_own_incidents_are_no_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "stayfinite-runs/a/incidents/0001"
    (folder / "capsule").mkdir(parents=True)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    for name in ("incident.json", "capsule/capsule.json"):
        (folder / name).write_text('{"lr": "1e-5", "learning_rate": 30.0}')
    assert [found.path.name for found in collect([str(tmp_path)])] == ["config.json"]
