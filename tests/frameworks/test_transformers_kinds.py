"""The same callback with language models: gradient checkpointing, torch.compile, PEFT adapters, TRL's SFTTrainer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from stayfinite.integrations.transformers import StayFiniteCallback

VOCABULARY, LENGTH, SAMPLES, BATCH = 32, 8, 24, 4


def _language_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=16, pad_token_id=0,
        )
    )  # fmt: skip


def _samples(bad: bool) -> list[dict[str, Any]]:
    """Tokens; all labels of one batch are ignored if it is to fail: the mean of no loss at all."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    labels = ids.clone()
    if bad:
        labels[2 * BATCH : 3 * BATCH] = -100
    return [
        {"input_ids": i, "attention_mask": torch.ones_like(i), "labels": y}
        for i, y in zip(ids, labels, strict=True)
    ]


class _InOrder(Trainer):
    """Batches in the order of the samples; the plain mean of the labels, as people compute it themselves."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
        labels = inputs["labels"][:, 1:].reshape(-1)
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1].reshape(-1, VOCABULARY)
        return torch.nn.functional.cross_entropy(logits.float(), labels)  # born here


def _train(
    folder: Path, net: Any, *, bad: bool, guarded: bool, kind: Any = _InOrder, **more: Any
) -> tuple[Any, Any]:
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=BATCH, num_train_epochs=1, use_cpu=True, report_to=[], seed=7,
        disable_tqdm=True, save_strategy="no", logging_steps=1, **more,
    )  # fmt: skip
    callback = StayFiniteCallback(run_dir=folder / "run", policy="skip", quiet=True) if guarded else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind(net, arguments, train_dataset=_samples(bad), callbacks=[callback] if callback else None).train()
    return net, callback.guard if callback else None


def _line(where: str = "here") -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# born {where}"))


def _incident(guard: Any) -> dict[str, Any]:
    import json

    files = sorted(guard.run_dir.glob("incidents/*/incident.json"))
    assert len(files) == 1
    found: dict[str, Any] = json.loads(files[0].read_text())
    return found


def _same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "bfloat16, accumulated": {"bf16": True, "gradient_accumulation_steps": 2},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_language_model(kind: str, tmp_path: Path) -> None:
    more = KINDS[kind]
    plain, _ = _train(tmp_path / "plain", _language_model(), bad=False, guarded=False, **more)
    healthy, quiet = _train(tmp_path / "healthy", _language_model(), bad=False, guarded=True, **more)
    assert _same(plain, healthy)
    assert not list(quiet.run_dir.glob("incidents/*"))
    net, guard = _train(tmp_path / "bad", _language_model(), bad=True, guarded=True, **more)
    assert guard.counters.skipped == 1
    incident = _incident(guard)
    assert incident["findings"][0]["cause"] == "EMPTY_REDUCTION"
    assert incident["birth"]["line"] == _line()
    assert all(torch.isfinite(p).all() for p in net.parameters())


def _adapted(net: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))


def test_adapters(tmp_path: Path) -> None:
    plain, _ = _train(tmp_path / "plain", _adapted(_language_model()), bad=False, guarded=False)
    healthy, _ = _train(tmp_path / "healthy", _adapted(_language_model()), bad=False, guarded=True)
    assert _same(plain, healthy)
    net, guard = _train(tmp_path / "bad", _adapted(_language_model()), bad=True, guarded=True)
    assert guard.counters.skipped == 1 and _incident(guard)["birth"]["line"] == _line()
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_sft_trainer(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, **{f"w{n}": n for n in range(2, VOCABULARY)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    )

    class Poisoned(trl.SFTTrainer):
        """One step of the run has a loss that is nothing divided by nothing."""

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **more)
            if poisoned and self.state.global_step == 2:
                loss = loss + (loss - loss) / (loss - loss)  # born in TRL
            return loss

    def train(folder: Path, guarded: bool) -> tuple[Any, Any]:
        arguments = trl.SFTConfig(
            str(folder), per_device_train_batch_size=BATCH, num_train_epochs=1, use_cpu=True, report_to=[], seed=7,
            disable_tqdm=True, save_strategy="no", max_length=LENGTH, bf16=False, gradient_checkpointing=False,
        )  # fmt: skip
        data = Dataset.from_list([{"input_ids": s["input_ids"].tolist()} for s in _samples(False)])
        callback = StayFiniteCallback(run_dir=folder / "run", policy="skip", quiet=True)
        net = _language_model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = Poisoned(
                net,
                arguments,
                train_dataset=data,
                processing_class=tokenizer,
                callbacks=[callback] if guarded else None,
            )
            trainer.train()
        return net, callback.guard

    poisoned = False
    plain, _ = train(tmp_path / "plain", guarded=False)
    healthy, guard = train(tmp_path / "healthy", guarded=True)
    assert _same(plain, healthy) and guard.counters.applied == 6
    poisoned = True
    net, guard = train(tmp_path / "bad", guarded=True)
    assert guard.counters.skipped == 1 and guard.counters.applied == 5
    assert _incident(guard)["birth"]["line"] == _line("in TRL")
    assert all(torch.isfinite(p).all() for p in net.parameters())
