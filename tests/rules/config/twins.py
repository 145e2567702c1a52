"""Pairs of configurations, in every format that is read: one with a planted fault, one without."""

from __future__ import annotations

from textwrap import dedent
from typing import NamedTuple


class Twin(NamedTuple):
    """A fault in `file` at `line`; other files may lie beside it."""

    code: str
    what: str
    file: str
    line: int
    bad: dict[str, str]
    good: dict[str, str]


def _twin(code: str, what: str, file: str, line: int, bad: str, good: str, **beside: str) -> Twin:
    others = {
        name.replace("__", "/").replace("_dot_", "."): dedent(text).lstrip() for name, text in beside.items()
    }
    return Twin(
        code,
        what,
        file,
        line,
        {file: dedent(bad).lstrip(), **others},
        {file: dedent(good).lstrip(), **others},
    )


TWINS = [
    _twin("CFG001", "a rate without a dot", "config.yaml", 2, """
        optim:
          lr: 1e-5
          batch_size: 32
        """, """
        optim:
          lr: 1.0e-5
          batch_size: 32
        """),
    _twin("CFG001", "a rate in quotes", "args.json", 2, """
        {
          "learning_rate": "3e-4",
          "batch_size": 8
        }
        """, """
        {
          "learning_rate": 3e-4,
          "batch_size": 8
        }
        """),
    _twin("CFG002", "eps of a float16 model", "train.toml", 5, """
        [model]
        dtype = "float16"
        [optim]
        lr = 1e-4
        eps = 1e-8
        """, """
        [model]
        dtype = "float32"
        [optim]
        lr = 1e-4
        eps = 1e-8
        """),
    _twin("CFG002", "eps beside a source that calls half", "config.yaml", 2, """
        lr: 1.0e-4
        eps: 1.0e-8
        batch_size: 4
        """, """
        lr: 1.0e-4
        eps: 1.0e-4
        batch_size: 4
        """, train_dot_py="""
        import torch
        def build(model, config):
            model.half()
            return torch.optim.SGD(model.head.parameters(), lr=config["lr"]), config["eps"], config["batch_size"]
        """),
    _twin("CFG002", "an eps of 1e-20", "model.yaml", 2, """
        batch_size: 4
        rms_norm_eps: 1.0e-20
        epochs: 3
        """, """
        batch_size: 4
        rms_norm_eps: 1.0e-6
        epochs: 3
        """),
    _twin("CFG003", "fp16 and bf16", "training_args.json", 5, """
        {
          "output_dir": "out",
          "learning_rate": 2e-5,
          "fp16": true,
          "bf16": true
        }
        """, """
        {
          "output_dir": "out",
          "learning_rate": 2e-5,
          "fp16": false,
          "bf16": true
        }
        """),
    _twin("CFG003", "amp by hand", "config.yaml", 1, """
        amp: true
        fp16: false
        mixed_precision: bf16
        lr: 1.0e-4
        """, """
        mixed_precision: bf16
        lr: 1.0e-4
        """),
    _twin("CFG003", "the launcher says otherwise", "train.yaml", 2, """
        lr: 1.0e-4
        mixed_precision: fp16
        steps: 1000
        """, """
        lr: 1.0e-4
        mixed_precision: bf16
        steps: 1000
        """, accelerate_dot_yaml="""
        compute_environment: LOCAL_MACHINE
        distributed_type: MULTI_GPU
        mixed_precision: bf16
        num_processes: 2
        """),
    _twin("CFG003", "both enabled in DeepSpeed", "ds_config.json", 4, """
        {
          "train_micro_batch_size_per_gpu": 2,
          "fp16": {"enabled": true},
          "bf16": {"enabled": true}
        }
        """, """
        {
          "train_micro_batch_size_per_gpu": 2,
          "fp16": {"enabled": false},
          "bf16": {"enabled": true}
        }
        """),
    _twin("CFG004", "a cold teacher", "config.yaml", 3, """
        loss:
          student_temperature: 0.1
          teacher_temperature: [0.01, 0.04]
        lr: 1.0e-4
        """, """
        loss:
          student_temperature: 0.1
          teacher_temperature: [0.04, 0.07]
        lr: 1.0e-4
        """),
    _twin("CFG004", "a cold student in Python", "dino_config.py", 2, """
        lr = 1e-4
        student_temperature = 0.02
        batch_size = 64
        """, """
        lr = 1e-4
        student_temperature = 0.1
        batch_size = 64
        """),
    _twin("CFG005", "AdamW at 0.1", "config.yaml", 2, """
        optimizer: adamw
        lr: 0.1
        steps: 1000
        """, """
        optimizer: adamw
        lr: 3.0e-4
        steps: 1000
        """),
    _twin("CFG005", "fine-tuning at 0.01", "hf.json", 3, """
        {
          "per_device_train_batch_size": 8,
          "learning_rate": 0.01,
          "num_train_epochs": 3
        }
        """, """
        {
          "per_device_train_batch_size": 8,
          "learning_rate": 5e-5,
          "num_train_epochs": 3
        }
        """),
    _twin("CFG005", "SGD at 8 for a batch of 256", "config.toml", 2, """
        optimizer = "sgd"
        lr = 8.0
        batch_size = 256
        """, """
        optimizer = "sgd"
        lr = 3.2
        batch_size = 8192
        """),
    _twin("CFG006", "a warm-up as long as the run", "config.yaml", 3, """
        lr: 1.0e-4
        max_steps: 2000
        warmup_steps: 2000
        """, """
        lr: 1.0e-4
        max_steps: 2000
        warmup_steps: 100
        """),
    _twin("CFG006", "a ratio that is a percentage", "hf.json", 4, """
        {
          "per_device_train_batch_size": 8,
          "num_train_epochs": 3,
          "warmup_ratio": 6
        }
        """, """
        {
          "per_device_train_batch_size": 8,
          "num_train_epochs": 3,
          "warmup_ratio": 0.06
        }
        """),
    _twin("CFG007", "no warm-up", "config.yaml", 3, """
        optimizer: AdamW
        lr: 1.0e-3
        warmup_steps: 0
        """, """
        optimizer: AdamW
        lr: 1.0e-3
        warmup_steps: 500
        """),
    _twin("CFG008", "a clip that never acts", "config.yaml", 2, """
        lr: 1.0e-4
        max_grad_norm: 10000
        """, """
        lr: 1.0e-4
        max_grad_norm: 1.0
        """),
    _twin("CFG008", "a clip switched off", "ds.json", 3, """
        {
          "train_micro_batch_size_per_gpu": 4,
          "gradient_clipping": 0
        }
        """, """
        {
          "train_micro_batch_size_per_gpu": 4,
          "gradient_clipping": 1.0
        }
        """),
    _twin("CFG009", "a least rate above the rate", "config.yaml", 2, """
        lr: 5.0e-5
        min_lr: 0.01
        steps: 100
        """, """
        lr: 5.0e-5
        min_lr: 5.0e-7
        steps: 100
        """),
    _twin("CFG010", "a scale without a floor", "ds.json", 3, """
        {
          "train_micro_batch_size_per_gpu": 4,
          "fp16": {"enabled": true, "min_loss_scale": 1e-10}
        }
        """, """
        {
          "train_micro_batch_size_per_gpu": 4,
          "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16, "min_loss_scale": 1}
        }
        """),
    _twin("CFG011", "a beta2 that never forgets", "config.yaml", 2, """
        lr: 1.0e-4
        betas: [0.9, 0.9999]
        """, """
        lr: 1.0e-4
        betas: [0.9, 0.95]
        """),
    _twin("CFG011", "betas swapped", "config.py", 2, """
        learning_rate = 3e-4
        beta1, beta2_unused = 0.9, None
        batch_size = 12
        optim = dict(beta1=0.95, beta2=0.9)
        """, """
        learning_rate = 3e-4
        batch_size = 12
        optim = dict(beta1=0.9, beta2=0.95)
        """)._replace(line=4),
    _twin("CFG012", "learing_rate", "config.yaml", 1, """
        learing_rate: 1.0e-4
        batch_size: 32
        """, """
        learning_rate: 1.0e-4
        batch_size: 32
        """),
    _twin("CFG012", "a singular for the trainer", "hf.json", 4, """
        {
          "per_device_train_batch_size": 8,
          "num_train_epochs": 3,
          "warmup_step": 100
        }
        """, """
        {
          "per_device_train_batch_size": 8,
          "num_train_epochs": 3,
          "warmup_steps": 100
        }
        """),
    _twin("CFG013", "a key nobody reads", "config.yaml", 4, """
        lr: 1.0e-4
        batch_size: 32
        epochs: 3
        qk_norm: true
        """, """
        lr: 1.0e-4
        batch_size: 32
        epochs: 3
        """, train_dot_py="""
        import yaml
        def main(path):
            config = yaml.safe_load(open(path))
            return config["lr"], config["batch_size"], config["epochs"]
        """),
    _twin("CFG013", "a key behind a test that is not passed", "config.yaml", 2, """
        fancy: false
        fancy_strength: 3
        lr: 1.0e-4
        """, """
        fancy: true
        fancy_strength: 3
        lr: 1.0e-4
        """, train_dot_py="""
        import yaml
        def main(path):
            config = yaml.safe_load(open(path))
            strength = config["fancy_strength"] if config["fancy"] else 0
            return config["lr"], strength
        """),
    _twin("CFG014", "batches that do not multiply", "ds.json", 2, """
        {
          "train_batch_size": 30,
          "train_micro_batch_size_per_gpu": 4,
          "gradient_accumulation_steps": 2
        }
        """, """
        {
          "train_batch_size": 32,
          "train_micro_batch_size_per_gpu": 4,
          "gradient_accumulation_steps": 2
        }
        """),
    _twin("CFG014", "accumulation in two files", "args.json", 3, """
        {
          "per_device_train_batch_size": 4,
          "gradient_accumulation_steps": 8,
          "num_train_epochs": 1
        }
        """, """
        {
          "per_device_train_batch_size": 4,
          "gradient_accumulation_steps": 2,
          "num_train_epochs": 1
        }
        """, ds_dot_json="""
        {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}
        """),
    _twin("CFG015", "saved after the end", "config.yaml", 3, """
        lr: 1.0e-4
        max_steps: 2000
        save_steps: 5000
        """, """
        lr: 1.0e-4
        max_steps: 2000
        save_steps: 500
        """),
    _twin("CFG016", "a filtered log", "hf.json", 4, """
        {
          "per_device_train_batch_size": 8,
          "num_train_epochs": 3,
          "logging_nan_inf_filter": true
        }
        """, """
        {
          "per_device_train_batch_size": 8,
          "num_train_epochs": 3,
          "logging_nan_inf_filter": false
        }
        """),
    _twin("CFG017", "a rate twice", "config.yaml", 4, """
        optim:
          lr: 1.0e-4
          weight_decay: 0.1
          lr: 3.0e-4
        """, """
        optim:
          lr: 1.0e-4
          weight_decay: 0.1
        """),
    _twin("CFG018", "an average that never moves", "config.toml", 2, """
        lr = 1e-4
        ema_decay = 1.0
        """, """
        lr = 1e-4
        ema_decay = 0.999
        """),
    _twin("CFG006", "a warm-up that Hydra brings in", "scheduler/cosine.yaml", 1, """
        warmup_steps: 9000
        min_lr: 1.0e-6
        """, """
        warmup_steps: 90
        min_lr: 1.0e-6
        """, config_dot_yaml="""
        defaults:
          - scheduler: cosine
          - _self_
        max_steps: 1000
        lr: 1e-4
        """),
]  # fmt: skip
