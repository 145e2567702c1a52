"""MLflow: metrics of the run that the script has begun, or of one of its own; a file store will do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stayfinite.loggers.logger import PREFIX, Logger


class MlflowLogger(Logger):
    """Events are metrics of 1 at their step; what was said is in the artifact stayfinite.txt."""

    def __init__(self, run_id: str | None = None, tracking_uri: str | None = None) -> None:
        self._run_id, self._uri, self._own = run_id, tracking_uri, False
        self._client: Any = None
        self._said: list[str] = []

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        client, mlflow_entities = self._open(), self._entities
        metrics = [
            mlflow_entities.Metric(name, value, int(1000 * time.time()), step)
            for name, value in values.items()
        ]
        client.log_batch(self._run_id, metrics=metrics)

    def happened(self, step: int, kind: str, text: str) -> None:
        client = self._open()
        client.log_metric(self._run_id, f"{PREFIX}{kind}", 1.0, step=step)
        self._said.append(f"step {step}: {kind}: {text}")
        client.log_text(self._run_id, "\n".join(self._said) + "\n", "stayfinite.txt")

    def close(self) -> None:
        if self._own and self._client is not None:
            self._client.set_terminated(self._run_id)
            self._client = None

    def _open(self) -> Any:
        if self._client is None:
            import mlflow  # type: ignore[import-not-found]
            from mlflow import entities

            self._entities: Any = entities
            self._client = mlflow.MlflowClient(tracking_uri=self._uri)
            active = mlflow.active_run()
            if self._run_id is None and active is not None:
                self._run_id = active.info.run_id
            elif self._run_id is None:
                self._own = True
                self._run_id = self._client.create_run(experiment_id="0").info.run_id
        return self._client
