"""Both ends of a weight transfer for vLLM without a GPU, through a file that each update names.

vLLM loads the receiving end as a plug-in. Its factory makes the sending end, as for NCCL and IPC.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from safetensors.torch import load_file, save_file
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)

BACKEND = "turnwise_test"


@dataclass
class Met(WeightTransferInitInfo):
    """Message to the receiver when both ends connect."""

    word: str


@dataclass
class Update(WeightTransferUpdateInfo):
    """Path of the file with the weights."""

    path: str


class Receiving(WeightTransferEngine[Met, Update]):
    """The receiving end, in vLLM's worker."""

    init_info_cls = Met
    update_info_cls = Update
    met = False

    def init_transfer_engine(self, init_info: Met) -> None:
        assert init_info.word == "hello"
        self.met = True

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        assert self.met, "no trainer connected to this engine"
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None: ...


@dataclass
class Rendezvous(TrainerInitInfo):
    """Makes the sending end."""

    backend: ClassVar[str] = BACKEND


class Sending(TrainerWeightTransferEngine[Rendezvous]):
    """The sending end, in the trainer. ``fault`` is called before the weights are announced."""

    init_info_cls = Rendezvous
    num_made = num_ended = 0
    fault = staticmethod(lambda: None)

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        Sending.num_made += 1
        client.init_weight_transfer_engine({"word": "hello"})
        return cls(client=client, source=source)

    def send_weights(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.safetensors"
            # Tied tensors share their memory, which a file does not.
            tensors = {name: tensor.clone() for name, tensor in self.source}
            assert {meta.name for meta in self.source.metadata()} == set(tensors)
            save_file(tensors, path)
            self.client.start_weight_update()
            Sending.fault()
            self.client.update_weights({"path": str(path)})
            self.client.finish_weight_update()

    def shutdown(self) -> None:
        Sending.num_ended += 1


def register() -> None:
    """Called by vLLM in each of its processes, and here by the tests."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, Receiving)
        WeightTransferTrainerFactory.register_engine(BACKEND, Sending)
